"""Sums over all pairs of distinct tokens of a sequence, for a large corpus and a kernel on its vocabulary.

A^k_Xs = Σ_r count_r(X) P_sr y^k_r,   s, r tokens of X.

The M tokens that most sequences hold are the frequent ones. Of the reviews of IMDB, 256 tokens are half of
all entries, and have part in 70 % of all pairs. For frequent s the sums are a product of the count matrix
with M rows of P; for frequent r and rare s, products of rows of P, cut to M columns, with the sequence's
counts of the frequent tokens. Only pairs of two rare tokens are gathered from P, and only their derivative
is scattered, tile by tile.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import optimization_barrier
from jax.typing import DTypeLike

from jaxattn.attention.pair_tiles import add_rows, row_blocks, sequence_rows, variadic_sum
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, ragged, take
from jaxattn.data.sizes import check_positions

# With more frequent tokens the products grow as fast as the pairs that are left shrink, for IMDB.
NUM_FREQUENT = 256
# Products with more columns outgrow the cache.
COLUMNS = 64
# Entries in a row of the bags of rare tokens, which have a few dozen.
WIDTH = 16
# Pairs of rare tokens handled at once.
PAIRS = 1 << 19
# Rows of the bags of rare tokens whose rows of P are gathered at once.
ROWS = 256


class FrequentTokens(NamedTuple):
    """The most frequent tokens of a corpus, and what is left without them.

    Attributes:
        tokens: (M,) int32, the frequent tokens.
        slot: (R, W) int32; which of the frequent tokens every entry of the bags is, M for rare tokens.
        counts: (n, M); the counts of the frequent tokens in every sequence.
        rare: the bags of the other tokens; unused rows come last.
        rare_to_bag: where each entry of `rare` lies in the flattened entries of the bags, R W for padding.
    """

    tokens: Array
    slot: Array
    counts: Array
    rare: Ragged
    rare_to_bag: Array


def most_frequent(corpus: Corpus, size: int, dtype: DTypeLike) -> FrequentTokens:
    """Choose the tokens that most sequences hold, and lay the others out anew.

    Args:
        corpus: n sequences over V tokens.
        size: M ≤ V.
        dtype: of the counts.

    Returns:
        The frequent tokens.

    Raises:
        InputError: more sequences than 32-bit numbers can say with their counts of the frequent tokens.
    """
    bags = corpus.bags
    check_positions("counts of frequent tokens", bags.num_segments * size)
    (holders,) = corpus.occurrences.sum((corpus.occurrences.count > 0).astype(jnp.int32))
    tokens = jax.lax.top_k(holders, size)[1].astype(jnp.int32)
    slots = jnp.full(corpus.vocab_size, size, jnp.int32).at[tokens].set(jnp.arange(size, dtype=jnp.int32))
    slot = take(slots, bags.index.astype(jnp.int32))
    is_rare = (bags.count > 0) & (slot == size)
    # The entries of rare tokens are compacted, in order, without a sort.
    num_entries = is_rare.size
    target = jnp.where(is_rare.ravel(), jnp.cumsum(is_rare.ravel(), dtype=jnp.int32) - 1, num_entries)

    def compact(x: Array, rest: int) -> Array:
        x = jnp.broadcast_to(x, is_rare.shape).ravel()
        return jnp.full(num_entries, rest, x.dtype).at[target].set(x, mode="drop", unique_indices=True)

    rare, entry = ragged(
        compact(bags.owner[:, None], bags.num_segments),
        compact(bags.index, 0),
        compact(bags.count, 0),
        segments=bags.num_segments,
        indices=corpus.vocab_size,
        longest=min(corpus.vocab_size - size, _longest(bags)),
        width=WIDTH,
    )
    positions = compact(jnp.arange(num_entries, dtype=jnp.int32).reshape(is_rare.shape), 0)
    rare_to_bag = jnp.append(positions, num_entries)[entry]
    one_hot = (jnp.arange(corpus.vocab_size)[:, None] == tokens).astype(dtype)
    counts = _count_product(bags, one_hot)
    return FrequentTokens(tokens=tokens, slot=slot, counts=counts, rare=rare, rare_to_bag=rare_to_bag)


def forward(
    corpus: Corpus, frequent: FrequentTokens, kernel: Array, columns: tuple[Array, ...], symmetric: bool
) -> tuple[Array, ...]:
    """Sum over the tokens r of every sequence, for each of its tokens s.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        frequent: its most frequent tokens.
        kernel: P, (V, V).
        columns: y, (V,) each.
        symmetric: P is symmetric.

    Returns:
        One A, (R, W), per column; 0 at padding.
    """
    frequent_rows = take(kernel, frequent.tokens).T
    dense = [_count_product(corpus.bags, frequent_rows * y[:, None]) for y in columns]
    weighted = jnp.stack([frequent.counts * take(y, frequent.tokens) for y in columns], axis=1)
    bags, rare = corpus.bags, frequent.rare
    count, token = rare.count.astype(kernel.dtype), rare.index.astype(jnp.int32)
    over_frequent = _products_with_frequent(frequent, kernel if symmetric else kernel.T, weighted)
    over_rare = _rare_products(rare, kernel, tuple(count * take(y, token) for y in columns), symmetric)
    owner = jnp.minimum(bags.owner, bags.num_segments - 1)[:, None]
    position = owner * len(frequent.tokens) + jnp.minimum(frequent.slot, len(frequent.tokens) - 1)
    is_frequent = (bags.count > 0) & (frequent.slot < len(frequent.tokens))
    return tuple(
        _set_rare(frequent, x + y, jnp.where(is_frequent, take(z.ravel(), position), 0))
        for x, y, z in zip(over_frequent, over_rare, dense, strict=True)
    )


def backward(
    corpus: Corpus,
    frequent: FrequentTokens,
    kernel: Array,
    columns: tuple[Array, ...],
    cotangents: tuple[Array, ...],
    symmetric: bool,
) -> tuple[Array, tuple[Array, ...]]:
    """Compute the cotangents of P and y from those of A.

    ∂L/∂P_sr = Σ_X count_r(X) Σ_k Ā^k_Xs y^k_r,   ∂L/∂y^k_r = Σ_X count_r(X) Σ_s P_sr Ā^k_Xs.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        frequent: its most frequent tokens.
        kernel: P, (V, V).
        columns: y, (V,) each.
        cotangents: Ā, (R, W) per column; 0 at padding.
        symmetric: P is symmetric; ∂L/∂P is then right only up to an antisymmetric matrix.

    Returns:
        ∂L/∂P, (V, V), and one ∂L/∂y, (V,), per column.
    """
    bags, rare, tokens = corpus.bags, frequent.rare, frequent.tokens
    size = len(tokens)
    count, token = rare.count.astype(kernel.dtype), rare.index.astype(jnp.int32)
    of_rare = tuple(jnp.append(x.ravel(), 0)[frequent.rare_to_bag] for x in cotangents)
    weighted = tuple(count * take(y, token) for y in columns)
    d_kernel = _rare_outer_products(rare, kernel, of_rare, weighted, symmetric)
    transposed = kernel if symmetric else kernel.T
    products = _rare_products(rare, transposed, of_rare, symmetric)
    d_columns = sum_by_token(
        corpus,
        tuple(_set_rare(frequent, count * x, jnp.zeros_like(frequent.slot, x.dtype)) for x in products),
    )

    is_frequent = frequent.slot < size
    position = jnp.where(
        is_frequent & (bags.count > 0),
        bags.owner[:, None] * size + frequent.slot,
        bags.num_segments * size,
    )
    rows, columns_of_frequent = take(kernel, tokens), take(transposed, tokens)
    # ∂L/∂P_sr for frequent s and every r; and, transposed, for frequent r and every rare s.
    d_rows, d_columns_of_frequent = jnp.zeros_like(rows), jnp.zeros_like(columns_of_frequent)
    present = corpus.occurrences.count > 0
    results = []
    for y, cotangent, d_y in zip(columns, cotangents, d_columns, strict=True):
        dense = jnp.zeros(bags.num_segments * size, cotangent.dtype)
        dense = dense.at[position.ravel()].set(cotangent.ravel(), mode="drop", unique_indices=True)
        from_frequent = _count_product(corpus.occurrences, dense.reshape(-1, size)).T
        others = take(jnp.where(is_frequent, 0, cotangent).ravel(), corpus.occurrence_to_bag)
        others = corpus.occurrences.reweighted(jnp.where(present, others, 0))
        from_rare = _count_product(others, frequent.counts).T
        d_rows += from_frequent * y
        d_columns_of_frequent += from_rare * take(y, tokens)[:, None]
        d_y += (from_frequent * rows).sum(axis=0)
        results.append(d_y.at[tokens].add((from_rare * columns_of_frequent).sum(axis=1)))
    d_kernel = d_kernel.at[tokens].set(d_rows).at[:, tokens].add(d_columns_of_frequent.T)
    return d_kernel, tuple(results)


def sum_by_token(corpus: Corpus, entries: tuple[Array, ...]) -> tuple[Array, ...]:
    """Sum entries of the bags, (R, W) each, by token, (V,) each."""
    present = corpus.occurrences.count > 0
    return corpus.occurrences.sum(
        *(jnp.where(present, take(x.ravel(), corpus.occurrence_to_bag), 0) for x in entries)
    )


def _longest(bags: Ragged) -> int:
    return bags.index.shape[1] * math.prod(level.shape[1] for level in bags.tree)


def _count_product(matrix: Ragged, dense: Array) -> Array:
    """Multiply a count matrix with a dense one, a few columns at a time."""
    panels = jnp.pad(dense, ((0, 0), (0, -dense.shape[1] % COLUMNS)))
    panels = panels.reshape(len(dense), -1, COLUMNS).transpose(1, 0, 2)
    result = jax.lax.map(matrix.matmul, panels).transpose(1, 0, 2)
    return result.reshape(len(result), -1)[:, : dense.shape[1]]


def _set_rare(frequent: FrequentTokens, values: Array, into: Array) -> Array:
    """Write values per entry of the rare bags into an array per entry of all bags."""
    position = frequent.rare_to_bag.ravel()
    flat = into.ravel().at[position].set(values.ravel(), mode="drop", unique_indices=True)
    return flat.reshape(into.shape)


def _num_used(rare: Ragged) -> Array:
    return (rare.owner < rare.num_segments).sum()


def _products_with_frequent(
    frequent: FrequentTokens, transposed: Array, weighted: Array
) -> tuple[Array, ...]:
    """Sum P_sr weighted^k_Xr over frequent r, for the entries s of rare tokens: (R', W) per column."""
    rare, size = frequent.rare, min(ROWS, len(frequent.rare.owner))
    frequent_columns = take(transposed, frequent.tokens).T
    last = len(rare.owner) - size

    def block(b: Array, sums: Array) -> Array:
        # The last block starts early rather than run over the end: it computes some rows again.
        begin = jnp.minimum(b * size, last)
        token = jax.lax.dynamic_slice_in_dim(rare.index, begin, size).astype(jnp.int32)
        owner = jax.lax.dynamic_slice_in_dim(rare.owner, begin, size)
        rows = optimization_barrier(take(frequent_columns, token))
        own = take(weighted, jnp.minimum(owner, rare.num_segments - 1))
        return jax.lax.dynamic_update_slice_in_dim(sums, jnp.einsum("bkm,bwm->bkw", own, rows), begin, 0)

    sums = jnp.zeros((len(rare.owner), weighted.shape[1], rare.index.shape[1]), transposed.dtype)
    sums = jax.lax.fori_loop(0, -(-_num_used(rare) // size), block, sums)
    return tuple(jnp.moveaxis(sums, 1, 0))


def _fold_tiles(rare: Ragged, visit, start):
    """Fold over all tiles of a row i and a row j ≤ i of its sequence, a block at a time.

    carry = visit(carry, i, j, used, same), all (B,) but `same`, which says whether j is i.
    """
    offsets = sequence_rows(rare).offset
    used_row = rare.owner < rare.num_segments
    blocks = row_blocks(rare, jnp.where(used_row, offsets, -1), PAIRS)
    num_rows = len(rare.owner)
    num_idle = (num_rows - _num_used(rare)) // blocks.shape[1]

    def block(b, carry):
        row = blocks[b]
        i = jnp.minimum(row, num_rows - 1)
        offset, used = offsets[i], (row < num_rows) & used_row[i]

        def tile(k, carry):
            return visit(carry, i, i - jnp.minimum(k, offset), used & (k <= offset), k == 0)

        return jax.lax.fori_loop(0, jnp.where(used, offset, 0).max() + 1, tile, carry)

    return jax.lax.fori_loop(num_idle, len(blocks), block, start)


def _rare_products(
    rare: Ragged, kernel: Array, entries: tuple[Array, ...], symmetric: bool
) -> tuple[Array, ...]:
    """Sum P_sr z_Xr over the entries r of the sequence of s: (R', W) for every z, (R', W)."""
    vocab_size, flat = len(kernel), kernel.ravel()
    token = rare.index.astype(jnp.int32)

    def visit(sums, i, j, used, same):
        s, r, *z = optimization_barrier(
            (token[i], token[j], *(z[i] for z in entries), *(z[j] for z in entries))
        )
        z_i, z_j = z[: len(entries)], z[len(entries) :]
        tile = optimization_barrier(take(flat, s[:, :, None] * vocab_size + r[:, None, :]))
        to_i = variadic_sum(2, *(tile * z[:, None, :] for z in z_j))
        if symmetric:
            to_j = variadic_sum(1, *(tile * z[:, :, None] for z in z_i))
        else:
            mirrored = optimization_barrier(take(flat, r[:, :, None] * vocab_size + s[:, None, :]))
            to_j = variadic_sum(2, *(mirrored * z[:, None, :] for z in z_i))
        return add_rows(add_rows(sums, j, used & ~same, to_j), i, used, to_i)

    return _fold_tiles(rare, visit, tuple(jnp.zeros_like(z) for z in entries))


def _rare_outer_products(
    rare: Ragged, kernel: Array, left: tuple[Array, ...], right: tuple[Array, ...], symmetric: bool
) -> Array:
    """Sum Σ_X Σ_k left^k_Xs right^k_Xr for all s and r, (V, V).

    If `symmetric`, right only up to an antisymmetric matrix.
    """
    vocab_size = len(kernel)
    token = rare.index.astype(jnp.int32)

    def outer(x, y):
        return sum(a[:, :, None] * b[:, None, :] for a, b in zip(x, y, strict=True))

    def visit(total, i, j, used, same):
        left_i, left_j = ([jnp.where(used[:, None], x[n], 0) for x in left] for n in (i, j))
        right_i, right_j = ([x[n] for x in right] for n in (i, j))
        s, r = token[i], token[j]
        position = s[:, :, None] * vocab_size + r[:, None, :]
        tile, mirrored = outer(left_i, right_j), jnp.where(same, 0, outer(left_j, right_i))
        if symmetric:
            return total.at[position].add(tile + jnp.swapaxes(mirrored, 1, 2))
        mirrored_position = r[:, :, None] * vocab_size + s[:, None, :]
        return total.at[position].add(tile).at[mirrored_position].add(mirrored)

    return _fold_tiles(rare, visit, jnp.zeros(vocab_size**2, kernel.dtype)).reshape(kernel.shape)
