"""Self-attention before the read-out, computed only for pairs of tokens in the same sequence.

The sequences are processed in blocks. For each sequence X, the rows Q_X and K_X of its queries and keys are
gathered, and their matrix product G_X = Q_X K_Xᵀ is computed. The attention weights w_X = Softmax(G_X)
average scalars x instead of embedding rows, x' = w x. The backward pass recomputes G_X unless it was stored.
The derivatives are also matrix products, whose rows are then summed by token:

    ∂L/∂Q_X = D K_X,   ∂L/∂K_X = Dᵀ Q_X,   D_sr = w_sr Σ_x x̄'_s (x_r - x'_s),   x̄' = ∂L/∂x'.

No array with V² entries, or with an entry for every pair in a large corpus, is ever formed, and no
scatter-add runs on accelerators.

A bag of tokens occupies one or more rows of fixed width. Sequences are sorted by their number of rows, so
that a block contains sequences of similar size. Sizes are rounded up to one of a few values, each with its
own compiled program. The number of blocks of each size is known only at run time. The cost therefore depends
on the actual sequence lengths rather than on the maximum length.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.lax import optimization_barrier
from jaxtyping import Array, Float

from jaxattn.attention.softmax import attend_entries, require_rows
from jaxattn.core import backend
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import MAX_POSITIONS, Ragged, positions, ragged, take

# Ratio of successive maximum numbers of bag rows per sequence in a block. The larger ratio on accelerators
# means fewer block sizes to compile, but more padding.
GROWTH, GROWTH_ON_ACCELERATORS = 1.2, 2.0
# Maximum number of table entries and pairs stored at a time, limited by CPU cache or accelerator memory.
NUMBERS, NUMBERS_ON_ACCELERATORS = 1 << 19, 1 << 26


class Block(NamedTuple):
    """Block of B sequences in the bag layout, each padded to m rows and U entries.

    Attributes:
        rows: (B, m) int32; indices of rows in the bags; R, the number of rows, for padding.
        tokens: (B, U) int32; token ids, arbitrary for padding.
        counts: (B, U); multiplicities, 0 for padding.
        offset: () int32; total number of pairs in all previous blocks. Each block has B U² pairs.
    """

    rows: Array
    tokens: Array
    counts: Array
    offset: Array

    def take(self, entries: Array) -> Array:
        """Return this block's part of a per-entry array, (R, W), as (B, U). Padding is arbitrary."""
        return entries[jnp.minimum(self.rows, len(entries) - 1)].reshape(self.tokens.shape)

    def put(self, into: Array, entries: Array) -> Array:
        """Write this block's values, (B, U), into a per-entry array, (R, W), and return the new array."""
        values = entries.reshape(*self.rows.shape, -1)
        return into.at[self.rows].set(values, mode="drop", unique_indices=True)


class _Size(NamedTuple):
    """Size of a block: maximum number of rows of the bag layout per sequence, and number of sequences."""

    rows: int
    together: int


def is_single_block(bags: Ragged, width: int) -> bool:
    """Return whether `fold` visits all sequences in a single block."""
    (first, *others) = _sizes(bags, width)
    return not others and first.together == bags.num_segments


def max_pairs(bags: Ragged, width: int) -> int:
    """Return an upper bound on the total number of pairs in all blocks of `fold`."""
    # The last block of each size may need padding.
    every = [(size, (size.rows * bags.index.shape[1]) ** 2) for size in _sizes(bags, width)]
    if is_single_block(bags, width):
        return bags.num_segments * every[0][1]
    return bags.num_segments * every[-1][1] + sum(size.together * pairs for size, pairs in every)


def largest_block(bags: Ragged, width: int) -> int:
    """Return the number of pairs in the largest block of `fold`."""
    return max(size.together * (size.rows * bags.index.shape[1]) ** 2 for size in _sizes(bags, width))


def fold(bags: Ragged, width: int, visit: Callable[[Any, Block], Any], carry: Any) -> Any:
    """Fold `visit` over all sequences, one block at a time, and return the final carry.

    Args:
        bags: n sequences.
        width: number of values stored per bag entry, in addition to those per pair of entries. A larger width
            gives smaller blocks.
        visit: function (carry, block) -> carry. Shorter sequences in a block are padded.
        carry: initial carry.
    """
    sizes = _sizes(bags, width)
    start = positions(bags.owner, jnp.arange(bags.num_segments + 1)).astype(jnp.int32)
    rows_of = start[1:] - start[:-1]
    order = jnp.argsort(rows_of).astype(jnp.int32)
    bounds = (rows_of <= jnp.array([0, *(size.rows for size in sizes)])[:, None]).sum(axis=1)

    def step(size: _Size, begin: Array, end: Array, number: Any, carried: Any) -> Any:
        before, carry = carried
        offset = begin + number * size.together + jnp.arange(size.together)
        sequence = order[jnp.minimum(offset, bags.num_segments - 1)]
        here = jnp.where(offset < end, rows_of[sequence], 0)
        block = _block(bags, start[sequence], here, size.rows, before)
        return before + block.tokens.size * block.tokens.shape[1], visit(carry, block)

    carried = jnp.int32(0), carry
    if is_single_block(bags, width):
        return step(sizes[0], bounds[0], bounds[1], 0, carried)[1]
    for size, begin, end in zip(sizes, bounds[:-1], bounds[1:], strict=True):
        blocks = -(-(end - begin) // size.together)
        carried = jax.lax.fori_loop(0, blocks, partial(step, size, begin, end), carried)
    return carried[1]


def _block(bags: Ragged, first: Array, present: Array, rows: int, offset: Array) -> Block:
    number = jnp.arange(rows, dtype=jnp.int32)
    is_row = number < present[:, None]
    row = jnp.where(is_row, first[:, None] + number, 0)
    shape = (len(first), -1)
    return Block(
        rows=jnp.where(is_row, row, len(bags.owner)),
        tokens=bags.index[row].astype(jnp.int32).reshape(shape),
        counts=jnp.where(is_row[:, :, None], bags.count[row], 0).reshape(shape),
        offset=offset,
    )


def _sizes(bags: Ragged, width: int) -> list[_Size]:
    on_cpu = backend.platform() == "cpu"
    growth = GROWTH if on_cpu else GROWTH_ON_ACCELERATORS
    # A block that consists of a single sequence may exceed this limit.
    numbers = NUMBERS if on_cpu else NUMBERS_ON_ACCELERATORS
    longest = math.prod(level.shape[1] for level in bags.tree)
    found: list[_Size] = []
    rows = 0
    while rows < longest:
        rows = min(longest, max(rows + 1, int(growth * rows)))
        entries = rows * bags.index.shape[1]
        together = max(1, min(bags.num_segments, numbers // (entries * (width + entries))))
        found.append(_Size(rows, together))
    return found


# Maximum number of query-key products that a CPU stores for the backward pass if there are multiple blocks;
# accelerators then recompute all of them. The products of a single block are always stored.
KEPT = 1 << 25
# Row width of the layout for per-token sums. Most tokens occur in only a few sequences in a block.
_WIDTH = 8


@partial(jax.jit, static_argnames="residual")
def two_layer_attention(
    corpus: Corpus,
    queries: Float[Array, "V d"],
    keys: Float[Array, "V d"] | None,
    scores: Float[Array, " V"],
    values: Array,
    *,
    residual: bool,
) -> Array:
    """Mix scores and values by self-attention, x' = Softmax(Q_X K_Xᵀ) x_X, then attend to the mixed values.

    Args:
        corpus: n sequences over V tokens.
        queries: Q, (V, d). Q Kᵀ may have any finite spread.
        keys: K, (V, d). None means K = Q.
        scores: a, (V,), of any finite spread.
        values: γ, (V,) or (V, K).
        residual: True to use x' + x_X instead of x'.

    Returns:
        f, (n,) or (n, K).

    Raises:
        InputError: queries, keys, scores or values do not have V rows.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> zero = jnp.zeros((3, 4))
        >>> values = jnp.array([3.0, -1.0, 1.0])
        >>> f = ja.attention.two_layer_attention(corpus, zero, zero, jnp.zeros(3), values, residual=False)
        >>> f.tolist()
        [2.0, 0.0]
    """
    keyed = {} if keys is None else {"keys": keys}
    require_rows(corpus, queries=queries, scores=scores, values=values, **keyed)
    columns = (scores, values) if values.ndim == 1 else (scores, *values.T)
    score, *mixed = attend_within(corpus, queries, keys, columns, residual)
    result = attend_entries(corpus.bags, score, tuple(mixed))
    return result[0] if values.ndim == 1 else jnp.stack(result, axis=1)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend_within(
    corpus: Corpus, queries: Array, keys: Array | None, columns: tuple[Array, ...], residual: bool
) -> tuple[Array, ...]:
    """Attend from each distinct token to all tokens of its sequence, x' = Softmax(G_X) x_X (+ x_X).

    Args:
        corpus: n sequences over V tokens, with R bag rows of W entries.
        queries: Q, (V, d). G = Q Kᵀ may have any finite spread.
        keys: K, (V, d). None means K = Q.
        columns: x, (V,) each.
        residual: True to add x_X.

    Returns:
        One x', (R, W), per column. Values at padded entries are finite but arbitrary.
    """
    return _forward(corpus, queries, keys, columns, residual)[0]


def _forward(
    corpus: Corpus, queries: Array, keys: Array | None, columns: tuple[Array, ...], residual: bool
) -> tuple[Any, Any]:
    compute = _one_by_one_if_many_blocks(partial(_mix, residual=residual), corpus, queries)
    mixed, kept = compute(corpus, queries, keys, columns)
    return mixed, (corpus, queries, keys, columns, kept)


def _backward(residual: bool, residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    corpus, queries, *_ = residuals
    compute = _one_by_one_if_many_blocks(partial(_cotangents, residual=residual), corpus, queries)
    return None, *compute(*residuals, cotangents)


attend_within.defvjp(_forward, _backward)


def _one_by_one_if_many_blocks(
    function: Callable[..., Any], corpus: Corpus, queries: Array
) -> Callable[..., Any]:
    # Under vmap, every batch member would run as many loop iterations as the member with the most iterations.
    return function if is_single_block(corpus.bags, queries.shape[1]) else sequential_vmap(function)


def _mix(corpus: Corpus, queries: Array, keys: Array | None, columns: Any, *, residual: bool) -> Any:
    """Return x' for each column, and the products G to keep for the backward pass, as one array."""

    def visit(carry: Any, block: Block) -> Any:
        out, kept = carry
        gram = _products(*_rows(block, queries, keys))
        _, values, mixed = _attention(block, gram, columns)
        mixed = mixed + values if residual else mixed
        out = tuple(block.put(x, mixed[:, :, k]) for k, x in enumerate(out))
        # Write the products that exceed the storage limit past the end, where they are never read.
        offset = (jnp.minimum(block.offset, most),)
        return out, jax.lax.dynamic_update_slice(kept, gram.ravel(), offset) if most else kept

    most, width = _max_kept(corpus, queries), queries.shape[1]
    end = 0 if is_single_block(corpus.bags, width) else largest_block(corpus.bags, width)
    start = tuple(jnp.zeros(corpus.bags.index.shape, x.dtype) for x in columns)
    kept = jnp.zeros(most and most + end, queries.dtype)
    return fold(corpus.bags, width, visit, (start, kept))


def _cotangents(
    corpus: Corpus,
    queries: Array,
    keys: Array | None,
    columns: Any,
    kept: Array,
    cotangents: Any,
    *,
    residual: bool,
) -> Any:
    def recompute(block: Block, q: Array, k: Array) -> Array:
        shape = (*block.tokens.shape, block.tokens.shape[1])
        if most == 0:
            return _products(q, k)
        found = partial(jax.lax.dynamic_slice, kept, (block.offset,), (math.prod(shape),))
        if max_pairs(corpus.bags, queries.shape[1]) <= most:
            return found().reshape(shape)
        is_kept = block.offset + math.prod(shape) <= most
        return jax.lax.cond(is_kept, lambda: found().reshape(shape), lambda: _products(q, k))

    def visit(carry: Any, block: Block) -> Any:
        present = block.counts[:, :, None] > 0
        d_mixed = jnp.where(present, jnp.stack([block.take(x) for x in cotangents], axis=2), 0)
        q, k = _rows(block, queries, keys)
        weight, values, mixed = _attention(block, recompute(block, q, k), columns)
        d_weight = jnp.einsum("bsk,brk->bsr", d_mixed, values)
        d_gram = weight * (d_weight - (d_mixed * mixed).sum(axis=2, keepdims=True))
        d_values = jnp.einsum("bsr,bsk->brk", weight, d_mixed)
        if residual:
            d_values += d_mixed
        if keys is None:
            d_gram = optimization_barrier(d_gram)
            d_rows = [jnp.einsum("bsr,brd->bsd", d_gram + jnp.swapaxes(d_gram, 1, 2), q)]
        else:
            d_rows = [jnp.einsum("bsr,brd->bsd", d_gram, k), jnp.einsum("bsr,bsd->brd", d_gram, q)]
        return _add_by_token(carry, block, (*d_rows, d_values))

    most = _max_kept(corpus, queries)
    tables = (queries,) if keys is None else (queries, keys)
    start = (*map(jnp.zeros_like, tables), jnp.zeros((corpus.vocab_size, len(columns)), queries.dtype))
    *d_tables, d_columns = fold(corpus.bags, queries.shape[1], visit, start)
    return d_tables[0], d_tables[1] if keys is not None else None, tuple(d_columns.T)


def _max_kept(corpus: Corpus, queries: Array) -> int:
    """Return how many of the products G of queries and keys to store for the backward pass.

    If there is a single block, all are stored. If there are multiple blocks, accelerators store none; a CPU
    stores at most 2 · num_pairs, or none if that would exceed KEPT.
    """
    most, width = max_pairs(corpus.bags, queries.shape[1]), queries.shape[1]
    if is_single_block(corpus.bags, width):
        return most
    expected = min(most, 2 * corpus.num_pairs)
    fits = backend.platform() == "cpu" and expected <= KEPT and most < MAX_POSITIONS
    return expected if fits else 0


def _rows(block: Block, queries: Array, keys: Array | None) -> tuple[Array, Array]:
    q = optimization_barrier(take(queries, block.tokens))
    return q, q if keys is None else optimization_barrier(take(keys, block.tokens))


def _products(q: Array, k: Array) -> Array:
    return optimization_barrier(jnp.einsum("bsd,brd->bsr", q, k))


def _attention(block: Block, gram: Array, columns: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    """Return the attention w, (B, U, U), the C columns x by entry, and their averages x', (B, U, C) each."""
    count = block.counts[:, None, :].astype(gram.dtype)
    logit = jnp.where(count > 0, gram, -jnp.inf)
    # All logits of a padding sequence are -inf, so bound their maximum from below by a finite number.
    top = jnp.maximum(logit.max(axis=2, keepdims=True), jnp.finfo(gram.dtype).min)
    weight = optimization_barrier(count * jnp.exp(logit - top))
    normaliser = weight.sum(axis=2, keepdims=True)
    weight = weight / jnp.where(normaliser > 0, normaliser, 1)
    values = jnp.stack([take(x, block.tokens) for x in columns], axis=2)
    return weight, values, jnp.einsum("bsr,brk->bsk", weight, values)


def _add_by_token(totals: tuple[Array, ...], block: Block, rows: tuple[Array, ...]) -> tuple[Array, ...]:
    vocab_size = len(totals[0])
    token = jnp.where(block.counts > 0, block.tokens, vocab_size).ravel()
    flat = [x.reshape(len(token), -1) for x in rows]
    if backend.platform() == "cpu":
        return tuple(x.at[token].add(y, mode="drop") for x, y in zip(totals, flat, strict=True))
    order = jnp.argsort(token)
    by_token, _ = ragged(
        token[order],
        order,
        (token[order] < vocab_size).astype(jnp.int32),
        segments=vocab_size,
        indices=len(token),
        longest=len(block.tokens),
        width=_WIDTH,
    )
    return tuple(x + by_token.gathered_sums(y) for x, y in zip(totals, flat, strict=True))
