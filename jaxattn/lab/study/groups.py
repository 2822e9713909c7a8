"""Compile groups: cells that differ only in numeric settings, vmapped in the same program."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import jax.numpy as jnp
import msgspec

from jaxattn.core.errors import UserCodeError
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.dry_run import rehearse
from jaxattn.lab.study.setting import (
    IN_TABLES,
    VOCAB_SIZE,
    Cell,
    Hyperparameters,
    Setting,
    SettingPath,
    hyperparameters,
    key_of,
)


class CompileGroup(NamedTuple):
    """Cells that run in the same compiled program.

    Attributes:
        number: index of the group in the study.
        setting: setting shared by the cells. Numeric settings that differ between cells have the value of
            the first cell. The vocabulary size is the largest in the group, because smaller vocabularies are
            padded.
        cells: the cells, in the order of the study.
        varying: paths of the numeric settings that differ between cells.
        numbers: for each cell number, all numeric settings that may differ between vmapped runs.
    """

    number: int
    setting: Setting
    cells: tuple[Cell, ...]
    varying: tuple[SettingPath, ...]
    numbers: Mapping[int, Hyperparameters]

    def hyperparameters(self, cells: Sequence[Cell]) -> Hyperparameters:
        """Return the varying numeric settings as arrays (L,), with one value for each of L vmapped runs.

        `cells` lists the cell of each of these runs.
        """
        return {
            path: jnp.asarray([self.numbers[cell.number][path] for cell in cells], dtype)
            for path, dtype in self.dtypes().items()
        }

    def dtypes(self) -> dict[SettingPath, Any]:
        """Return the dtypes of the varying numeric settings, keyed by path."""
        first = self.numbers[self.cells[0].number]
        known = {int: jnp.dtype("int32"), float: jnp.dtype(self.setting.dtype)}
        return {path: known[type(first[path])] for path in self.varying}

    def key(self, path: SettingPath) -> str:
        """Return the sweep-file key of a numeric setting."""
        return key_of(self.setting, path)


def compile_groups(cells: Iterable[Cell]) -> list[CompileGroup]:
    """Return groups of cells that can run in the same program, in the order of their first cells."""
    members: dict[bytes, list[Cell]] = {}
    numbers = {}
    for cell in cells:
        numbers[cell.number] = hyperparameters(cell.setting)
        members.setdefault(_shape(cell, numbers[cell.number]), []).append(cell)
    return [
        _group(number, tuple(own), {cell.number: numbers[cell.number] for cell in own})
        for number, own in enumerate(members.values())
    ]


def rehearse_groups(
    study: Definition, groups: Sequence[CompileGroup], progress: Any, *, keep_going: bool = False
) -> frozenset[int]:
    """Trace all groups if the study has custom code; return the indices of groups that raise exceptions.

    With `keep_going`, exceptions in some but not all groups are ignored, because the batches of these groups
    raise them again when they run.

    Raises:
        InputError: custom code returns a value of the wrong type or shape.
        UserCodeError: custom code raised an exception; with `keep_going`, it did so in every group.
    """
    raised: dict[int, UserCodeError] = {}
    files = study.names.files(study.custom_kinds)
    for group in groups if study.custom_kinds else ():
        try:
            rehearse(group.setting, group.dtypes(), files, progress)
        except UserCodeError as error:
            raised[group.number] = error
            if not keep_going or len(raised) == len(groups):
                raise
    return frozenset(raised)


def _shape(cell: Cell, numbers: Hyperparameters) -> bytes:
    """Return a key that is the same for cells that can share a program: the tables without `numbers`.

    The key includes the paths of `numbers`, because a setting that is None in some cells is missing from
    their `numbers`. It also includes whether the loss is logistic, which depends on the number `smoothing`
    and determines the probes.
    """
    kept: Any = cell.tables
    for head, *rest in numbers:
        kept = _without(kept, (*IN_TABLES.get(head, (head,)), *rest))
    logistic = bool(cell.setting.loss.is_logistic)
    return msgspec.json.encode((kept, list(numbers), logistic), order="deterministic")


def _without(tree: Any, path: SettingPath) -> Any:
    first, *rest = path
    if not rest:
        return {key: x for key, x in tree.items() if key != first}
    changed = copy(tree)
    changed[first] = _without(tree[first], tuple(rest))
    return changed


def _group(number: int, cells: tuple[Cell, ...], numbers: Mapping[int, Hyperparameters]) -> CompileGroup:
    each = numbers.values()
    setting = cells[0].setting
    varying = tuple(path for path in numbers[cells[0].number] if len({own[path] for own in each}) > 1)
    if VOCAB_SIZE in varying:
        largest = max(own[VOCAB_SIZE] for own in each)
        setting = setting._replace(data=msgspec.structs.replace(setting.data, vocab_size=largest))
    return CompileGroup(number, setting, cells, varying, numbers)
