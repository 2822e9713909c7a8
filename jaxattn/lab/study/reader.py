"""Cells from tables: component instances are created and checked for compatibility."""

from collections.abc import Mapping
from typing import Any

from jaxattn.base import Data, Measurement, Model, Phase, Start
from jaxattn.base.model import check_type, linear_in
from jaxattn.core.errors import InputError, at
from jaxattn.core.pytrees import selected
from jaxattn.core.spec import Spec
from jaxattn.lab.probes.standard import Probes
from jaxattn.lab.study import concepts, randomness
from jaxattn.lab.study.concepts import C, Concept
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.registry import convert, keys_of, make, to_json_values
from jaxattn.lab.study.setting import Cell, Setting, config_hash
from jaxattn.lab.study.tree import location_of_entry, merge

_CONCEPTS: dict[str, Concept[Any]] = {
    "data": concepts.DATA,
    "model": concepts.MODEL,
    "loss": concepts.LOSS,
    "phases": concepts.PHASE,
    "probes.own": concepts.PROBE,
    "model.init": concepts.START,
}


def merged_tables(tree: Any, changes: dict[str, Any], names: ImportPaths) -> Any:
    """Return a copy of tables with changes merged in.

    If the kind of a table changes, only settings that the new kind accepts are kept.
    """

    def keys(path: tuple[str, ...], kind: Any) -> set[str]:
        location = location_of_entry(path)
        if location is None or not isinstance(kind, str | Spec):
            return set()
        return keys_of(_CONCEPTS[location], kind, names) | ({"init"} if location == "model" else set())

    return merge(tree, changes, keys)


class Reader:
    """Builder that turns tables into cells. Equal tables of several cells are built once and shared."""

    def __init__(self, names: ImportPaths) -> None:
        """Store the resolver for import paths."""
        self._names = names
        # Instances with their complete tables, keyed by the location and contents of the table.
        self._known: dict[tuple[str, str], tuple[Any, Any]] = {}
        # The objects that occur in tables, whose ids are in these keys.
        self._objects: dict[int, Spec] = {}

    def read(self, tree: Mapping[str, Any], number: int = 0, settings: Mapping[str, Any] = {}) -> Cell:
        """Create instances from tables, check that they are compatible, and return them as a cell.

        Args:
            tree: the tables data, model, loss, phases and probes, and the values of dtype and hold.
            number: index of the cell.
            settings: axis values of the cell, which are already in the tables.

        Raises:
            InputError: a table is invalid.
            UserCodeError: custom code raised an exception.
        """
        dtype = tree.get("dtype", "float32")
        model_table, starts = _without(tree["model"], "init", dict)
        data, data_table = self._thing(concepts.DATA, tree["data"], "data")
        model, model_table = self._thing(concepts.MODEL, model_table, "model")
        loss, loss_table = self._thing(concepts.LOSS, tree.get("loss", "classification"), "loss")
        initial = {
            name: self._thing(concepts.START, table, f"model.init.{name}")
            for name, table in (starts or {}).items()
        }
        phases = [
            self._thing(concepts.PHASE, table, f"phases[{k}]") for k, table in enumerate(tree["phases"])
        ]
        probes, probes_table = self._probes(tree.get("probes", {}))
        if initial:
            model_table = model_table | {"init": {name: table for name, (_, table) in initial.items()}}
        setting = Setting(
            data=data,
            model=model,
            loss=loss,
            starts={name: start for name, (start, _) in initial.items()},
            phases=tuple(phase for phase, _ in phases),
            probes=probes,
            dtype=dtype,
            hold=tuple(randomness.in_order(tree.get("hold", ()))),
        )
        _check(setting)
        tables = {
            "dtype": dtype,
            "data": data_table,
            "model": model_table,
            "loss": loss_table,
            "phases": [table for _, table in phases],
            "probes": probes_table,
        }
        if setting.hold:
            tables["hold"] = list(setting.hold)
        hash = config_hash(setting, tables, settings.keys())
        return Cell(number, dict(settings), setting_in_span(setting), tables, hash)

    def _thing(self, concept: Concept[C], table: Any, location: str) -> tuple[C, Any]:
        key = location, repr(self._contents(table))
        if key not in self._known:
            thing, full = make(concept, table, location, self._names)
            if isinstance(thing, Data | Model):
                _ask(thing, location)
            self._known[key] = thing, full
        return self._known[key]

    def _contents(self, table: Any) -> Any:
        """Return a table with ids in place of its objects, which are kinds or entries of lists."""
        if isinstance(table, Spec):
            self._objects[id(table)] = table
            return (id(table),)
        if isinstance(table, dict):
            return table | {key: self._contents(table[key]) for key in ("kind", "own") if key in table}
        return [self._contents(x) for x in table] if isinstance(table, list | tuple) else table

    def _probes(self, table: Any) -> tuple[Probes, Any]:
        key = "probes", repr(self._contents(table))
        if key not in self._known:
            standard_table, own = _without(table, "own", list | tuple)
            standard = convert(Probes, standard_table, "probes")
            further = [self._thing(concepts.PROBE, t, f"probes.own[{k}]") for k, t in enumerate(own or ())]
            probes = Probes(**standard | {"own": tuple(probe for probe, _ in further)})
            _ask(probes, "probes")
            written = to_json_values(standard, self._names) | {"own": [table for _, table in further]}
            self._known[key] = probes, written
        return self._known[key]


def _check(setting: Setting) -> None:
    names = [phase.name for phase in setting.phases]
    # A custom model may leave `parameters` empty; in that case the dry run checks the names.
    known = setting.model.parameters
    for name in setting.starts:
        if known and name not in known:
            raise InputError(
                f"model.init: the model has no parameter {name!r}; choose one of {', '.join(known)}"
            )
    for index, phase in enumerate(setting.phases):
        location = f"phases[{index}]"
        if names.count(phase.name) > 1:
            raise InputError(f"phases: two phases are named {phase.name!r}; rename one of them")
        if known:
            with at(f"{location}.train"):
                selected(dict.fromkeys(known, 0.0), phase.train)
        _ask(phase, location, setting)
    randomness.check_fresh(setting.phases, setting.hold)
    setting.probes.check_phases(setting.phases)
    dataset_type = setting.data.dataset_type
    # If `data` declares only a base class of the type that the model takes, the dry run checks the actual
    # type.
    if dataset_type is not None and not issubclass(setting.model.takes, dataset_type):
        check_type(dataset_type, setting.model)
    if setting.probes.max_margin:
        if (moves := linear_in(setting.model)) is None:
            raise InputError(
                "probes.max_margin: the model has no scores that are linear in a parameter; remove this "
                "setting"
            )
        if all(tuple(phase.train) != (moves,) for phase in setting.phases):
            raise InputError(
                f"probes.max_margin: no phase trains only {moves}; add such a phase, or remove this setting"
            )


def setting_in_span(setting: Setting) -> Setting:
    """Return the setting with its model in span coordinates if no component depends on the axes of R^d.

    If a component depends on the axes, the model is left in full coordinates.

    Raises:
        InputError: d is infinite, but a component depends on the axes.
    """
    items: dict[str, Start | Phase | Measurement] = {
        **{f"model.init.{name}": start for name, start in setting.starts.items()},
        **{f"phases.{phase.name}": phase for phase in setting.phases},
        **{f"probes.own[{k}]": probe for k, probe in enumerate(setting.probes.own)},
    }
    seeing = [location for location, thing in items.items() if not thing.rotation_invariant]
    if not seeing:
        return setting._replace(model=setting.model.in_span())
    if setting.model.dim == "inf":
        raise InputError(
            f"model.dim: 'inf', but {seeing[0]} depends on the axes of R^d (rotation_invariant is not "
            "true); use a finite dimension"
        )
    return setting


def _ask(thing: Spec, location: str, *context: Any) -> None:
    # Errors raised by probes already contain their location.
    with at("" if location == "probes" else location):
        thing.check(*context)


def _without(table: Any, key: str, wanted: Any) -> tuple[Any, Any]:
    if not isinstance(table, dict):
        return table, None
    if key in table and not isinstance(table[key], wanted):
        raise InputError(
            f"{key}: expected {'a table' if wanted is dict else 'a list'}, got {table[key]!r:.60}"
        )
    return {name: x for name, x in table.items() if name != key}, table.get(key)
