"""Parameter-free self-attention from the Gram matrix G: all it needs of E beside it is some V-vectors.

x'_s(X) = Σ_r w_sr x_r,   w_sr = count_r(X) exp(G_sr) / Σ_t count_t(X) exp(G_st),   s, r tokens of X.

One number x' per entry of the bags and column x. A sequence of U distinct tokens has U² pairs; they are
taken as tiles, one row of W entries of the bags against another row of the same sequence, a block of rows
at a time, so that memory does not depend on the number of pairs. Large corpora take most pairs as products
of matrices where the spread of G lets one shift per token do, see `factored_kernel`; which way is chosen at
run time.

The derivative by G, here and for the rare tokens of `frequent_tokens`, is a scatter-add with collisions: on
a CPU it adds in a fixed order, and on accelerators this form is not taken.

Optimization barriers keep what was gathered or exponentiated from being computed again for each reader.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxattn.attention import factored_kernel, frequent_tokens
from jaxattn.attention.batched import sequential_vmap_if_large
from jaxattn.attention.pair_tiles import add_rows, row_blocks, sequence_rows, variadic_sum
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def attend_within(
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


class _Residuals(NamedTuple):
    """What the backward pass keeps of the forward pass, but for what it was given.

    Attributes:
        is_factored: () bool; whether the factored kernel was used.
        matrix: (V, V); P of the factored kernel if it was used, else G.
        key_weight: (V,); b of the factored kernel.
        top: (R, W); the shift of every entry unless the kernel is factored.
        normaliser: (R, W); the sum of the shifted weights.
        mixed: (R, W) per column; Softmax(G_X) x_X.
    """

    is_factored: Array
    matrix: Array
    key_weight: Array
    top: Array
    normaliser: Array
    mixed: tuple[Array, ...]


def _forward(corpus, gram, columns, symmetric, residual):
    frequent = _most_frequent(corpus, gram.dtype)
    compute = sequential_vmap_if_large(partial(_averages, symmetric=symmetric))
    kept = compute(corpus, frequent, gram, columns)
    out = kept.mixed
    if residual:
        token = corpus.bags.index.astype(jnp.int32)
        out = tuple(x + take(y, token) for x, y in zip(out, columns, strict=True))
    return out, (corpus, frequent, columns, kept)


def _averages(corpus, frequent, gram, columns, *, symmetric):
    def tiled(corpus, frequent, gram, columns):
        mixed, normaliser, top = _tiled_forward(corpus, gram, columns)
        return _Residuals(jnp.bool(False), gram, jnp.zeros_like(columns[0]), top, normaliser, mixed)

    def factored(corpus, frequent, gram, columns):
        kernel, key_weight = factored_kernel.factors(gram, symmetric)
        mixed, normaliser = factored_kernel.forward(corpus, frequent, kernel, key_weight, columns, symmetric)
        return _Residuals(jnp.bool(True), kernel, key_weight, jnp.zeros_like(normaliser), normaliser, mixed)

    if frequent is None:
        return tiled(corpus, frequent, gram, columns)
    is_safe = factored_kernel.is_safe(gram, symmetric)
    return jax.lax.cond(is_safe, factored, tiled, corpus, frequent, gram, columns)


def _most_frequent(corpus: Corpus, dtype: DTypeLike) -> frequent_tokens.FrequentTokens | None:
    """Choose the frequent tokens of a corpus whose products with many columns are fast."""
    if corpus.bags.factors is None:
        return None
    size = min(frequent_tokens.NUM_FREQUENT, -(-corpus.vocab_size // 2))
    return frequent_tokens.most_frequent(corpus, size, dtype)


def _tiled_forward(corpus, gram, columns):
    """Mix with the top score of every token of every sequence as its shift, tile by tile."""
    bags, flat = corpus.bags, gram.ravel()
    token, count = bags.index.astype(jnp.int32), bags.count.astype(gram.dtype)
    values = tuple(take(x, token) for x in columns)
    sequence = sequence_rows(bags)

    def block(row):
        i = jnp.minimum(row, len(token) - 1)
        origin, first, num_rows = optimization_barrier(
            (token[i] * corpus.vocab_size, sequence.first[i], sequence.num_rows[i])
        )

        def step(k, carry):
            top, sums = carry
            j = first + jnp.minimum(k, num_rows - 1)
            other, present, *others = optimization_barrier(
                (token[j], jnp.where((k < num_rows)[:, None], count[j], 0), *(x[j] for x in values))
            )
            present = present[:, None, :]
            logit = optimization_barrier(take(flat, origin[:, :, None] + other[:, None, :]))
            logit = jnp.where(present > 0, logit, -jnp.inf)
            higher = jnp.maximum(top, logit.max(axis=2))
            weight = present * jnp.exp(logit - higher[:, :, None])
            added = variadic_sum(2, weight, *(weight * x[:, None, :] for x in others))
            decay = jnp.exp(top - higher)
            return higher, tuple(decay * x + y for x, y in zip(sums, added, strict=True))

        lowest = jnp.full(origin.shape, jnp.finfo(gram.dtype).min)
        start = (lowest, tuple(jnp.zeros_like(lowest) for _ in range(len(columns) + 1)))
        # One step is enough where every sequence fits into one row.
        return jax.lax.fori_loop(0, num_rows.max(), step, start) if bags.tree else step(0, start)

    blocks = row_blocks(bags, sequence.num_rows)
    top, (normaliser, *sums) = jax.tree.map(
        lambda x: (
            jnp.zeros(token.shape, x.dtype)
            .at[blocks.ravel()]
            .set(x.reshape(-1, x.shape[-1]), mode="drop", unique_indices=True)
        ),
        jax.lax.map(block, blocks),
    )
    # An unused row has no pairs.
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
        d_sums: x̄' over the sum of the shifted weights, per column.
        delta: Σ_x x' · d_sums, minus the cotangent of the sum of the shifted weights.
    """

    token: Array
    counts: Array
    top: Array
    values: tuple[Array, ...]
    d_sums: tuple[Array, ...]
    delta: Array


def _backward(symmetric, residual, residuals, cotangents):
    """∂L/∂G_sr = Σ_X w_sr Σ_x x̄'_s (x_r - x'_s) and ∂L/∂x_r = Σ_X Σ_s w_sr x̄'_s, per column x."""
    corpus, frequent, columns, kept = residuals
    cotangents = tuple(jnp.where(corpus.bags.count > 0, x, 0) for x in cotangents)
    compute = sequential_vmap_if_large(partial(_cotangents, symmetric=symmetric))
    d_gram, d_columns = compute(corpus, frequent, columns, kept, cotangents)
    if residual:
        added = frequent_tokens.sum_by_token(corpus, cotangents)
        d_columns = tuple(x + y for x, y in zip(d_columns, added, strict=True))
    return None, d_gram, d_columns


def _cotangents(corpus, frequent, columns, kept, cotangents, *, symmetric):
    d_sums = tuple(x / kept.normaliser for x in cotangents)
    delta = sum(x * y for x, y in zip(d_sums, kept.mixed, strict=True))

    def tiled(corpus, frequent, columns, kept, d_sums, delta):
        return _tiled_backward(corpus, kept.matrix, columns, d_sums, delta, kept.top, symmetric)

    def factored(corpus, frequent, columns, kept, d_sums, delta):
        return factored_kernel.backward(
            corpus, frequent, kept.matrix, kept.key_weight, columns, d_sums, delta, symmetric
        )

    if frequent is None:
        return tiled(corpus, frequent, columns, kept, d_sums, delta)
    return jax.lax.cond(kept.is_factored, factored, tiled, corpus, frequent, columns, kept, d_sums, delta)


def _tiled_backward(corpus, gram, columns, d_sums, delta, top, symmetric):
    """Compute the cotangents of G and x tile by tile.

    The tile of rows i and j ≤ i serves both s ∈ i, r ∈ j and s ∈ j, r ∈ i.
    """
    bags, flat = corpus.bags, gram.ravel()
    token, count = bags.index.astype(jnp.int32), bags.count.astype(gram.dtype)
    values = tuple(take(x, token) for x in columns)
    rows = _Rows(token=token, counts=count, top=top, values=values, d_sums=d_sums, delta=delta)
    offsets, num_rows = sequence_rows(bags).offset, len(token)

    def block(carry, row):
        i = jnp.minimum(row, num_rows - 1)
        offset, used = offsets[i], row < num_rows
        of_i = optimization_barrier(jax.tree.map(lambda x: x[i], rows))

        def diagonal_tile(carry):
            d_gram, sums = carry
            position = _positions(of_i, of_i, corpus.vocab_size)
            gathered = optimization_barrier(take(flat, position))
            d_tile, to_i = _tile_cotangents(of_i, of_i, gathered, used)
            return d_gram.at[position].add(d_tile), add_rows(sums, i, used, to_i)

        def tile(k, carry):
            d_gram, sums = carry
            used_now = used & (k <= offset)
            j = i - jnp.minimum(k, offset)
            of_j = optimization_barrier(jax.tree.map(lambda x: x[j], rows))
            position = _positions(of_i, of_j, corpus.vocab_size)
            mirrored_position = _positions(of_j, of_i, corpus.vocab_size)
            gathered = optimization_barrier(take(flat, position))
            d_tile, to_j = _tile_cotangents(of_i, of_j, gathered, used_now)
            if symmetric:
                mirrored = jnp.swapaxes(gathered, 1, 2)
            else:
                mirrored = optimization_barrier(take(flat, mirrored_position))
            d_mirrored, to_i = _tile_cotangents(of_j, of_i, mirrored, used_now)
            sums = add_rows(add_rows(sums, j, used_now, to_j), i, used_now, to_i)
            if symmetric:
                return d_gram.at[position].add(d_tile + jnp.swapaxes(d_mirrored, 1, 2)), sums
            return d_gram.at[position].add(d_tile).at[mirrored_position].add(d_mirrored), sums

        carry = diagonal_tile(carry)
        if bags.tree:
            carry = jax.lax.fori_loop(1, offset.max() + 1, tile, carry)
        return carry, None

    start = (jnp.zeros_like(flat), tuple(jnp.zeros(token.shape, gram.dtype) for _ in columns))
    (d_gram, sums), _ = jax.lax.scan(block, start, row_blocks(bags, offsets))
    return d_gram.reshape(gram.shape), frequent_tokens.sum_by_token(corpus, sums)


def _positions(s: _Rows, r: _Rows, vocab_size: int) -> Array:
    """Say where G_sr lies in the flattened G, (B, W, W)."""
    return s.token[:, :, None] * vocab_size + r.token[:, None, :]


def _tile_cotangents(s: _Rows, r: _Rows, gathered: Array, used: Array) -> tuple[Array, tuple[Array, ...]]:
    """Compute what tokens s attending to tokens r add to ∂L/∂G_sr, (B, W, W), and to each ∂L/∂x_r, (B, W)."""
    present = jnp.where(used[:, None], r.counts, 0)[:, None, :]
    logit = jnp.where(present > 0, gathered, -jnp.inf)
    weight = optimization_barrier(present * jnp.exp(logit - s.top[:, :, None]))
    d_sums = [x[:, :, None] for x in s.d_sums]
    d_weight = sum(x * y[:, None, :] for x, y in zip(d_sums, r.values, strict=True))
    return weight * (d_weight - s.delta[:, :, None]), variadic_sum(1, *(weight * x for x in d_sums))


attend_within.defvjp(_forward, _backward)
