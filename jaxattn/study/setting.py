"""One setting of a study, ready to run: its things, made of its tables and checked against each other."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxattn.errors import InputError, at
from jaxattn.probes.settings import Probes
from jaxattn.study import concepts
from jaxattn.study.kinds import Concept, convert, read
from jaxattn.study.namespace import Namespace


class Setting(NamedTuple):
    """What happens to every seed.

    Attributes:
        data: corpora: drawn for every seed (`draw`), or shared by all (`load`).
        model: init, logits, and perhaps scores_and_values.
        loss: per sequence, (logits, labels) -> (n,).
        starts: starts of parameters that are not where the model draws them, by name.
        phases: what moves, one after the other.
        probes: what is measured on the way.
        dtype: of parameters and measurements.
    """

    data: Any
    model: Any
    loss: Any
    starts: Mapping[str, Any]
    phases: tuple[Any, ...]
    probes: Probes
    dtype: str


class Made(NamedTuple):
    """A setting, and the tables that make it with all defaults filled in."""

    setting: Setting
    tables: dict[str, Any]


def make(tree: Mapping[str, Any], names: Namespace) -> Made:
    """Make the things that the tables of a study name, and check that they fit together.

    Args:
        tree: the tables data, model, loss, phases and probes, and dtype.
        names: where import paths point.

    Returns:
        The setting, and its tables.

    Raises:
        InputError: names the place in the tables and the remedy.
        UserCodeError: code of the user's raised.
    """
    model_table, starts = _without(tree["model"], "init", dict)
    probes_table, own = _without(tree.get("probes", {}), "own", list | tuple)
    tables: dict[str, Any] = {"dtype": tree.get("dtype", "float32")}

    def thing(concept: Concept, table: Any, place: str) -> tuple[Any, Any]:
        reading = read(concept, table, place, names)
        return reading.make(place, names), reading.table(names)

    data, tables["data"] = thing(concepts.DATA, tree["data"], "data")
    model, tables["model"] = thing(concepts.MODEL, model_table, "model")
    loss, tables["loss"] = thing(concepts.LOSS, tree.get("loss", "classification"), "loss")
    begun = {name: thing(concepts.START, t, f"model.init.{name}") for name, t in (starts or {}).items()}
    phases = [thing(concepts.PHASE, t, f"phases[{k}]") for k, t in enumerate(tree["phases"])]
    further = [thing(concepts.PROBE, t, f"probes.own[{k}]") for k, t in enumerate(own or ())]
    standard = convert(Probes, probes_table, "probes")
    tables["phases"] = [table for _, table in phases]
    tables["probes"] = standard | {"own": [table for _, table in further]}
    if begun:
        tables["model"] |= {"init": {name: table for name, (_, table) in begun.items()}}
    setting = Setting(
        data=data,
        model=model,
        loss=loss,
        starts={name: start for name, (start, _) in begun.items()},
        phases=tuple(phase for phase, _ in phases),
        probes=Probes(**standard | {"own": tuple(probe for probe, _ in further)}),
        dtype=tables["dtype"],
    )
    check(setting)
    return Made(in_span(setting), tables)


def check(setting: Setting) -> None:
    """Raise InputError if the things of a setting do not fit themselves or each other."""
    _ask(setting.data, "data")
    _ask(setting.model, "model")
    _ask(setting.probes, "probes")
    names = [phase.name for phase in setting.phases]
    # A model of the user's own need not say what it has; its parameters tell before it runs.
    known: tuple[str, ...] = getattr(setting.model, "parameters", ())
    for name in setting.starts:
        if known and name not in known:
            raise InputError(f"model.init: the model has no {name!r}, but {', '.join(known)}")
    for index, phase in enumerate(setting.phases):
        place = f"phases[{index}]"
        if names.count(phase.name) > 1:
            raise InputError(f"phases: two phases are named {phase.name!r}; give each its own name")
        for parameter in phase.train:
            if known and parameter not in known:
                raise InputError(f"{place}.train: {parameter!r} is not one of {', '.join(known)}")
        _ask(phase, place, setting)
    if setting.probes.max_margin:
        if not getattr(setting.model, "is_one_layer", False):
            raise InputError("probes.max_margin: only model.kind = 'one_layer' has a max-margin direction")
        if all(tuple(phase.train) != ("p",) for phase in setting.phases):
            raise InputError("probes.max_margin: no phase moves p alone; add one, or leave it out")


def in_span(setting: Setting) -> Setting:
    """Put a model into coordinates of its span if nothing in the setting sees the axes of R^d.

    Raises:
        InputError: d is infinite, and something does; names it.
    """
    things: dict[str, Any] = {
        **{f"model.init.{name}": start for name, start in setting.starts.items()},
        **{f"phases.{phase.name}": phase for phase in setting.phases},
        **{f"probes.own[{k}]": probe for k, probe in enumerate(setting.probes.own)},
    }
    seeing = [place for place, thing in things.items() if not getattr(thing, "rotation_invariant", False)]
    if not seeing and hasattr(setting.model, "in_span"):
        return setting._replace(model=setting.model.in_span())
    if getattr(setting.model, "dim", None) == "inf":
        raise InputError(
            f"model.dim: 'inf', but {seeing[0]} needs the axes of R^d (rotation_invariant is not true); give "
            "a finite dim"
        )
    return setting


def _ask(thing: Any, place: str, *context: Any) -> None:
    if hasattr(thing, "check"):
        with at("" if place in ("data", "probes") else place):
            thing.check(*context)


def _without(table: Any, key: str, wanted: Any) -> tuple[Any, Any]:
    """Take a key out of a table, for what is a list or table of its own."""
    if not isinstance(table, dict):
        return table, None
    if key in table and not isinstance(table[key], wanted):
        raise InputError(
            f"{key}: expected {'a table' if wanted is dict else 'a list'}, got {table[key]!r:.60}"
        )
    return {name: x for name, x in table.items() if name != key}, table.get(key)
