"""Attention on a large corpus, for one score vector or for a batch of vectors, such as one per seed.

Scores are split into bands, as in `bands`: h_b is the ceiling (upper end) of band b. For one vector,
sums are computed by gathers from the corpus, which is stored twice: by sequence and by token. Exponentials
are computed once per token rather than once per corpus entry: token s stores exp(a_s - h_b) for its
band b. In each sequence X, only tokens in the band of the largest score, with ceiling h_X, and in the
next band have nonzero weight.

For a batch, one pass over the corpus takes about as long for sixteen score vectors (members) as for
one. All members are therefore computed together, as products of the count matrix with exp(a - h).
With a single ceiling h, this would underflow for a sequence whose scores are all far below h. There
is therefore one product per band, with weights exp(a_s - h_b) if a_s ≤ h_b and 0 otherwise. Each
sequence uses the sums from the band that contains its largest score, for which the softmax is exact
up to rounding. Members whose scores occupy too many bands are computed separately.

Shapes for one vector; a batch adds a leading axis S:

    scores: a, (V,), of any finite spread
    columns: γ, (K, V)
    averages: f, (K, n)
    shift: h_X, (n,)
    d_sums: ∂L/∂f divided by the normaliser, (K, n)
    ceiling: h_b for the band of each token, (V,)
    below: exp(a - h_b), (V,)
"""

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap, sequential_vmap

from jaxattn.attention import bands
from jaxattn.core.loops import map_in_equal_parts
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take


def forward_one(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Return f, h_X and the normaliser Σ_s count_s exp(a_s - h_X), (n,), for one score vector.

    If all scores are in one band, the cost is halved.
    """
    # Compute the vectors outside the branches, so that XLA cannot fuse them into the gathers that read them.
    ceiling, weighted = split_and_weight(scores, columns)

    def in_one_band() -> tuple[Array, Array, Array]:
        normaliser, *sums = corpus.bags.dot(*weighted)
        shift = jnp.broadcast_to(ceiling[0], normaliser.shape)
        return bands.divide(jnp.stack(sums), normaliser), shift, normaliser

    def in_bands() -> tuple[Array, Array, Array]:
        return forward_in_bands(corpus, ceiling, weighted)

    return jax.lax.cond((ceiling == ceiling[0]).all(), in_one_band, in_bands)


def backward_one(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Return the derivatives of the loss L for one score vector, with attention q and ḡ = ∂L/∂f.

    ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X), (V,),   ∂L/∂γ_s = Σ_X q_s ḡ_X, (K, V)
    """
    ceiling, below = bands.split(scores)
    delta = (d_sums * averages).sum(axis=0)

    def in_one_band() -> tuple[Array, Array]:
        pulled, *rows = corpus.occurrences.dot(delta, *d_sums)
        d_columns = jnp.stack(rows)
        return below * ((columns * d_columns).sum(axis=0) - pulled), below * d_columns

    def in_bands() -> tuple[Array, Array]:
        return backward_in_bands(corpus, ceiling, below, columns, averages, shift, d_sums)

    return jax.lax.cond((ceiling == ceiling[0]).all(), in_one_band, in_bands)


def split_and_weight(scores: Array, columns: Array) -> tuple[Array, Array]:
    """Return the ceilings h_b, (V,), and the rows exp(a - h_b) and exp(a - h_b) γ, (1 + K, V)."""
    ceiling, below = bands.split(scores)
    return ceiling, jnp.concatenate([below[None], below * columns])


def forward_in_bands(corpus: Corpus, ceiling: Array, weighted: Array) -> tuple[Array, Array, Array]:
    """Compute the outputs of `forward_one` for scores of any finite spread, from the output of `split`."""
    bags = corpus.bags
    token = bags.index.astype(jnp.int32)
    own = take(ceiling, token)
    shift = bags.max(jnp.where(bags.count > 0, own, -jnp.inf))
    weight = bags.count.astype(ceiling.dtype) * bands.factor(own, bags.spread(shift))
    normaliser, *sums = bags.sum(*(weight * take(x, token) for x in weighted))
    return bands.divide(jnp.stack(sums), normaliser), shift, normaliser


def backward_in_bands(
    corpus: Corpus,
    ceiling: Array,
    below: Array,
    columns: Array,
    averages: Array,
    shift: Array,
    d_sums: Array,
) -> tuple[Array, Array]:
    """Compute the output of `backward_one` for scores of any spread, without subtracting large sums."""
    layout = corpus.occurrences
    sequence = layout.index.astype(jnp.int32)
    weight = bands.factor(layout.spread(ceiling), take(shift, sequence))
    weight = layout.count.astype(below.dtype) * weight
    d_values = [weight * take(x, sequence) for x in d_sums]
    d_score = [
        d_value * _difference(layout.spread(value), take(average, sequence))
        for d_value, value, average in zip(d_values, columns, averages, strict=True)
    ]
    d_scores, *d_columns = layout.sum(sum(d_score[1:], d_score[0]), *d_values)
    return below * d_scores, below * jnp.stack(d_columns)


def _difference(value: Array, average: Array) -> Array:
    """Return value - average, or 0 if this difference is only rounding error, which would accumulate."""
    difference = value - average
    rounding = 2 * float(jnp.finfo(value.dtype).eps) * jnp.abs(value)
    noise = jnp.where(jnp.abs(difference) <= rounding, difference, 0)
    return difference - jax.lax.stop_gradient(noise)


# Maximum number of columns for which a product fits in the cache, and maximum number for dense products,
# which are used on a TPU.
COLUMNS, COLUMNS_OF_DENSE = 64, 256


def merged_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a batched function so that `jax.vmap` calls it once with a larger batch.

    If the corpus itself is vmapped, the corpora are processed one after another.

    Args:
        function: (corpus, *arrays) -> arrays; the first axis of every array is the batch axis.
    """
    merging = custom_vmap(function)

    @merging.def_vmap
    def rule(size: int, batched: list[Any], corpus: Corpus, *arrays: Array) -> Any:
        if any(jax.tree.leaves(batched[0])):
            axes = jax.tree.map(lambda mapped: 0 if mapped else None, tuple(batched))
            result = jax.vmap(sequential_vmap(function), in_axes=axes)(corpus, *arrays)
        elif any(batched[1:]):
            pairs = zip(arrays, batched[1:], strict=True)
            full = [x if mapped else jnp.broadcast_to(x, (size, *x.shape)) for x, mapped in pairs]
            merged = merging(corpus, *(x.reshape(-1, *x.shape[2:]) for x in full))
            result = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), merged)
        else:
            # Under differentiation, JAX calls the unbatched function first and applies vmap afterwards.
            result = function(corpus, *arrays)
            return result, jax.tree.map(lambda _: False, result)
        return result, jax.tree.map(lambda _: True, result)

    return merging


def sequential_vmap_if_large(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function (corpus, *arrays) so that `jax.vmap` loops over the batch if the corpus is large.

    Use this for functions that store a value per corpus entry, because a whole batch would not fit in memory.
    """
    sequential = sequential_vmap(function)

    @wraps(function)
    def chosen(corpus: Corpus, *arrays: Any) -> Any:
        return (sequential if corpus.bags.is_large else function)(corpus, *arrays)

    return chosen


@merged_vmap
def forward(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Return the outputs f, shifts h_X and normalisers of all sequences, for batched scores of a corpus."""
    if len(scores) > _max_batch(corpus, columns):
        return _in_chunks(forward, corpus, scores, columns)
    if len(scores) == 1:
        return _batch_of_one(partial(forward_one, corpus), scores, columns)
    num_bands, apart = _plan_bands(scores)
    averages = banded_forward(corpus, scores, columns, num_bands)
    in_bands = partial(forward_in_bands, corpus)
    return _recompute(in_bands, apart, averages, *jax.vmap(split_and_weight)(scores, columns))


@merged_vmap
def backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Return the cotangents ∂L/∂a (S, V) and ∂L/∂γ (S, K, V), given the shift from `forward`."""
    arrays = (scores, columns, averages, shift, d_sums)
    if len(scores) > _max_batch(corpus, columns):
        return _in_chunks(backward, corpus, *arrays)
    if len(scores) == 1:
        return _batch_of_one(partial(backward_one, corpus), *arrays)
    num_bands, apart = _plan_bands(scores)
    *cotangents, cancelled = banded_backward(corpus, *arrays, num_bands)
    in_bands = partial(backward_in_bands, corpus)
    tables = jax.vmap(bands.split)(scores)
    return _recompute(in_bands, apart | cancelled, tuple(cotangents), *tables, *arrays[1:])


def _recompute(function: Callable[..., Any], which: Array, results: Any, *arrays: Array) -> Any:
    def one(member: Any) -> Any:
        again, results, arrays = member
        return jax.lax.cond(again, lambda: function(*arrays), lambda: results)

    every = lambda: jax.lax.map(one, (which, results, arrays))  # noqa: E731
    return jax.lax.cond(which.any(), every, lambda: results)


def _batch_of_one(function: Callable[..., Any], *arrays: Array) -> Any:
    return jax.tree.map(lambda x: x[None], function(*(x[0] for x in arrays)))


def _plan_bands(scores: Array) -> tuple[Array, Array]:
    """Return the number of bands to compute for the whole batch, a scalar, and a mask, (S,) bool.

    The mask is True for members with scores in more bands, which are computed separately.
    """
    size = len(scores)
    # Cost of one band for the whole batch, relative to the cost of computing one member separately.
    price = (1 + size / 16) / 2
    most = int(size / price)
    needed = bands.count(scores, most)
    num_bands = jnp.arange(most + 1)
    cost = price * num_bands.astype(jnp.float32) + (needed > num_bands[:, None]).sum(axis=1)
    best = jnp.argmin(cost)
    return best, needed > best


def _max_batch(corpus: Corpus, columns: Array) -> int:
    most = COLUMNS_OF_DENSE if corpus.bags.dense else COLUMNS
    return max(1, most // (columns.shape[1] + 1))


def _in_chunks(function: Callable[..., Any], corpus: Corpus, *arrays: Array) -> Any:
    def one(member: Any) -> Any:
        return jax.tree.map(lambda x: x[0], function(corpus, *(x[None] for x in member)))

    return map_in_equal_parts(one, arrays, _max_batch(corpus, arrays[1]))


def banded_forward(
    corpus: Corpus, scores: Array, columns: Array, num_bands: int | Array
) -> tuple[Array, Array, Array]:
    """Compute the outputs of `forward` with one product per band.

    The outputs are wrong if the scores occupy more than `num_bands` bands.
    """
    top, tokens, values = bands.first_ceiling(scores)[None], scores.T, columns.transpose(2, 1, 0)
    # A token in a band has at least this weight, even after rounding. A sequence with less total weight
    # therefore has no token in the band.
    present = math.exp(-bands.width(scores.dtype) - 1)

    def band(b: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        shift, sums = carry
        ceiling = _ceiling(top, b)
        weight = _weight(tokens, ceiling)[:, None]
        weighted = jnp.concatenate([weight, weight * values], axis=1)
        new = _product(corpus.bags, weighted)
        in_band = (sums[:, 0] == 0) & (new[:, 0] >= present)
        return jnp.where(in_band, ceiling, shift), jnp.where(in_band[:, None], new, sums)

    shape = (corpus.num_examples, columns.shape[1] + 1, len(scores))
    start = (jnp.zeros((shape[0], shape[2]), scores.dtype), jnp.zeros(shape, scores.dtype))
    shift, sums = jax.lax.fori_loop(0, num_bands, band, start)
    sums = sums.transpose(2, 1, 0)
    return bands.divide(sums[:, 1:], sums[:, :1]), shift.T, sums[:, 0]


def banded_backward(
    corpus: Corpus,
    scores: Array,
    columns: Array,
    averages: Array,
    shift: Array,
    d_sums: Array,
    num_bands: int | Array,
) -> tuple[Array, Array, Array]:
    """Compute the outputs of `backward` with one product for each of `num_bands` bands.

    Also return a mask, (S,) bool, of the batch members for which cancellation removed a third of the
    digits of ∂L/∂a. This happens if almost every sequence attends to a single token, so that
    Σ_X q_s ḡ_X γ_s and Σ_X q_s ḡ_X f_X, with ḡ = ∂L/∂f, are nearly equal.
    """
    top, tokens, values = bands.first_ceiling(scores)[None], scores.T, columns.transpose(2, 1, 0)
    own_shift, d_sums_by_sequence = shift.T, d_sums.transpose(2, 1, 0)
    delta = (d_sums * averages).sum(axis=1).T[:, None]
    by_sequence = jnp.concatenate([delta, d_sums_by_sequence], axis=1)

    def band(b: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        d_scores, d_values, largest = carry
        ceiling = _ceiling(top, b)
        # For float32 scores beyond 2^30, multiple bands may have the same ceiling after rounding.
        own = (own_shift == ceiling) & ((b == 0) | (ceiling < _ceiling(top, b - 1)))
        in_band = jnp.where(own[:, None], by_sequence, 0)
        new = _product(corpus.occurrences, in_band) * _weight(tokens, ceiling)[:, None]
        delta, d_band = new[:, 0], new[:, 1:]
        change = (values * d_band).sum(axis=1) - delta
        return d_scores + change, d_values + d_band, jnp.maximum(largest, jnp.abs(delta).max(axis=0))

    start = (jnp.zeros_like(tokens), jnp.zeros_like(values), jnp.zeros_like(top[0]))
    d_scores, d_values, largest = jax.lax.fori_loop(0, num_bands, band, start)
    cancelled = jnp.abs(d_scores).max(axis=0) < float(jnp.finfo(scores.dtype).eps) ** (1 / 3) * largest
    return d_scores.T, d_values.transpose(2, 1, 0), cancelled


def _ceiling(top: Array, b: Array) -> Array:
    return top - bands.width(top.dtype) * b.astype(top.dtype)


def _weight(scores: Array, ceiling: Array) -> Array:
    below = scores <= ceiling
    return jnp.where(below, jnp.exp(jnp.where(below, scores - ceiling, 0)), 0)


def _product(matrix: Ragged, columns: Array) -> Array:
    return matrix.matmul(columns.reshape(len(columns), -1)).reshape(-1, *columns.shape[1:])
