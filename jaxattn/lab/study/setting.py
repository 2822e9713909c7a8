"""Component instances of a study, created from tables and checked for compatibility.

Numeric settings are arguments of compiled programs, so vmapped runs may differ in them. These are the floats
in data, model, loss, starts, phases and custom probes that are not 0 and not annotated as `Static`, and the
size of a synthetic vocabulary if it can be padded.
"""

import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from jax import Array

from jaxattn.base import Data, Loss, Measurement, Model, Phase, Start
from jaxattn.base.model import check_type, linear_in
from jaxattn.core.errors import InputError, at
from jaxattn.core.pytrees import selected
from jaxattn.core.settings import MAX_INT, STATIC, has_mark
from jaxattn.core.spec import Spec, has_custom_code
from jaxattn.lab.probes.standard import Probes
from jaxattn.lab.study import concepts, randomness
from jaxattn.lab.study.concepts import C, Concept
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.registry import convert, fields_of, keys_of, make, to_json_values
from jaxattn.lab.study.tree import location_of_entry, merge

_S = TypeVar("_S", bound=Spec)
SettingPath = tuple[str | int, ...]
# Numeric settings by path, such as ("phases", 0, "step_size"). Each is a scalar, or an array with one value
# per run.
Hyperparameters = Mapping[SettingPath, Any]
VOCAB_SIZE: SettingPath = ("data", "vocab_size")
# Fields of a setting that are stored in the tables under a different path.
IN_TABLES: dict[Any, SettingPath] = {"starts": ("model", "init"), "probes": ("probes", "own")}


class Setting(NamedTuple):
    """The parts of a study that determine what is computed for one seed.

    Attributes:
        data: data that are sampled per seed (`draw`), or shared by all seeds (`load`).
        model: the model.
        loss: per-example loss, (outputs, targets) -> (n,), or a loss that returns one number per batch.
        starts: initial values by parameter, which override those of the model.
        phases: the phases in order.
        probes: the probes.
        dtype: dtype of parameters and measurements.
        hold: sources of randomness shared by all seeds; see `randomness`.
        used: () int32; number of tokens in use if the vocabulary is padded, else None.
    """

    data: Data
    model: Model[Any]
    loss: Loss
    starts: Mapping[str, Start]
    phases: tuple[Phase, ...]
    probes: Probes
    dtype: str
    hold: tuple[str, ...] = ()
    used: Array | None = None


class Cell(NamedTuple):
    """Grid point of a study. A study without axes has a single cell.

    Attributes:
        number: index of the cell.
        settings: the axis values.
        setting: component instances created with these values.
        tables: tables that describe the instances, with all settings.
        config_hash: hash of the settings that determine the results.
    """

    number: int
    settings: dict[str, Any]
    setting: Setting
    tables: dict[str, Any]
    config_hash: str


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


# Fields of a setting that `parts` covers; of the probes, only those in `own`.
PARTS = ("data", "model", "loss", "starts", "phases")


def parts(setting: Setting) -> dict[SettingPath, Spec]:
    """Return the parts of a setting whose numbers may differ between vmapped runs of one program, by path."""
    return {
        ("data",): setting.data,
        ("model",): setting.model,
        ("loss",): setting.loss,
        **{("starts", name): start for name, start in setting.starts.items()},
        **{("phases", k): phase for k, phase in enumerate(setting.phases)},
        **{("probes", k): probe for k, probe in enumerate(setting.probes.own)},
    }


def hyperparameters(setting: Setting) -> dict[SettingPath, float | int]:
    """Return the numeric settings that may differ between vmapped runs of one program, by path."""
    found: dict[SettingPath, float | int] = {
        (*path, *inner): number
        for path, thing in parts(setting).items()
        for inner, number in numbers_of(thing)
    }
    if pads_vocabulary(setting) and setting.data.vocab_size is not None:
        found[VOCAB_SIZE] = setting.data.vocab_size
    return found


def pads_vocabulary(setting: Setting) -> bool:
    """Return True if cells that differ only in the vocabulary size V may share a program.

    Custom starts, phases and probes may use all rows of a parameter, so they never get rows for padding.
    """
    able = setting.data.pads_vocabulary and bool(setting.model.token_rows)
    return able and not has_custom_code((setting.starts, setting.phases, setting.probes))


def padded_size(vocab_size: int) -> int:
    """Return the size to which a vocabulary is padded, so that vocabularies of similar sizes share a program.

    This is the next multiple of an eighth of a power of two, and at least of 16, so that at most a fifth of a
    large vocabulary is padding. It depends on nothing else, so a cell has the same results in every study.
    """
    step = max(16, (1 << (vocab_size - 1).bit_length()) // 8)
    return min(-(-vocab_size // step) * step, MAX_INT)


def padded(setting: Setting) -> Setting:
    """Return the setting with the padded vocabulary size, or unchanged if the vocabulary is not padded."""
    size = setting.data.vocab_size
    if size is None or not pads_vocabulary(setting):
        return setting
    return setting._replace(data=msgspec.structs.replace(setting.data, vocab_size=padded_size(size)))


def with_hyperparameters(setting: Setting, numbers: Hyperparameters) -> Setting:
    """Return a copy of `setting` with the numeric values of one run, which may be tracers.

    The vocabulary size of the data is unchanged, because it determines array shapes; the run's vocabulary
    size is stored in `Setting.used`.
    """
    setting = setting._replace(used=numbers.get(VOCAB_SIZE))
    for path, number in numbers.items():
        if path != VOCAB_SIZE:
            setting = _replace_value(setting, path, number)
    return setting


def with_numbers(thing: _S, numbers: Hyperparameters) -> _S:
    """Return a copy of an instance with other numeric settings; see `numbers_of` for the paths."""
    for path, number in numbers.items():
        thing = _replace_value(thing, path, number)
    return thing


def key_of(setting: Setting, path: SettingPath) -> str:
    """Convert the path of a numeric setting to the corresponding dotted key in a sweep file."""
    head, *rest = path
    if head == "phases":
        phase = setting.phases[int(rest[0])]
        rest = [phase.name, *(part for part in rest[1:] if part != phase.options_field)]
    return ".".join(map(str, (*IN_TABLES.get(head, (head,)), *rest)))


def numbers_of(thing: Spec) -> Iterator[tuple[SettingPath, float]]:
    """Yield the numeric settings of an instance that may differ between vmapped runs, each with its path.

    Zeros are left out, because they switch something off, such as momentum, noise or label smoothing.
    """
    static = _static(type(thing))
    for name, value in msgspec.structs.asdict(thing).items():
        if name in static:
            continue
        if isinstance(value, float) and value:
            yield (name,), value
        elif isinstance(value, dict):
            yield from (((name, key), x) for key, x in value.items() if isinstance(x, float) and x)


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


def config_hash(setting: Setting, tables: Mapping[str, Any], swept: Collection[str]) -> str:
    """Return the hash of the settings that determine the results of a cell.

    Args:
        setting: the instances.
        tables: the tables that describe them, with all settings.
        swept: keys of the axes of the study.
    """
    inert = {key for key in setting.data.inert if f"data.{key}" not in swept}
    kept = {key: x for key, x in tables["data"].items() if key not in inert}
    encoded = msgspec.json.encode({**tables, "data": kept}, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:16]


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


@functools.cache
def _static(target: type[Spec]) -> frozenset[str]:
    return frozenset(field.name for field in fields_of(target) if has_mark(field.type, STATIC))


def _replace_value(node: Any, path: SettingPath, number: Any) -> Any:
    if not path:
        return number
    head, rest = path[0], path[1:]
    if isinstance(node, Setting):
        if head == "probes":
            own = _replace_value(node.probes.own, rest, number)
            return node._replace(probes=msgspec.structs.replace(node.probes, own=own))
        return node._replace(**{str(head): _replace_value(getattr(node, str(head)), rest, number)})
    if isinstance(node, tuple):
        return tuple(_replace_value(x, rest, number) if k == head else x for k, x in enumerate(node))
    if isinstance(node, Mapping):
        return {**node, head: _replace_value(node[head], rest, number)}
    return msgspec.structs.replace(
        node, **{str(head): _replace_value(getattr(node, str(head)), rest, number)}
    )
