"""Sparse matrices stored as variable-length segments in fixed-width rows, so that gathers can sum them.

Scatter-adds are slow and nondeterministic on GPUs. Here a segment of k entries occupies ceil(k / W) rows of
W entries. Each row is reduced separately, and a shallow tree of gathers adds the rows of a segment. All
shapes are static for a given number of entries, so the layout can be built inside jit and under vmap.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jax.custom_batching import custom_vmap

from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Brief

# Indices are stored as 32-bit integers.
MAX_POSITIONS = 2**31 - 1
WIDTH = 32

# Number of entries at or above which a matrix counts as large.
LARGE = 1 << 18
# The same threshold on an accelerator, for a matrix without factors: there is no cache to overflow, and seeds
# with separate corpora are vmapped as long as their arrays fit in memory.
LARGE_ON_ACCELERATORS = 1 << 24

# Row lengths of the factors of a large matrix: the maximum numbers of values added sequentially, in the first
# factor and in the factors that add partial sums.
RUN, FAN = 256, 16

# Number of (entry, value) pairs up to which comparing all pairs is faster than bisection on an accelerator.
COMPARED = 1 << 29

# Maximum size of a dense matrix on a TPU, in bytes, and the maximum count that it may contain; bfloat16
# represents counts up to this value exactly.
DENSE, EXACT = 1 << 30, 255

# Eigen's kernel processes eight columns at a time, so a partial group takes as long as a full one.
PACKET = 8


@struct.dataclass(repr=False)
class Ragged(Brief):
    """Sparse matrix of multiplicities count[segment, index], stored in R rows of W entries.

    Attributes:
        index: (R, W) unsigned; index of each entry, 0 where count is 0.
        count: (R, W) int; multiplicity of each entry, 0 for padding.
        owner: (R,) int32; segment of each row, `num_segments` for an unused row.
        tree: (R_k, W) int32 for each level k; for each row, the indices of the rows that it sums from the
            level below. An index equal to the number of rows in that level is padding. Empty if every segment
            is a single row.
        num_segments: number of segments S (static).
        factors: factors of the matrix in compressed sparse row format, for products with many columns;
            the first factor is applied first. Each has entries, float32 (N,), column indices, int32 (N,),
            and row starts, int32 (rows + 1,). None unless the matrix is large and was built on the host.
        dense: the dense matrix, (num_segments, num_indices) uint8. For many columns, multiplying by it is
            faster than gathering on a TPU. Empty unless the matrix is large, was built for a TPU, and
            fits in memory.
    """

    index: Array
    count: Array
    owner: Array
    tree: tuple[Array, ...]
    num_segments: int = struct.field(pytree_node=False)
    factors: tuple[tuple[Array, Array, Array], ...] | None = None
    dense: tuple[Array, ...] = ()

    @property
    def is_large(self) -> bool:
        """True if the matrix is large enough for the choice of multiplication method to matter."""
        own = self.factors is None and backend.platform() != "cpu"
        return self.index.size >= (LARGE_ON_ACCELERATORS if own else LARGE)

    def dot(self, *columns: Array) -> tuple[Array, ...]:
        """Multiply the matrix by vectors (num_indices,) in one pass. Return one product, (S,), per vector."""
        index, count = self.index.astype(jnp.int32), self.count.astype(columns[0].dtype)
        return self.sum(*(count * take(x, index) for x in columns))

    def matmul(self, dense: Array) -> Array:
        """Return the product of the matrix and a dense matrix, (num_indices, C), of shape (S, C)."""
        if self.factors is None:
            return jnp.stack(self.dot(*dense.T), axis=1)
        return jax.lax.platform_dependent(
            self,
            dense,
            cpu=Ragged._matmul_compressed,
            tpu=Ragged._matmul_dense if self.dense else Ragged.gathered_sums,
            default=Ragged.gathered_sums,
        )

    def gathered_sums(self, dense: Array) -> Array:
        """Compute `matmul` with gathers, the fastest method on most accelerators."""
        return jax.lax.platform_dependent(
            self, dense, cuda=Ragged._matmul_at_once, default=Ragged._matmul_in_rows
        )

    def _matmul_compressed(self, dense: Array) -> Array:
        from jax.experimental.sparse import BCSR  # slow to import

        columns = dense.shape[1]
        dense = jnp.pad(dense, ((0, 0), (0, -columns % PACKET)))
        for entries, index, start in self.factors or ():
            shape = (len(start) - 1, len(dense))
            dense = BCSR((entries.astype(dense.dtype), index, start), shape=shape) @ dense
        return dense[:, :columns]

    def _matmul_at_once(self, dense: Array) -> Array:
        # A GPU sums entries while gathering them, so an (R, W, C) array is never stored.
        entries = self.count[:, :, None].astype(dense.dtype) * take(dense, self.index.astype(jnp.int32))
        return self._climb(entries.sum(axis=1), 0.0, jnp.sum)

    def _matmul_dense(self, columns: Array) -> Array:
        # One bfloat16 pass is exact for counts up to `EXACT`; columns need three passes for full precision.
        precision = jax.lax.Precision.DEFAULT, jax.lax.Precision.HIGHEST
        # Without this barrier, XLA would turn a reshape of the columns into a padded convolution.
        columns = jax.lax.optimization_barrier(columns)
        dense = jnp.asarray(self.dense[0]).astype(columns.dtype)
        return jax.lax.optimization_barrier(jnp.matmul(dense, columns, precision=precision))

    def _matmul_in_rows(self, dense: Array) -> Array:
        def add(j: Any, rows: Array) -> Array:
            index = jax.lax.dynamic_index_in_dim(self.index, j, 1, keepdims=False).astype(jnp.int32)
            count = jax.lax.dynamic_index_in_dim(self.count, j, 1).astype(dense.dtype)
            return rows + count * take(dense, index)

        # Processing all entries at once would store an (R, W, C) array.
        rows = jnp.zeros((len(self.owner), dense.shape[1]), dense.dtype)
        rows = jax.lax.fori_loop(0, self.index.shape[1], add, rows)
        return self._climb(rows, 0.0, jnp.sum)

    def sum(self, *entries: Array) -> tuple[Array, ...]:
        """Sum per-entry values, (R, W), within each segment. Return one vector of sums, (S,), per input."""
        zeros = tuple(jnp.zeros((), x.dtype) for x in entries)
        # A single variadic reduction, unlike separate sums, reads index and count only once for all columns.
        rows = jax.lax.reduce(entries, zeros, _add, (1,))
        return tuple(self._climb(x, 0.0, jnp.sum) for x in rows)

    def max(self, entries: Array) -> Array:
        """Return the maximum of per-entry values, (R, W), in each segment, (S,), ignoring NaN.

        The maximum of an empty segment is -inf.
        """
        rows = jax.lax.reduce(entries, jnp.array(-jnp.inf, entries.dtype), _larger, (1,))
        return self._climb(rows, -jnp.inf, jnp.max)

    def softmax(self, score: Array, *columns: Array) -> tuple[tuple[Array, ...], Array, Array, Array]:
        """Average entries in each segment with weights count · exp(score), stably for any spread of scores.

        Args:
            score: (R, W).
            columns: values to average, (R, W) each.

        Returns:
            One (S,) average per column; the largest score in each segment, (S,); the sum of the weights in
            units of exp(this score), (S,); and the weights in the same units, (R, W). The largest score and
            the sum are not combined into a logsumexp, because for scores around 1e4 in float32 it would round
            away small differences.
        """
        score = jnp.where(self.count > 0, score, -jnp.inf)
        top = self.max(score)
        # Padding segments have no entries; shifting their scores by 0 keeps the weights at exp(-inf) = 0.
        top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
        weight = self.count.astype(score.dtype) * jnp.exp(score - self.spread(top))
        normaliser, *sums = self.sum(weight, *(weight * x for x in columns))
        return tuple(x / normaliser for x in sums), top, normaliser, weight

    def spread(self, per_segment: Array) -> Array:
        """Return per-segment values, (S,), repeated for each row of the segment, (R, 1)."""
        return take(per_segment, jnp.minimum(self.owner, self.num_segments - 1))[:, None]

    def _climb(self, rows: Array, padding: float, reduce: Callable[..., Array]) -> Array:
        for level in self.tree:
            padded = jnp.concatenate([rows, jnp.full((1, *rows.shape[1:]), padding, rows.dtype)])
            rows = reduce(take(padded, level), axis=1)
        return rows


def _add(x: tuple[Array, ...], y: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(map(jnp.add, x, y))


def _larger(x: Array, y: Array) -> Array:
    # `maximum` would propagate NaN but takes twice as long. A NaN score shows up in the weights anyway.
    return jnp.where(x > y, x, y)


def take(x: Array, index: Array) -> Array:
    """Gather x[index] without bounds checks."""
    if backend.platform() != "gpu":
        return _take(x, index)
    return _take_flat(x, index) if jnp.issubdtype(x.dtype, jnp.inexact) else _take_from_batch(x, index)


def _take(x: Array, index: Array) -> Array:
    return x.at[index].get(mode="promise_in_bounds")


@custom_vmap
def _take_from_batch(x: Array, index: Array) -> Array:
    return _take(x, index)


@_take_from_batch.def_vmap
def _rule(size: int, batched: list[bool], x: Any, index: Any) -> tuple[Array, bool]:
    # Gather from the concatenated batch; otherwise XLA would store (batch, index) pairs on a GPU.
    axes = tuple(0 if mapped else None for mapped in batched)
    if not all(batched) or size * x.shape[1] > MAX_POSITIONS:
        return jax.vmap(_take, axes, axis_size=size)(x, index), True
    first = jnp.arange(size, dtype=jnp.int32).reshape(-1, *(1,) * (index.ndim - 1)) * x.shape[1]
    return _take(x.reshape(-1, *x.shape[2:]), index.astype(jnp.int32) + first), True


@jax.custom_jvp
def _take_flat(x: Array, index: Array) -> Array:
    return _take_from_batch(x, index)


@_take_flat.defjvp
def _take_derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
    # Use plain gathers, because they can be transposed.
    return _take_flat(*primals), _take(tangents[0], primals[1])


def ragged(
    segment: Array | np.ndarray,
    index: Array | np.ndarray,
    count: Array | np.ndarray,
    *,
    segments: int,
    indices: int,
    longest: int,
    width: int = WIDTH,
) -> tuple[Ragged, Any]:
    """Build a matrix from entries sorted by segment, given as NumPy arrays or traced JAX arrays.

    Args:
        segment: (N,) int, sorted; entries with a segment ≥ `segments` are dropped.
        index: (N,) int, each in [0, indices).
        count: (N,) int; multiplicities. Traced arrays keep their dtype; others are cast to the smallest
            sufficient dtype.
        segments: number of segments S.
        indices: number of possible indices.
        longest: upper bound on the number of entries in a segment.
        width: W, at most `longest`.

    Returns:
        The matrix, with at most R = ceil(N / W) + S rows, or S rows if `longest` ≤ W; and the index of the
        entry at each position, (R, W), N for padding.

    Raises:
        InputError: there are too many entries, including padding, for 32-bit indices.
    """
    xp = segment.__array_namespace__()
    width = max(1, min(width, longest))
    check_positions("corpus", max(segments, indices, len(segment)))
    entry, owner, present = _rows(xp, segment, segments, width, longest)
    check_positions("corpus", entry.size)
    clipped = xp.minimum(entry, max(len(segment) - 1, 0))
    tree = []
    rows, longest_rows, below = owner, math.ceil(longest / width), entry.shape[0]
    while longest > width:
        width = min(width, longest_rows)
        level, rows, valid = _rows(xp, rows, segments, width, longest_rows)
        tree.append(xp.where(valid, level, below).astype(np.int32))
        longest, longest_rows, below = longest_rows, math.ceil(longest_rows / width), level.shape[0]
    layout = Ragged(
        index=xp.where(present, index[clipped], 0).astype(np.min_scalar_type(max(indices - 1, 0))),
        count=xp.where(present, count[clipped], 0).astype(
            np.min_scalar_type(int(count.max(initial=0))) if xp is np else count.dtype
        ),
        owner=owner.astype(np.int32),
        tree=tuple(tree),
        num_segments=segments,
        factors=_factors(segment, index, count, segments),
        dense=_dense(segment, index, count, (segments, indices)),
    )
    return layout, xp.where(present, clipped, len(segment)).astype(np.int32)


def check_positions(name: str, number: int) -> None:
    """Raise InputError if an array has too many entries for 32-bit indices."""
    if number > MAX_POSITIONS:
        raise InputError(
            f"{name}: {number:,} entries exceed the 32-bit index limit of "
            f"{MAX_POSITIONS:,}; use fewer or shorter sequences, or a smaller vocabulary"
        )


def positions(ordered: Any, values: Any, side: Literal["left", "right"] = "left") -> Any:
    """Return the insertion positions of values in an ascending array, like `searchsorted`."""
    if isinstance(ordered, np.ndarray):
        return np.searchsorted(ordered, values, side=side)
    every = backend.platform() != "cpu" and ordered.size * values.size <= COMPARED
    return jnp.searchsorted(ordered, values, side=side, method="compare_all" if every else "scan")


def _factors(segment: Any, index: Any, count: Any, segments: int) -> Any:
    if not isinstance(count, np.ndarray) or len(count) < LARGE:
        return None
    start = np.searchsorted(segment, np.arange(segments + 1))
    entries, index = count[: start[-1]].astype(np.float32), index[: start[-1]].astype(np.int32)
    factors = []
    # The kernel sums each row sequentially. For a token that occurs in 25,000 sequences, this would lose two
    # digits in float32; summing partial sums loses none.
    width = RUN
    while (sizes := np.diff(start)).max(initial=0) > width:
        rows = -(-sizes // width)
        ends = np.cumsum(rows)
        number = np.arange(ends[-1])
        cut = np.repeat(start[:-1] - width * (ends - rows), rows) + width * number
        factors.append((entries, index, np.append(cut, start[-1]).astype(np.int32)))
        entries, index, start = np.ones(len(number), np.float32), number.astype(np.int32), np.append(0, ends)
        width = FAN
    return (*factors, (entries, index, start.astype(np.int32)))


def _dense(segment: Any, index: Any, count: Any, shape: tuple[int, int]) -> tuple[Any, ...]:
    if backend.platform() != "tpu" or not isinstance(count, np.ndarray) or len(count) < LARGE:
        return ()
    if math.prod(shape) > DENSE or count.max() > EXACT:
        return ()
    present = segment < shape[0]
    dense = np.zeros(shape, np.uint8)
    dense[segment[present], index[present]] = count[present]
    return (dense,)


def _rows(xp: Any, segment: Any, segments: int, width: int, longest: int) -> tuple[Any, Any, Any]:
    """Split sorted entries into rows.

    Returns:
        Entry indices (R, W), segments (R,), and a mask of real entries (R, W).
    """
    start = positions(segment, xp.arange(segments + 1))
    if longest <= width:
        owner = xp.arange(segments)
        entry = start[:-1, None] + xp.arange(width)
        return entry, owner, entry < start[1:, None]
    rows_end = xp.cumsum(-(-(start[1:] - start[:-1]) // width))
    bound = math.ceil(len(segment) / width) + segments
    number = int(rows_end[-1]) if isinstance(rows_end, np.ndarray) else bound
    row = xp.arange(number)
    owner = positions(rows_end, row, side="right")
    inside = xp.minimum(owner, segments - 1)
    rows_start = xp.concatenate([xp.zeros(1, rows_end.dtype), rows_end[:-1]])
    entry = (start[inside] + (row - rows_start[inside]) * width)[:, None] + xp.arange(width)
    return entry, owner, (entry < start[inside + 1][:, None]) & (owner < segments)[:, None]
