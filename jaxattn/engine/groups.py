"""Compile groups: cells that differ in numbers only, and run side by side as lanes of one program."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import msgspec

from jaxattn.study.grid import Cell
from jaxattn.study.hyperparameters import VOCAB_SIZE, Hyperparameters, Path, hyperparameters
from jaxattn.study.kinds import with_values
from jaxattn.study.setting import Setting

# Where parts of a setting stand in its tables.
_IN_TABLES: dict[Any, Path] = {"starts": ("model", "init"), "probes": ("probes", "own")}


class CompileGroup(NamedTuple):
    """Cells that one compiled program runs.

    Attributes:
        number: its place among the groups of the study.
        setting: what the cells have in common; of what differs it has the first cell's numbers, and the
            largest vocabulary, to which the others are padded.
        cells: the cells, in the order of the study.
        varying: which numbers differ between the cells.
    """

    number: int
    setting: Setting
    cells: tuple[Cell, ...]
    varying: tuple[Path, ...]

    def hyperparameters(self, cells: Sequence[Cell]) -> Hyperparameters:
        """Collect the numbers of some lanes, given the cell of each; arrays (L,)."""
        own = [hyperparameters(cell.setting) for cell in cells]
        dtypes = {int: jnp.int32, float: jnp.dtype(self.setting.dtype)}
        return {
            path: jnp.asarray([lane[path] for lane in own], dtypes[type(own[0][path])])
            for path in self.varying
        }

    def key(self, path: Path) -> str:
        """Write the path of a number as a sweep file does."""
        head, *rest = path
        if head == "phases":
            phase = self.setting.phases[int(rest[0])]
            further = getattr(phase, "takes_further", None)
            rest = [phase.name, *(part for part in rest[1:] if part != further)]
        return ".".join(map(str, (*_IN_TABLES.get(head, (head,)), *rest)))


def compile_groups(cells: Iterable[Cell]) -> list[CompileGroup]:
    """Collect cells into groups, in the order of their first cells."""
    members: dict[bytes, list[Cell]] = {}
    for cell in cells:
        members.setdefault(_shape(cell), []).append(cell)
    return [_group(number, tuple(own)) for number, own in enumerate(members.values())]


def _shape(cell: Cell) -> bytes:
    """Write down what decides the programs of a cell: its tables without numbers a lane may have."""
    kept = copy.deepcopy(cell.tables)
    for head, *rest in hyperparameters(cell.setting):
        *parents, last = (*_IN_TABLES.get(head, (head,)), *rest)
        table: Any = kept
        for part in parents:
            table = table[part]
        del table[last]
    return msgspec.json.encode(kept, order="deterministic")


def _group(number: int, cells: tuple[Cell, ...]) -> CompileGroup:
    each = [hyperparameters(cell.setting) for cell in cells]
    varying = tuple(path for path in each[0] if len({own[path] for own in each}) > 1)
    setting = cells[0].setting
    if VOCAB_SIZE in varying:
        largest = max(own[VOCAB_SIZE] for own in each)
        setting = setting._replace(data=with_values(setting.data, {"vocab_size": largest}))
    return CompileGroup(number, setting, cells, varying)
