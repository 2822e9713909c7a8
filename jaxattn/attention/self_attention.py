"""Parameter-free self-attention in token space: all it needs of E is the Gram matrix G and some V-vectors.

x'_s(X) = Σ_r w_sr x_r,   w_sr = count_r(X) exp(G_sr) / Σ_t count_t(X) exp(G_st),   s, r tokens of X.

One number x' per entry of the bags and column x. A sequence of U distinct tokens has U² pairs; they are
taken as tiles, one row of W entries of the bags against another row of the same sequence, a block of rows
at a time, so that memory does not depend on the number of pairs. Large corpora take most pairs as products
of matrices where the spread of G lets one shift per token do, see `factored_kernel`; which way is chosen at
run time.

The derivative by G, here and for the rare tokens of `frequent_tokens`, is the library's one scatter-add with
collisions. On a CPU it adds in a fixed order; on a GPU the order, and the last bits, are the device's.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxattn.attention import factored_kernel, frequent_tokens
from jaxattn.attention.bag_softmax import read_out
from jaxattn.attention.batched import in_turn
from jaxattn.attention.pair_tiles import add_rows, blocks, once, sum_together, tiles
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.errors import InputError

# Positions in the Gram matrix are 32-bit numbers.
MOST_TOKENS = 46_340


@partial(jax.jit, static_argnames=("symmetric", "residual"))
def two_layer_attention(
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


class _Kept(NamedTuple):
    """What the backward pass keeps of the forward pass, but for what it was given.

    Attributes:
        is_narrow: () bool, see `factored_kernel.is_narrow`.
        table: (V, V); P if scores are narrow, else G.
        key: (V,); what else belongs to P.
        top: (R, W); the shift of every entry unless scores are factored_kernel.
        normaliser: (R, W); the sum of the shifted weights.
        mixed: (R, W) per column; Softmax(G_X) x_X.
    """

    is_narrow: Array
    table: Array
    key: Array
    top: Array
    normaliser: Array
    mixed: tuple[Array, ...]


def _forward(corpus, gram, columns, symmetric, residual):
    window = _window(corpus, gram.dtype)
    kept = in_turn(partial(_averages, symmetric=symmetric))(corpus, window, gram, columns)
    out = kept.mixed
    if residual:
        token = corpus.bags.index.astype(jnp.int32)
        out = tuple(x + take(y, token) for x, y in zip(out, columns, strict=True))
    return out, (corpus, window, columns, kept)


def _averages(corpus, window, gram, columns, *, symmetric):
    def by_tiles(corpus, window, gram, columns):
        mixed, normaliser, top = _averages_by_tiles(corpus, gram, columns)
        return _Kept(jnp.bool(False), gram, jnp.zeros_like(columns[0]), top, normaliser, mixed)

    def by_window(corpus, window, gram, columns):
        pairs, key = factored_kernel.table(gram, symmetric)
        mixed, normaliser = factored_kernel.forward(corpus, window, pairs, key, columns, symmetric)
        return _Kept(jnp.bool(True), pairs, key, jnp.zeros_like(normaliser), normaliser, mixed)

    if window is None:
        return by_tiles(corpus, window, gram, columns)
    is_narrow = factored_kernel.is_narrow(gram, symmetric)
    return jax.lax.cond(is_narrow, by_window, by_tiles, corpus, window, gram, columns)


def _window(corpus: Corpus, dtype: DTypeLike) -> frequent_tokens.Window | None:
    """Choose a window for a corpus whose products with many columns are fast."""
    if corpus.bags.factors is None:
        return None
    return frequent_tokens.window(corpus, min(frequent_tokens.TOKENS, -(-corpus.vocab_size // 2)), dtype)


def _averages_by_tiles(corpus, gram, columns):
    """Mix with the top score of every token of every sequence as its shift, tile by tile."""
    bags, flat = corpus.bags, gram.ravel()
    token, count = bags.index.astype(jnp.int32), bags.count.astype(gram.dtype)
    values = tuple(take(x, token) for x in columns)
    found = tiles(bags)

    def block(number):
        i = jnp.minimum(number, len(token) - 1)
        origin, first, rows = once((token[i] * corpus.vocab_size, found.first[i], found.rows[i]))

        def step(k, carry):
            top, sums = carry
            j = first + jnp.minimum(k, rows - 1)
            met, present, *others = once(
                (token[j], jnp.where((k < rows)[:, None], count[j], 0), *(x[j] for x in values))
            )
            present = present[:, None, :]
            logit = once(take(flat, origin[:, :, None] + met[:, None, :]))
            logit = jnp.where(present > 0, logit, -jnp.inf)
            higher = jnp.maximum(top, logit.max(axis=2))
            weight = present * jnp.exp(logit - higher[:, :, None])
            added = sum_together(2, weight, *(weight * x[:, None, :] for x in others))
            decay = jnp.exp(top - higher)
            return higher, tuple(decay * x + y for x, y in zip(sums, added, strict=True))

        lowest = jnp.full(origin.shape, jnp.finfo(gram.dtype).min)
        start = (lowest, tuple(jnp.zeros_like(lowest) for _ in range(len(columns) + 1)))
        return _repeat(bags, rows.max(), step, start)

    order = blocks(bags, found.rows)
    top, (normaliser, *sums) = jax.tree.map(
        lambda x: (
            jnp.zeros(token.shape, x.dtype)
            .at[order.ravel()]
            .set(x.reshape(-1, x.shape[-1]), mode="drop", unique_indices=True)
        ),
        jax.lax.map(block, order),
    )
    # An unused row has met no token.
    normaliser = jnp.where(normaliser > 0, normaliser, 1)
    mixed = tuple(x / normaliser for x in sums)
    return mixed, normaliser, top


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
    """∂L/∂G_sr = Σ_X w_sr Σ_x x̄'_s (x_r - x'_s) and ∂L/∂x_r = Σ_X Σ_s w_sr x̄'_s, per column x."""
    corpus, window, columns, kept = residuals
    cotangents = tuple(jnp.where(corpus.bags.count > 0, x, 0) for x in cotangents)
    compute = in_turn(partial(_pulls, symmetric=symmetric))
    d_gram, d_columns = compute(corpus, window, columns, kept, cotangents)
    if residual:
        added = frequent_tokens.by_token(corpus, cotangents)
        d_columns = tuple(x + y for x, y in zip(d_columns, added, strict=True))
    return None, d_gram, d_columns


def _pulls(corpus, window, columns, kept, cotangents, *, symmetric):
    pushes = tuple(x / kept.normaliser for x in cotangents)
    drag = sum(x * y for x, y in zip(pushes, kept.mixed, strict=True))

    def by_tiles(corpus, window, columns, kept, pushes, drag):
        return _pulls_by_tiles(corpus, kept.table, columns, pushes, drag, kept.top, symmetric)

    def by_window(corpus, window, columns, kept, pushes, drag):
        return factored_kernel.backward(
            corpus, window, kept.table, kept.key, columns, pushes, drag, symmetric
        )

    if window is None:
        return by_tiles(corpus, window, columns, kept, pushes, drag)
    return jax.lax.cond(kept.is_narrow, by_window, by_tiles, corpus, window, columns, kept, pushes, drag)


def _pulls_by_tiles(corpus, gram, columns, pushes, drag, top, symmetric):
    """Carry back what flows into x', tile by tile.

    The tile of rows i and j ≤ i serves both s ∈ i, r ∈ j and s ∈ j, r ∈ i.
    """
    bags, flat = corpus.bags, gram.ravel()
    token, count = bags.index.astype(jnp.int32), bags.count.astype(gram.dtype)
    rows = _Rows(
        token=token,
        counts=count,
        top=top,
        values=tuple(take(x, token) for x in columns),
        pushes=pushes,
        drag=drag,
    )
    found, number_of_rows = tiles(bags), len(token)

    def block(carry, number):
        i = jnp.minimum(number, number_of_rows - 1)
        place, used = found.place[i], number < number_of_rows
        of_i = once(jax.tree.map(lambda x: x[i], rows))

        def alone(carry):
            d_gram, sums = carry
            where = _positions(of_i, of_i, corpus.vocab_size)
            force, to_i = _pairs(of_i, of_i, once(take(flat, where)), used)
            return d_gram.at[where].add(force), add_rows(sums, i, used, to_i)

        def meet(k, carry):
            d_gram, sums = carry
            used_now = used & (k <= place)
            j = i - jnp.minimum(k, place)
            of_j = once(jax.tree.map(lambda x: x[j], rows))
            there, back = _positions(of_i, of_j, corpus.vocab_size), _positions(of_j, of_i, corpus.vocab_size)
            gathered = once(take(flat, there))
            force, to_j = _pairs(of_i, of_j, gathered, used_now)
            gathered = jnp.swapaxes(gathered, 1, 2) if symmetric else once(take(flat, back))
            force_back, to_i = _pairs(of_j, of_i, gathered, used_now)
            sums = add_rows(add_rows(sums, j, used_now, to_j), i, used_now, to_i)
            if symmetric:
                return d_gram.at[there].add(force + jnp.swapaxes(force_back, 1, 2)), sums
            return d_gram.at[there].add(force).at[back].add(force_back), sums

        carry = alone(carry)
        if bags.tree:
            carry = jax.lax.fori_loop(1, place.max() + 1, meet, carry)
        return carry, None

    start = (jnp.zeros_like(flat), tuple(jnp.zeros(token.shape, gram.dtype) for _ in columns))
    (d_gram, sums), _ = jax.lax.scan(block, start, blocks(bags, found.place))
    return d_gram.reshape(gram.shape), frequent_tokens.by_token(corpus, sums)


def _positions(s: _Rows, r: _Rows, vocab_size: int) -> Array:
    """Say where G_sr lies in the flattened G, (B, W, W)."""
    return s.token[:, :, None] * vocab_size + r.token[:, None, :]


def _pairs(s: _Rows, r: _Rows, gathered: Array, used: Array) -> tuple[Array, tuple[Array, ...]]:
    """Compute what tokens s attending to tokens r do to G_sr, (B, W, W), and to each column at r, (B, W)."""
    present = jnp.where(used[:, None], r.counts, 0)[:, None, :]
    logit = jnp.where(present > 0, gathered, -jnp.inf)
    weight = once(present * jnp.exp(logit - s.top[:, :, None]))
    pushes = [x[:, :, None] for x in s.pushes]
    force = sum(x * y[:, None, :] for x, y in zip(pushes, r.values, strict=True))
    return weight * (force - s.drag[:, :, None]), sum_together(1, *(weight * x for x in pushes))


mix.defvjp(_forward, _backward)


def _repeat(bags, steps, step, start):
    """Loop over the tiles of a row; one step where every sequence fits into one row."""
    return jax.lax.fori_loop(0, steps, step, start) if bags.tree else step(0, start)
