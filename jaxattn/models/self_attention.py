"""Parameter-free self-attention in token space: all it needs of E is the Gram matrix G and some V-vectors.

x'_s(X) = Σ_r w_sr x_r,   w_sr = count_r(X) exp(G_sr) / Σ_t count_t(X) exp(G_st),   s, r tokens of X.

One number x' per entry of the bags and column x. A sequence of U distinct tokens has U² pairs; they are
taken as tiles, one row of W entries of the bags against another row of the same sequence, a block of rows
at a time, so that memory does not depend on the number of pairs.

The derivative by G is the library's one scatter-add with collisions. On a CPU it adds in a fixed order; on a
GPU the order, and with it the last bits, are the device's.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take
from jaxattn.errors import InputError
from jaxattn.models.entries import read_out

# Pairs handled at once: few enough for a cache, enough to keep two cores busy.
PAIRS = 1 << 18
# Positions in the Gram matrix are 32-bit numbers.
MOST_TOKENS = 46_340


@partial(jax.jit, static_argnames=("symmetric", "residual"))
def attend_twice(
    corpus: Corpus,
    gram: Float[Array, "V V"],
    scores: Float[Array, "V"],
    values: Array,
    *,
    symmetric: bool,
    residual: bool,
) -> Array:
    """Mix scores and values by self-attention, then average the values with softmax attention.

    Args:
        corpus: n sequences over V tokens.
        gram: G, (V, V); any finite spread.
        scores: a, (V,); any finite spread.
        values: γ, (V,) or (V, K).
        symmetric: G is symmetric, see `mix`.
        residual: add what was mixed, see `mix`.

    Returns:
        f, (n,) or (n, K).

    Raises:
        InputError: V > 46,340.
    """
    if corpus.vocab_size > MOST_TOKENS:
        raise InputError(
            f"vocab_size: {corpus.vocab_size}; self-attention keeps V x V numbers and takes at most "
            f"{MOST_TOKENS} tokens"
        )
    columns = (values,) if values.ndim == 1 else tuple(values.T)
    score, *mixed = mix(corpus, gram, (scores, *columns), symmetric, residual)
    result = read_out(corpus.bags, score, tuple(mixed))
    return result[0] if values.ndim == 1 else jnp.stack(result, axis=1)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def mix(
    corpus: Corpus,
    gram: Float[Array, "V V"],
    columns: tuple[Array, ...],
    symmetric: bool = False,
    residual: bool = False,
) -> tuple[Array, ...]:
    """Attend from every distinct token of every sequence to all of its tokens, x' = Softmax(G_X) x_X (+ x_X).

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        gram: G, (V, V); any finite spread.
        columns: x, (V,) each.
        symmetric: G is symmetric; ∂L/∂G is then right only up to an antisymmetric matrix, which is all
            that G = E Eᵀ lets through, for half of the additions.
        residual: add x_s.

    Returns:
        One x', (R, W), per column; any finite number at padding.
    """
    return _forward(corpus, gram, columns, symmetric, residual)[0]


class _Tiles(NamedTuple):
    """Which rows of the bags share a sequence.

    Attributes:
        first: (R,) the first row of a row's sequence.
        place: (R,) which of the rows of its sequence a row is.
        rows: (R,) how many rows its sequence has; 1 for an unused row, which meets only itself.
    """

    first: Array
    place: Array
    rows: Array


def _tiles(bags: Ragged) -> _Tiles:
    number = jnp.arange(len(bags.owner), dtype=jnp.int32)
    if not bags.tree:
        return _Tiles(first=number, place=jnp.zeros_like(number), rows=jnp.ones_like(number))
    start = jnp.searchsorted(bags.owner, jnp.arange(bags.num_segments + 1)).astype(jnp.int32)
    used = bags.owner < bags.num_segments
    inside = jnp.minimum(bags.owner, bags.num_segments - 1)
    first = jnp.where(used, take(start, inside), number)
    return _Tiles(
        first=first,
        place=number - first,
        rows=jnp.where(used, take(start, inside + 1) - first, 1),
    )


def _blocks(bags: Ragged, steps: Array) -> Array:
    """Order rows by the number of tiles they take, so that a block of rows ends its loop together: (., B)."""
    rows, width = bags.index.shape
    size = min(rows, max(1, PAIRS // width**2))
    order = jnp.arange(rows, dtype=jnp.int32)
    if bags.tree:
        # Rows of like tokens side by side read and write a part of G that a cache can hold.
        order = jnp.lexsort((bags.index[:, width // 2], steps)).astype(jnp.int32)
    # Filled up with a row number that does not exist, which gathers clamp and scatters drop.
    return jnp.pad(order, (0, -rows % size), constant_values=rows).reshape(-1, size)


def _forward(corpus, gram, columns, symmetric, residual):
    bags, flat = corpus.bags, gram.ravel()
    token, count = bags.index.astype(jnp.int32), bags.count.astype(gram.dtype)
    values = tuple(take(x, token) for x in columns)
    tiles = _tiles(bags)

    def block(number):
        i = jnp.minimum(number, len(token) - 1)
        origin, first, rows = _once((token[i] * corpus.vocab_size, tiles.first[i], tiles.rows[i]))

        def step(k, carry):
            top, sums = carry
            j = first + jnp.minimum(k, rows - 1)
            met, present, *others = _once(
                (token[j], jnp.where((k < rows)[:, None], count[j], 0), *(x[j] for x in values))
            )
            present = present[:, None, :]
            logit = _once(take(flat, origin[:, :, None] + met[:, None, :]))
            logit = jnp.where(present > 0, logit, -jnp.inf)
            higher = jnp.maximum(top, logit.max(axis=2))
            weight = present * jnp.exp(logit - higher[:, :, None])
            added = _sum(2, weight, *(weight * x[:, None, :] for x in others))
            decay = jnp.exp(top - higher)
            return higher, tuple(decay * x + y for x, y in zip(sums, added, strict=True))

        lowest = jnp.full(origin.shape, jnp.finfo(gram.dtype).min)
        start = (lowest, tuple(jnp.zeros_like(lowest) for _ in range(len(columns) + 1)))
        return _repeat(bags, rows.max(), step, start)

    blocks = _blocks(bags, tiles.rows)
    top, (normaliser, *sums) = jax.tree.map(
        lambda x: (
            jnp.zeros(token.shape, x.dtype)
            .at[blocks.ravel()]
            .set(x.reshape(-1, x.shape[-1]), mode="drop", unique_indices=True)
        ),
        jax.lax.map(block, blocks),
    )
    # An unused row has met no token.
    normaliser = jnp.where(normaliser > 0, normaliser, 1)
    mixed = tuple(x / normaliser for x in sums)
    out = tuple(x + y for x, y in zip(mixed, values, strict=True)) if residual else mixed
    return out, (corpus, gram, columns, mixed, top, normaliser)


class _Rows(NamedTuple):
    """What the backward pass reads of rows of the bags, (., W) each.

    Attributes:
        token: ids.
        counts: multiplicities, 0 at padding.
        top: each token's shift of the exponents.
        values: x, per column.
        pushes: x̄' over the sum of the shifted weights, per column.
        drag: Σ_x x' · push.
    """

    token: Array
    counts: Array
    top: Array
    values: tuple[Array, ...]
    pushes: tuple[Array, ...]
    drag: Array


def _backward(symmetric, residual, residuals, cotangents):
    """∂L/∂G_sr = Σ_X w_sr Σ_x x̄'_s (x_r - x'_s) and ∂L/∂x_r = Σ_X Σ_s w_sr x̄'_s, per column x.

    The tile of rows i and j ≤ i serves both s ∈ i, r ∈ j and s ∈ j, r ∈ i.
    """
    corpus, gram, columns, mixed, top, normaliser = residuals
    bags, flat = corpus.bags, gram.ravel()
    token, count = bags.index.astype(jnp.int32), bags.count.astype(gram.dtype)
    cotangents = tuple(jnp.where(count > 0, x, 0) for x in cotangents)
    pushes = tuple(x / normaliser for x in cotangents)
    rows = _Rows(
        token=token,
        counts=count,
        top=top,
        values=tuple(take(x, token) for x in columns),
        pushes=pushes,
        drag=sum(x * y for x, y in zip(pushes, mixed, strict=True)),
    )
    tiles, number_of_rows = _tiles(bags), len(token)

    def block(carry, number):
        i = jnp.minimum(number, number_of_rows - 1)
        place, used = tiles.place[i], number < number_of_rows
        of_i = _once(jax.tree.map(lambda x: x[i], rows))

        def alone(carry):
            d_gram, sums = carry
            where = _positions(of_i, of_i, corpus.vocab_size)
            force, to_i = _pairs(of_i, of_i, _once(take(flat, where)), used)
            return d_gram.at[where].add(force), _add_rows(sums, i, used, to_i)

        def meet(k, carry):
            d_gram, sums = carry
            used_now = used & (k <= place)
            j = i - jnp.minimum(k, place)
            of_j = _once(jax.tree.map(lambda x: x[j], rows))
            there, back = _positions(of_i, of_j, corpus.vocab_size), _positions(of_j, of_i, corpus.vocab_size)
            gathered = _once(take(flat, there))
            force, to_j = _pairs(of_i, of_j, gathered, used_now)
            gathered = jnp.swapaxes(gathered, 1, 2) if symmetric else _once(take(flat, back))
            force_back, to_i = _pairs(of_j, of_i, gathered, used_now)
            sums = _add_rows(_add_rows(sums, j, used_now, to_j), i, used_now, to_i)
            if symmetric:
                return d_gram.at[there].add(force + jnp.swapaxes(force_back, 1, 2)), sums
            return d_gram.at[there].add(force).at[back].add(force_back), sums

        carry = alone(carry)
        if bags.tree:
            carry = jax.lax.fori_loop(1, place.max() + 1, meet, carry)
        return carry, None

    start = (jnp.zeros_like(flat), tuple(jnp.zeros(token.shape, gram.dtype) for _ in columns))
    (d_gram, sums), _ = jax.lax.scan(block, start, _blocks(bags, tiles.place))
    if residual:
        sums = tuple(x + y for x, y in zip(sums, cotangents, strict=True))
    present = corpus.occurrences.count > 0
    by_token = (jnp.where(present, take(x.ravel(), corpus.crossing), 0) for x in sums)
    return None, d_gram.reshape(gram.shape), corpus.occurrences.sum(*by_token)


def _positions(s: _Rows, r: _Rows, vocab_size: int) -> Array:
    """Say where G_sr lies in the flattened G, (B, W, W)."""
    return s.token[:, :, None] * vocab_size + r.token[:, None, :]


def _pairs(s: _Rows, r: _Rows, gathered: Array, used: Array) -> tuple[Array, tuple[Array, ...]]:
    """Compute what tokens s attending to tokens r do to G_sr, (B, W, W), and to each column at r, (B, W)."""
    present = jnp.where(used[:, None], r.counts, 0)[:, None, :]
    logit = jnp.where(present > 0, gathered, -jnp.inf)
    weight = _once(present * jnp.exp(logit - s.top[:, :, None]))
    pushes = [x[:, :, None] for x in s.pushes]
    force = sum(x * y[:, None, :] for x, y in zip(pushes, r.values, strict=True))
    return weight * (force - s.drag[:, :, None]), _sum(1, *(weight * x for x in pushes))


def _add_rows(sums, rows, used, added):
    """Add (B, W) to rows of (R, W) each, no row twice; what is not used goes to a row that does not exist."""
    rows = jnp.where(used, rows, len(sums[0]))
    return tuple(
        x.at[rows].add(y, mode="drop", unique_indices=True) for x, y in zip(sums, added, strict=True)
    )


mix.defvjp(_forward, _backward)


def _repeat(bags, steps, step, start):
    """Loop over the tiles of a row; one step where every sequence fits into one row."""
    return jax.lax.fori_loop(0, steps, step, start) if bags.tree else step(0, start)


def _once(x):
    """Keep what was gathered or exponentiated from being computed again for each of its readers."""
    return jax.lax.optimization_barrier(x)


def _sum(axis, *arrays):
    """Sum several arrays along an axis in one pass, so that what they share is computed once."""
    zeros = tuple(jnp.zeros((), x.dtype) for x in arrays)
    return tuple(jax.lax.reduce(arrays, zeros, lambda x, y: tuple(map(jnp.add, x, y)), (axis,)))
