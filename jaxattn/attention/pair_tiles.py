"""Pairs of entries of one sequence as tiles: one row of W entries of the bags against another row."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.ragged import Ragged, take

# Pairs handled at once: few enough for a cache, enough to keep two cores busy.
PAIRS = 1 << 18


class Tiles(NamedTuple):
    """Which rows of the bags share a sequence.

    Attributes:
        first: (R,) the first row of a row's sequence.
        place: (R,) which of the rows of its sequence a row is.
        rows: (R,) how many rows its sequence has; 1 for an unused row, which meets only itself.
    """

    first: Array
    place: Array
    rows: Array


def tiles(bags: Ragged) -> Tiles:
    """Find out which rows share a sequence."""
    number = jnp.arange(len(bags.owner), dtype=jnp.int32)
    if not bags.tree:
        return Tiles(first=number, place=jnp.zeros_like(number), rows=jnp.ones_like(number))
    start = jnp.searchsorted(bags.owner, jnp.arange(bags.num_segments + 1)).astype(jnp.int32)
    used = bags.owner < bags.num_segments
    inside = jnp.minimum(bags.owner, bags.num_segments - 1)
    first = jnp.where(used, take(start, inside), number)
    return Tiles(
        first=first,
        place=number - first,
        rows=jnp.where(used, take(start, inside + 1) - first, 1),
    )


def blocks(bags: Ragged, steps: Array, pairs: int | None = None) -> Array:
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


def once(x: Any) -> Any:
    """Keep what was gathered or exponentiated from being computed again for each of its readers."""
    return jax.lax.optimization_barrier(x)


def sum_together(axis: int, *arrays: Array) -> tuple[Array, ...]:
    """Sum several arrays along an axis in one pass, so that what they share is computed once."""
    zeros = tuple(jnp.zeros((), x.dtype) for x in arrays)
    return tuple(jax.lax.reduce(arrays, zeros, lambda x, y: tuple(map(jnp.add, x, y)), (axis,)))
