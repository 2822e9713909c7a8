"""Component instances of a study, and their numeric settings.

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

from jaxattn.base import Data, Loss, Model, Phase, Start
from jaxattn.core.settings import MAX_INT, STATIC, has_mark
from jaxattn.core.spec import Spec, has_custom_code
from jaxattn.lab.probes.standard import Probes
from jaxattn.lab.study.registry import fields_of

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
