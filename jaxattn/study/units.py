"""What runs together: the seeds of a sweep's cells, cut into units that fit in memory, and shards of them."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxattn.errors import InputError
from jaxattn.study.config import Sweep
from jaxattn.study.grid import Cell, cells

SEED_MEMORY = 2**30


class Unit(NamedTuple):
    """The seeds of one cell that run together."""

    cell: Cell
    seeds: range

    @property
    def name(self) -> str:
        """A name that is unique within the sweep, and tells cell and seeds."""
        return f"cell-{self.cell.number:05d}-seeds-{self.seeds.start:05d}-{self.seeds.stop - 1:05d}"


def plan(sweep: Sweep, known: Sequence[str] = ()) -> list[Unit]:
    """Cut the seeds of every cell into units that fit in memory.

    Args:
        sweep: what to run.
        known: names of units that a folder holds; they are kept as they are, whatever seeds are asked for,
            and only seeds that none of them has are cut into new ones.

    Returns:
        The units, cell after cell, seeds in ascending order.
    """
    units = []
    for cell in cells(sweep):
        held = [seeds for number, seeds in map(_parse_name, known) if number == cell.number]
        missing = sorted(set(sweep.seed_numbers) - {seed for seeds in held for seed in seeds})
        width = cell.config.chunk or _chunk_width(cell.config)
        # Breaks where seeds are not consecutive.
        breaks = [k for k in range(1, len(missing)) if missing[k] != missing[k - 1] + 1]
        for first, last in itertools.pairwise([0, *breaks, len(missing)]):
            run = missing[first:last]
            held += [range(part[0], part[-1] + 1) for part in batched(run, width)]
        units += [Unit(cell, seeds) for seeds in sorted(held, key=lambda seeds: seeds.start)]
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


def batched(items: Sequence[int], width: int) -> Iterator[Sequence[int]]:
    """Cut a sequence into pieces of a width, the last one shorter."""
    for first in range(0, len(items), width):
        yield items[first : first + width]


def _parse_name(unit: str) -> tuple[int, range]:
    _, cell, _, first, last = unit.split("-")  # as in Unit.name
    return int(cell), range(int(first), int(last) + 1)


def _chunk_width(settings: Sweep) -> int:
    # Parameters, gradients, two moments and temporaries: about ten copies of E. Text does not tell its V.
    vocab_size = getattr(settings.data, "vocab_size", 10_000)
    per_seed = 10 * vocab_size * settings.model.dim * np.dtype(settings.dtype).itemsize
    return max(1, min(len(settings.seed_numbers), SEED_MEMORY // per_seed))
