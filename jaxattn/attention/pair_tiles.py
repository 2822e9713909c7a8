"""Pairs of entries of one sequence as tiles: one row of W entries of the bags against another row."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.ragged import Ragged, take

# Pairs handled at once: few enough for a cache, enough to keep two cores busy.
PAIRS = 1 << 18


class SequenceRows(NamedTuple):
    """Which rows of the bags belong to the same sequence.

    Attributes:
        first: (R,) the first row of a row's sequence.
        offset: (R,) which of the rows of its sequence a row is, from 0.
        num_rows: (R,) how many rows its sequence has; 1 for an unused row, a sequence of its own.
    """

    first: Array
    offset: Array
    num_rows: Array


def sequence_rows(bags: Ragged) -> SequenceRows:
    """Find the rows of every row's sequence."""
    row = jnp.arange(len(bags.owner), dtype=jnp.int32)
    if not bags.tree:
        return SequenceRows(first=row, offset=jnp.zeros_like(row), num_rows=jnp.ones_like(row))
    start = jnp.searchsorted(bags.owner, jnp.arange(bags.num_segments + 1)).astype(jnp.int32)
    used = bags.owner < bags.num_segments
    owner = jnp.minimum(bags.owner, bags.num_segments - 1)
    first = jnp.where(used, take(start, owner), row)
    return SequenceRows(
        first=first,
        offset=row - first,
        num_rows=jnp.where(used, take(start, owner + 1) - first, 1),
    )


def row_blocks(bags: Ragged, steps: Array, pairs: int | None = None) -> Array:
    """Order rows by the number of tiles they take, so that a block of rows ends its loop together: (., B)."""
    rows, width = bags.index.shape
    size = min(rows, max(1, (pairs or PAIRS) // width**2))
    order = jnp.arange(rows, dtype=jnp.int32)
    if bags.tree:
        # Rows of like tokens side by side read and write a part of G that a cache can hold.
        order = jnp.lexsort((bags.index[:, width // 2], steps)).astype(jnp.int32)
    # Filled up with a row number that does not exist, which gathers clamp and scatters drop.
    return jnp.pad(order, (0, -rows % size), constant_values=rows).reshape(-1, size)


def add_rows(
    sums: tuple[Array, ...], rows: Array, used: Array, added: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Add (B, W) to rows of (R, W) each, no row twice; what is not used goes to a row that does not exist."""
    rows = jnp.where(used, rows, len(sums[0]))
    return tuple(
        x.at[rows].add(y, mode="drop", unique_indices=True) for x, y in zip(sums, added, strict=True)
    )


def variadic_sum(axis: int, *arrays: Array) -> tuple[Array, ...]:
    """Sum several arrays along an axis in one reduction, so that what they share is computed once."""
    zeros = tuple(jnp.zeros((), x.dtype) for x in arrays)
    return tuple(jax.lax.reduce(arrays, zeros, lambda x, y: tuple(map(jnp.add, x, y)), (axis,)))
