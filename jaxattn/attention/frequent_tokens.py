"""Sums over all pairs of distinct tokens of a sequence, for a large corpus and fixed weights of pairs.

A^k_Xs = Σ_r count_r(X) P_sr y^k_r,   s, r tokens of X.

The M most frequent tokens are the window. Of the reviews of IMDB, 256 tokens are half of all entries, and
have part in 70 % of all pairs. For s in the window the sums are a product of the count matrix with M rows of
P; for r in the window and s outside, rows of P, cut to M columns, meet the sequence's counts of the window.
Only pairs of two rare tokens are gathered from P, and only their derivative is scattered, tile by tile.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from jaxattn.attention.pair_tiles import add_rows, blocks, once, sum_together, tiles
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, ragged, take

# The products grow with the window as fast as the pairs that are left shrink, around this size for IMDB.
TOKENS = 256
# Products with more columns outgrow the cache.
COLUMNS = 64
# Entries in a row of the bags of rare tokens, which have a few dozen.
WIDTH = 16
# Pairs of rare tokens handled at once.
PAIRS = 1 << 19
# Rows of the bags of rare tokens whose rows of P are gathered at once.
ROWS = 256


class Window(NamedTuple):
    """The most frequent tokens of a corpus, and what is left without them.

    Attributes:
        tokens: (M,) int32, the window.
        slot: (R, W) int32; the place in the window of every entry of the bags, M for rare tokens.
        counts: (n, M); the counts of the window in every sequence.
        rare: the bags without the window; unused rows come last.
        entry: where each entry of `rare` lies in the flattened entries of the bags, R W for padding.
    """

    tokens: Array
    slot: Array
    counts: Array
    rare: Ragged
    entry: Array


def window(corpus: Corpus, size: int, dtype: DTypeLike) -> Window:
    """Choose the tokens that most sequences hold, and lay the others out anew.

    Args:
        corpus: n sequences over V tokens.
        size: M ≤ V.
        dtype: of the counts.

    Returns:
        The window.
    """
    bags = corpus.bags
    (holders,) = corpus.occurrences.sum((corpus.occurrences.count > 0).astype(jnp.int32))
    tokens = jax.lax.top_k(holders, size)[1].astype(jnp.int32)
    slots = jnp.full(corpus.vocab_size, size, jnp.int32).at[tokens].set(jnp.arange(size, dtype=jnp.int32))
    slot = take(slots, bags.index.astype(jnp.int32))
    present = (bags.count > 0) & (slot == size)
    # The entries of rare tokens close up, in order, without a sort.
    number = present.size
    target = jnp.where(present.ravel(), jnp.cumsum(present.ravel(), dtype=jnp.int32) - 1, number)

    def close_up(x: Array, rest: int) -> Array:
        x = jnp.broadcast_to(x, present.shape).ravel()
        return jnp.full(number, rest, x.dtype).at[target].set(x, mode="drop", unique_indices=True)

    rare, place = ragged(
        close_up(bags.owner[:, None], bags.num_segments),
        close_up(bags.index, 0),
        close_up(bags.count, 0),
        segments=bags.num_segments,
        indices=corpus.vocab_size,
        longest=min(corpus.vocab_size - size, _longest(bags)),
        width=WIDTH,
    )
    entry = jnp.append(close_up(jnp.arange(number, dtype=jnp.int32).reshape(present.shape), 0), number)[place]
    one_hot = (jnp.arange(corpus.vocab_size)[:, None] == tokens).astype(dtype)
    return Window(tokens=tokens, slot=slot, counts=_product(bags, one_hot), rare=rare, entry=entry)


def forward(
    corpus: Corpus, within: Window, pairs: Array, columns: tuple[Array, ...], symmetric: bool
) -> tuple[Array, ...]:
    """Sum over the tokens r of every sequence, for each of its tokens s.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        within: its window.
        pairs: P, (V, V).
        columns: y, (V,) each.
        symmetric: P is symmetric.

    Returns:
        One A, (R, W), per column; 0 at padding.
    """
    of_window = take(pairs, within.tokens).T
    dense = [_product(corpus.bags, of_window * y[:, None]) for y in columns]
    weighed = jnp.stack([within.counts * take(y, within.tokens) for y in columns], axis=1)
    bags, rare = corpus.bags, within.rare
    count, token = rare.count.astype(pairs.dtype), rare.index.astype(jnp.int32)
    of_rare = _with_window(within, pairs if symmetric else pairs.T, weighed)
    met = _meet(rare, pairs, tuple(count * take(y, token) for y in columns), symmetric)
    owner = jnp.minimum(bags.owner, bags.num_segments - 1)[:, None]
    place = owner * len(within.tokens) + jnp.minimum(within.slot, len(within.tokens) - 1)
    frequent = (bags.count > 0) & (within.slot < len(within.tokens))
    return tuple(
        _spread(within.entry, x + y, jnp.where(frequent, take(z.ravel(), place), 0))
        for x, y, z in zip(of_rare, met, dense, strict=True)
    )


def backward(
    corpus: Corpus,
    within: Window,
    pairs: Array,
    columns: tuple[Array, ...],
    cotangents: tuple[Array, ...],
    symmetric: bool,
) -> tuple[Array, tuple[Array, ...]]:
    """Carry cotangents Ā back to P and y.

    ∂L/∂P_sr = Σ_X count_r(X) Σ_k Ā^k_Xs y^k_r,   ∂L/∂y^k_r = Σ_X count_r(X) Σ_s P_sr Ā^k_Xs.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        within: its window.
        pairs: P, (V, V).
        columns: y, (V,) each.
        cotangents: Ā, (R, W) per column; 0 at padding.
        symmetric: P is symmetric; ∂L/∂P is then right only up to an antisymmetric matrix.

    Returns:
        ∂L/∂P, (V, V), and one ∂L/∂y, (V,), per column.
    """
    bags, rare, tokens = corpus.bags, within.rare, within.tokens
    size = len(tokens)
    count, token = rare.count.astype(pairs.dtype), rare.index.astype(jnp.int32)
    flows = tuple(jnp.append(x.ravel(), 0)[within.entry] for x in cotangents)
    d_pairs = _outer(rare, pairs, flows, tuple(count * take(y, token) for y in columns), symmetric)
    turned = pairs if symmetric else pairs.T
    met = _meet(rare, turned, flows, symmetric)
    d_columns = by_token(
        corpus, tuple(_spread(within.entry, count * x, jnp.zeros_like(within.slot, x.dtype)) for x in met)
    )

    frequent = within.slot < size
    place = jnp.where(
        frequent & (bags.count > 0), bags.owner[:, None] * size + within.slot, bags.num_segments * size
    )
    from_window, to_window = take(pairs, tokens), take(turned, tokens)
    # ∂L/∂P_sr for s in the window and every r; and turned, for r in the window and every other s.
    d_from, d_to = jnp.zeros_like(from_window), jnp.zeros_like(to_window)
    present = corpus.occurrences.count > 0
    results = []
    for y, flow, so_far in zip(columns, cotangents, d_columns, strict=True):
        dense = jnp.zeros(bags.num_segments * size, flow.dtype)
        dense = dense.at[place.ravel()].set(flow.ravel(), mode="drop", unique_indices=True)
        reached = _product(corpus.occurrences, dense.reshape(-1, size)).T
        others = take(jnp.where(frequent, 0, flow).ravel(), corpus.crossing)
        others = corpus.occurrences.reweighted(jnp.where(present, others, 0))
        reached_by = _product(others, within.counts).T
        d_from += reached * y
        d_to += reached_by * take(y, tokens)[:, None]
        so_far += (reached * from_window).sum(axis=0)
        results.append(so_far.at[tokens].add((reached_by * to_window).sum(axis=1)))
    d_pairs = d_pairs.at[tokens].set(d_from).at[:, tokens].add(d_to.T)
    return d_pairs, tuple(results)


def _longest(bags: Ragged) -> int:
    return bags.index.shape[1] * math.prod(level.shape[1] for level in bags.tree)


def _product(matrix: Ragged, dense: Array) -> Array:
    """Multiply a count matrix with a dense one, a few columns at a time."""
    panels = jnp.pad(dense, ((0, 0), (0, -dense.shape[1] % COLUMNS)))
    panels = panels.reshape(len(dense), -1, COLUMNS).transpose(1, 0, 2)
    result = jax.lax.map(matrix.matmul, panels).transpose(1, 0, 2)
    return result.reshape(len(result), -1)[:, : dense.shape[1]]


def by_token(corpus: Corpus, entries: tuple[Array, ...]) -> tuple[Array, ...]:
    """Sum entries of the bags, (R, W) each, by token, (V,) each."""
    present = corpus.occurrences.count > 0
    return corpus.occurrences.sum(*(jnp.where(present, take(x.ravel(), corpus.crossing), 0) for x in entries))


def _spread(entry: Array, values: Array, into: Array) -> Array:
    """Write values per entry of the rare bags into an array per entry of all bags."""
    flat = into.ravel().at[entry.ravel()].set(values.ravel(), mode="drop", unique_indices=True)
    return flat.reshape(into.shape)


def _used(rare: Ragged) -> Array:
    return (rare.owner < rare.num_segments).sum()


def _with_window(within: Window, turned: Array, weighed: Array) -> tuple[Array, ...]:
    """Sum Σ_r P_sr weighed^k_Xr over r in the window, for the entries of rare tokens: (R', W) per column."""
    rare, size = within.rare, min(ROWS, len(within.rare.owner))
    table = take(turned, within.tokens).T
    last = len(rare.owner) - size

    def block(b: Array, sums: Array) -> Array:
        # The last block starts early rather than run over the end: it computes some rows again.
        begin = jnp.minimum(b * size, last)
        token = jax.lax.dynamic_slice_in_dim(rare.index, begin, size).astype(jnp.int32)
        owner = jax.lax.dynamic_slice_in_dim(rare.owner, begin, size)
        rows = once(take(table, token))
        own = take(weighed, jnp.minimum(owner, rare.num_segments - 1))
        return jax.lax.dynamic_update_slice_in_dim(sums, jnp.einsum("bkm,bwm->bkw", own, rows), begin, 0)

    sums = jnp.zeros((len(rare.owner), weighed.shape[1], rare.index.shape[1]), turned.dtype)
    sums = jax.lax.fori_loop(0, -(-_used(rare) // size), block, sums)
    return tuple(jnp.moveaxis(sums, 1, 0))


def _walk(rare: Ragged, visit, start):
    """Visit all tiles of a row i and a row j ≤ i of its sequence, a block at a time.

    carry = visit(carry, i, j, used, same), all (B,) but `same`, which says whether j is i.
    """
    found = tiles(rare)
    used_row = rare.owner < rare.num_segments
    order = blocks(rare, jnp.where(used_row, found.place, -1), PAIRS)
    number_of_rows = len(rare.owner)
    idle = (number_of_rows - _used(rare)) // order.shape[1]

    def block(b, carry):
        number = order[b]
        i = jnp.minimum(number, number_of_rows - 1)
        place, used = found.place[i], (number < number_of_rows) & used_row[i]

        def meet(k, carry):
            return visit(carry, i, i - jnp.minimum(k, place), used & (k <= place), k == 0)

        return jax.lax.fori_loop(0, jnp.where(used, place, 0).max() + 1, meet, carry)

    return jax.lax.fori_loop(idle, len(order), block, start)


def _meet(rare: Ragged, pairs: Array, entries: tuple[Array, ...], symmetric: bool) -> tuple[Array, ...]:
    """Sum Σ_r P_sr z_Xr over the entries r of the sequence of s: (R', W) for every z, (R', W)."""
    vocab_size, flat = len(pairs), pairs.ravel()
    token = rare.index.astype(jnp.int32)

    def visit(sums, i, j, used, same):
        s, r, *at = once((token[i], token[j], *(z[i] for z in entries), *(z[j] for z in entries)))
        at_i, at_j = at[: len(entries)], at[len(entries) :]
        there = once(take(flat, s[:, :, None] * vocab_size + r[:, None, :]))
        to_i = sum_together(2, *(there * z[:, None, :] for z in at_j))
        if symmetric:
            to_j = sum_together(1, *(there * z[:, :, None] for z in at_i))
        else:
            back = once(take(flat, r[:, :, None] * vocab_size + s[:, None, :]))
            to_j = sum_together(2, *(back * z[:, None, :] for z in at_i))
        return add_rows(add_rows(sums, j, used & ~same, to_j), i, used, to_i)

    return _walk(rare, visit, tuple(jnp.zeros_like(z) for z in entries))


def _outer(
    rare: Ragged, pairs: Array, left: tuple[Array, ...], right: tuple[Array, ...], symmetric: bool
) -> Array:
    """Sum Σ_X Σ_k left^k_Xs right^k_Xr for all s and r, (V, V).

    If `symmetric`, right only up to an antisymmetric matrix.
    """
    vocab_size = len(pairs)
    token = rare.index.astype(jnp.int32)

    def product(x, y):
        return sum(a[:, :, None] * b[:, None, :] for a, b in zip(x, y, strict=True))

    def visit(total, i, j, used, same):
        left_i, left_j = ([jnp.where(used[:, None], x[n], 0) for x in left] for n in (i, j))
        right_i, right_j = ([x[n] for x in right] for n in (i, j))
        s, r = token[i], token[j]
        there = s[:, :, None] * vocab_size + r[:, None, :]
        force, back = product(left_i, right_j), jnp.where(same, 0, product(left_j, right_i))
        if symmetric:
            return total.at[there].add(force + jnp.swapaxes(back, 1, 2))
        here = r[:, :, None] * vocab_size + s[:, None, :]
        return total.at[there].add(force).at[here].add(back)

    return _walk(rare, visit, jnp.zeros(vocab_size**2, pairs.dtype)).reshape(pairs.shape)
