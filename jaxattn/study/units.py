"""What runs together: lanes of a group, cut into units that fit in memory, and shards of them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxattn.errors import InputError
from jaxattn.study.config import Sweep
from jaxattn.study.grid import Cell, cells
from jaxattn.study.groups import Group, groups

SEED_MEMORY = 2**30


class Unit(NamedTuple):
    """Lanes that run together: every one of some seeds for every one of some cells of a group."""

    group: Group
    cells: tuple[Cell, ...]
    seeds: range

    @property
    def name(self) -> str:
        """A name that is unique within the sweep, and tells cells and seeds."""
        first, last = self.cells[0].number, self.cells[-1].number
        return f"cells-{first:05d}-{last:05d}-seeds-{self.seeds.start:05d}-{self.seeds.stop - 1:05d}"

    @property
    def lanes(self) -> list[tuple[Cell, int]]:
        """Cell and seed of every lane, cell after cell."""
        return [(cell, seed) for cell in self.cells for seed in self.seeds]


def plan(sweep: Sweep, known: Sequence[str] = (), widths: Sequence[int] = ()) -> list[Unit]:
    """Cut the lanes of every group into units.

    Args:
        sweep: what to run.
        known: names of units that a folder holds; they are kept as they are, whatever seeds are asked for,
            and only lanes that none of them has are cut into new ones.
        widths: lanes that may run together, for every group; a rule of thumb for what fits by default.

    Returns:
        The units, group after group, cells and seeds in ascending order.
    """
    units = []
    held = [_parse_name(name) for name in known]
    for group in groups(cells(sweep)):
        width = group.config.chunk or (widths[group.number] if widths else rule_of_thumb(group))
        numbers = {cell.number for cell in group.cells}
        own = [
            Unit(group, tuple(cell for cell in group.cells if first <= cell.number <= last), seeds)
            for first, last, seeds in held
            if first in numbers
        ]
        there: dict[int, set[int]] = {number: set() for number in numbers}
        for unit in own:
            for cell in unit.cells:
                there[cell.number].update(unit.seeds)
        wanted = set(sweep.seed_numbers)
        for missing, some in itertools.groupby(
            group.cells, key=lambda cell: tuple(sorted(wanted - there[cell.number]))
        ):
            together = tuple(some)
            for run in _runs(missing):
                own += [Unit(group, *part) for part in _rectangles(together, run, width)]
        units += sorted(own, key=lambda unit: (unit.cells[0].number, unit.seeds.start))
    return units


def share(units: list[Unit], shard: tuple[int, int]) -> list[Unit]:
    """Take the I-th of N shares of the units: every N-th one, so that cells are spread evenly.

    Raises:
        InputError: no such share, or nothing for it to do.
    """
    which, shards = shard
    if not 1 <= which <= shards:
        raise InputError(f"shard {which}/{shards}: give a number from 1 to {shards}, for example 1/{shards}")
    if which > len(units):
        raise InputError(
            f"shard {which}/{shards}: there are {len(units)} units of work; use at most {len(units)} shards, "
            "or make more units with --set chunk=..."
        )
    return units[which - 1 :: shards]


def rule_of_thumb(group: Group, budget: int = SEED_MEMORY) -> int:
    """Guess how many lanes fit: parameters, gradients, two moments, temporaries are ten copies of E."""
    # Text does not tell its V.
    vocab_size = getattr(group.config.data, "vocab_size", 10_000)
    per_lane = 10 * vocab_size * group.config.model.dim * np.dtype(group.config.dtype).itemsize
    return max(1, budget // per_lane)


def _rectangles(
    cells: tuple[Cell, ...], seeds: range, width: int
) -> Iterator[tuple[tuple[Cell, ...], range]]:
    """Cut cells × seeds into evenly filled rectangles of at most `width` lanes."""
    if len(seeds) >= width:
        for cell in cells:
            yield from (((cell,), part) for part in _even(seeds, width))
    else:
        yield from ((part, seeds) for part in _even(cells, width // len(seeds)))


def _even(items, width: int):
    """Cut a sequence into pieces of at most `width`, as equal as can be with the last one shorter."""
    size = math.ceil(len(items) / math.ceil(len(items) / width))
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _runs(seeds: Sequence[int]) -> Iterator[range]:
    """Cut ascending numbers where they are not consecutive."""
    breaks = [k for k in range(1, len(seeds)) if seeds[k] != seeds[k - 1] + 1]
    for first, last in itertools.pairwise([0, *breaks, len(seeds)]):
        if first < last:
            yield range(seeds[first], seeds[last - 1] + 1)


def _parse_name(unit: str) -> tuple[int, int, range]:
    _, first, last, _, start, end = unit.split("-")  # as in Unit.name
    return int(first), int(last), range(int(start), int(end) + 1)
