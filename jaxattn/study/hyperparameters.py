"""The numbers of a setting that every lane of one program may have for itself.

These are the floats of data, model, loss, starts, phases and of the user's probes, unless they are marked
`Static`; and the size of a synthetic vocabulary, by padding.
"""

import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from jax import Array

from jaxattn.core.settings import STATIC, Spec
from jaxattn.study.registry import fields_of
from jaxattn.study.setting import Setting

Path = tuple[str | int, ...]
# By path, for example ("phases", 0, "step_size"); one number, or one for every lane.
Hyperparameters = Mapping[Path, Any]
VOCAB_SIZE: Path = ("data", "vocab_size")
# Where parts of a setting stand in its tables.
IN_TABLES: dict[Any, Path] = {"starts": ("model", "init"), "probes": ("probes", "own")}


def hyperparameters(setting: Setting) -> dict[Path, float | int]:
    """List the numbers that every lane of a program may have for itself."""
    parts: dict[Path, Spec] = {
        ("data",): setting.data,
        ("model",): setting.model,
        ("loss",): setting.loss,
        **{("starts", name): start for name, start in setting.starts.items()},
        **{("phases", k): phase for k, phase in enumerate(setting.phases)},
        **{("probes", k): probe for k, probe in enumerate(setting.probes.own)},
    }
    found: dict[Path, float | int] = {
        (*path, *inner): number for path, thing in parts.items() for inner, number in numbers_of(thing)
    }
    if pads_vocabulary(setting) and setting.data.vocab_size is not None:
        found[VOCAB_SIZE] = setting.data.vocab_size
    return found


def pads_vocabulary(setting: Setting) -> bool:
    """Tell whether cells that differ in V alone may share a program."""
    return setting.data.pads_vocabulary and bool(setting.model.token_rows)


def with_hyperparameters(setting: Setting, numbers: Hyperparameters) -> Setting:
    """Return a setting with the numbers of one lane in it, which may be traced; V stays what shapes say."""
    for path, number in numbers.items():
        if path != VOCAB_SIZE:
            setting = _replaced(setting, path, number)
    return setting


def key_of(setting: Setting, path: Path) -> str:
    """Write the path of a number as a sweep file does."""
    head, *rest = path
    if head == "phases":
        phase = setting.phases[int(rest[0])]
        rest = [phase.name, *(part for part in rest[1:] if part != phase.takes_further)]
    return ".".join(map(str, (*IN_TABLES.get(head, (head,)), *rest)))


def used_tokens(numbers: Hyperparameters) -> Array | None:
    """Tell how many tokens of a padded vocabulary a lane uses, None for all."""
    return numbers.get(VOCAB_SIZE)


def numbers_of(thing: Spec) -> Iterator[tuple[Path, float]]:
    """List the numbers of one thing that every lane may have for itself, by path within it."""
    static = _static(type(thing))
    for name, value in msgspec.structs.asdict(thing).items():
        if name in static:
            continue
        if isinstance(value, float):
            yield (name,), value
        elif isinstance(value, dict):
            yield from (((name, key), x) for key, x in value.items() if isinstance(x, float))


@functools.cache
def _static(target: type[Spec]) -> frozenset[str]:
    """Name the settings that no lane may have for itself."""
    return frozenset(field.name for field in fields_of(target) if _is_static(field.type))


def _is_static(annotation: Any) -> bool:
    """Whether an annotation is marked, also inside a union."""
    if STATIC in getattr(annotation, "__metadata__", ()):
        return True
    return any(_is_static(part) for part in typing.get_args(annotation) if not isinstance(part, str))


def _replaced(node: Any, path: Path, number: Any) -> Any:
    if not path:
        return number
    head, rest = path[0], path[1:]
    if isinstance(node, Setting):
        if head == "probes":
            own = _replaced(node.probes.own, rest, number)
            return node._replace(probes=msgspec.structs.replace(node.probes, own=own))
        return node._replace(**{str(head): _replaced(getattr(node, str(head)), rest, number)})
    if isinstance(node, tuple):
        return tuple(_replaced(x, rest, number) if k == head else x for k, x in enumerate(node))
    if isinstance(node, Mapping):
        return {**node, head: _replaced(node[head], rest, number)}
    return msgspec.structs.replace(node, **{str(head): _replaced(getattr(node, str(head)), rest, number)})
