"""Compile groups: cells that differ only in numeric settings, vmapped in the same program."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec
import numpy as np

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
    padded,
    padded_size,
)


class CompileGroup(NamedTuple):
    """Cells that run in the same compiled program.

    A program does not depend on the cells of its group: all numeric settings are arguments, also those that
    are equal in all cells, and the size of a padded vocabulary depends only on that of the cell. The results
    of a cell are therefore the same in every study.

    Attributes:
        number: index of the group in the study.
        setting: setting shared by the cells. Numeric settings have the values of the first cell, except that
            the vocabulary size is the padded one.
        cells: the cells, in the order of the study.
        numbers: for each cell number, all numeric settings.
    """

    number: int
    setting: Setting
    cells: tuple[Cell, ...]
    numbers: Mapping[int, Hyperparameters]

    def hyperparameters(self, cells: Sequence[Cell]) -> Hyperparameters:
        """Return the numeric settings as arrays (L,), with one value for each of L vmapped runs.

        `cells` lists the cell of each of these runs. The dtypes are int32 and float64; programs in float32
        round their arguments.
        """
        return {
            path: np.asarray([self.numbers[cell.number][path] for cell in cells], dtype)
            for path, dtype in self.dtypes().items()
        }

    def dtypes(self) -> dict[SettingPath, Any]:
        """Return the dtypes of the numeric settings, keyed by path."""
        known = {int: np.dtype("int32"), float: np.dtype("float64")}
        return {path: known[type(x)] for path, x in self.numbers[self.cells[0].number].items()}

    @property
    def varying(self) -> list[str]:
        """The keys of the numeric settings that differ between cells, as in sweep files."""
        each = [self.numbers[cell.number] for cell in self.cells]
        return [key_of(self.setting, path) for path in each[0] if len({own[path] for own in each}) > 1]


def compile_groups(cells: Iterable[Cell]) -> list[CompileGroup]:
    """Return groups of cells that can run in the same program, in the order of their first cells."""
    members: dict[bytes, list[Cell]] = {}
    numbers = {}
    for cell in cells:
        numbers[cell.number] = hyperparameters(cell.setting)
        members.setdefault(_shape(cell, numbers[cell.number]), []).append(cell)
    return [
        CompileGroup(
            number, padded(own[0].setting), tuple(own), {one.number: numbers[one.number] for one in own}
        )
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
    their `numbers`. It also includes the padded vocabulary size.
    """
    kept: Any = cell.tables
    for head, *rest in numbers:
        kept = without(kept, (*IN_TABLES.get(head, (head,)), *rest))
    size = padded_size(numbers[VOCAB_SIZE]) if VOCAB_SIZE in numbers else None
    return msgspec.json.encode((kept, list(numbers), size), order="deterministic")


def without(tree: Any, path: SettingPath) -> Any:
    """Return a copy of a tree of settings that lacks the setting at a path."""
    first, *rest = path
    if not rest:
        return {key: x for key, x in tree.items() if key != first}
    changed = copy(tree)
    changed[first] = without(tree[first], tuple(rest))
    return changed
