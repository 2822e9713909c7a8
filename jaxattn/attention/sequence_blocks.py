"""Blocks of sequences of about the same size, for work on all pairs of tokens of a sequence.

Sequences are ordered by the number of rows of the bags that they take. Sizes are rounded up to one of a
few, each with a program of its own whose number of blocks is known at run time only: what is computed
follows the sequences there are, and not the longest one there could be.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.core import backend
from jaxattn.data.ragged import Ragged, positions

# How many times as many rows the next size has: on an accelerator a program more costs compile time.
GROWTH, GROWTH_ON_ACCELERATORS = 1.2, 2.0
# Numbers held at once of rows of a table and of pairs: as many as a cache keeps, or as occupy a chip.
NUMBERS, NUMBERS_ON_ACCELERATORS = 1 << 19, 1 << 26


class Block(NamedTuple):
    """B sequences in as many rows of the bags each; U entries in the rows of one.

    Attributes:
        rows: (B, m) int32; rows of the bags, R for rows that do not exist.
        tokens: (B, U) int32; ids, of any token where nothing is.
        counts: (B, U); multiplicities, 0 where nothing is.
        place: () int32; how many numbers earlier blocks have for their pairs, B U² each.
    """

    rows: Array
    tokens: Array
    counts: Array
    place: Array

    def take(self, entries: Array) -> Array:
        """Gather what entries of the bags have, (R, W), as (B, U); any of it where nothing is."""
        return entries[jnp.minimum(self.rows, len(entries) - 1)].reshape(self.tokens.shape)

    def put(self, into: Array, entries: Array) -> Array:
        """Write (B, U) to where it belongs among the entries of the bags, (R, W)."""
        values = entries.reshape(*self.rows.shape, -1)
        return into.at[self.rows].set(values, mode="drop", unique_indices=True)


class _Size(NamedTuple):
    """Sequences of up to so many rows of the bags, and how many of them are a block."""

    rows: int
    together: int


def most_numbers() -> int:
    """Tell how many numbers of rows and of pairs a block is to have; that of one sequence may have more."""
    return NUMBERS if backend.platform() == "cpu" else NUMBERS_ON_ACCELERATORS


def is_one(bags: Ragged, width: int) -> bool:
    """Tell whether all sequences are one block; see `fold`."""
    (first, *others) = _sizes(bags, width)
    return not others and first.together == bags.num_segments


def most_pairs(bags: Ragged, width: int) -> int:
    """Bound how many numbers all blocks have for their pairs; see `fold`."""
    # The last block of every size may be filled up.
    every = [(size, (size.rows * bags.index.shape[1]) ** 2) for size in _sizes(bags, width)]
    if is_one(bags, width):
        return bags.num_segments * every[0][1]
    return bags.num_segments * every[-1][1] + sum(size.together * pairs for size, pairs in every)


def largest(bags: Ragged, width: int) -> int:
    """Tell how many numbers the largest block has for its pairs; see `fold`."""
    return max(size.together * (size.rows * bags.index.shape[1]) ** 2 for size in _sizes(bags, width))


def fold(bags: Ragged, width: int, visit: Callable[[Any, Block], Any], carry: Any) -> Any:
    """Fold over all sequences, a block at a time, carry = visit(carry, block).

    Args:
        bags: n sequences.
        width: numbers that are held for an entry beside those for its pairs; blocks are cut to fit.
        visit: what to do with a block; entries of some of its sequences may be missing.
        carry: to start with.

    Returns:
        The last carry.
    """
    sizes = _sizes(bags, width)
    start = positions(bags.owner, jnp.arange(bags.num_segments + 1)).astype(jnp.int32)
    rows_of = start[1:] - start[:-1]
    order = jnp.argsort(rows_of).astype(jnp.int32)
    bounds = (rows_of <= jnp.array([0, *(size.rows for size in sizes)])[:, None]).sum(axis=1)

    def step(size: _Size, begin: Array, end: Array, number: Any, carried: Any) -> Any:
        before, carry = carried
        place = begin + number * size.together + jnp.arange(size.together)
        sequence = order[jnp.minimum(place, bags.num_segments - 1)]
        here = jnp.where(place < end, rows_of[sequence], 0)
        block = _block(bags, start[sequence], here, size.rows, before)
        return before + block.tokens.size * block.tokens.shape[1], visit(carry, block)

    carried = jnp.int32(0), carry
    if is_one(bags, width):
        return step(sizes[0], bounds[0], bounds[1], 0, carried)[1]
    for size, begin, end in zip(sizes, bounds[:-1], bounds[1:], strict=True):
        blocks = -(-(end - begin) // size.together)
        carried = jax.lax.fori_loop(0, blocks, partial(step, size, begin, end), carried)
    return carried[1]


def _block(bags: Ragged, first: Array, present: Array, rows: int, place: Array) -> Block:
    number = jnp.arange(rows, dtype=jnp.int32)
    is_row = number < present[:, None]
    row = jnp.where(is_row, first[:, None] + number, 0)
    shape = (len(first), -1)
    return Block(
        rows=jnp.where(is_row, row, len(bags.owner)),
        tokens=bags.index[row].astype(jnp.int32).reshape(shape),
        counts=jnp.where(is_row[:, :, None], bags.count[row], 0).reshape(shape),
        place=place,
    )


def _sizes(bags: Ragged, width: int) -> list[_Size]:
    growth = GROWTH if backend.platform() == "cpu" else GROWTH_ON_ACCELERATORS
    numbers = most_numbers()
    longest = math.prod(level.shape[1] for level in bags.tree)
    found: list[_Size] = []
    rows = 0
    while rows < longest:
        rows = min(longest, max(rows + 1, int(growth * rows)))
        entries = rows * bags.index.shape[1]
        together = max(1, min(bags.num_segments, numbers // (entries * (width + entries))))
        found.append(_Size(rows, together))
    return found
