"""Attention on a large corpus for one vector of scores, with gathers over the two layouts of the corpus.

Exponentials are those of V tokens, not of the entries of the corpus: every token has exp(a - h_b) for its
band of scores, and a sequence weighs what lies in the band of its top score and in the next.
"""

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.attention import bands
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take


def forward(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Average values over every sequence, in half the time if all scores lie in one band.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,); any finite spread.
        columns: γ, (K, V).

    Returns:
        f (K, n); the ceiling h_X of each sequence, (n,); the normaliser Σ_s count_s exp(a_s - h_X), (n,).
    """
    # Computed outside the branches, vectors cannot be fused into the gathers that read them.
    ceiling, weighted = split(scores, columns)

    def in_one_band() -> tuple[Array, Array, Array]:
        normaliser, *sums = corpus.bags.dot(*weighted)
        shift = jnp.broadcast_to(ceiling[0], normaliser.shape)
        return bands.divide(jnp.stack(sums), normaliser), shift, normaliser

    def in_bands() -> tuple[Array, Array, Array]:
        return forward_in_bands(corpus, ceiling, weighted)

    return jax.lax.cond((ceiling == ceiling[0]).all(), in_one_band, in_bands)


def backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Compute the cotangents ∂L/∂γ_s = Σ_X q_s ḡ_X and ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X).

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,).
        columns: γ, (K, V).
        averages: f, (K, n).
        shift: h_X, (n,).
        d_sums: ∂L/∂f over the normaliser, (K, n): the cotangent of the sums before they are divided by it.

    Returns:
        ∂L/∂a (V,), and ∂L/∂γ (K, V).
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


def split(scores: Array, columns: Array) -> tuple[Array, Array]:
    """Compute what `forward_in_bands` gathers.

    Returns:
        The ceiling h_b of every token, (V,); exp(a - h_b), and its products with each γ, (1 + K, V).
    """
    ceiling, below = bands.split(scores)
    return ceiling, jnp.concatenate([below[None], below * columns])


def forward_in_bands(corpus: Corpus, ceiling: Array, weighted: Array) -> tuple[Array, Array, Array]:
    """Compute what `forward` does, whatever the spread of the scores, from their `split`."""
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
    """Compute what `backward` does, whatever the spread of the scores, and with no difference of large sums.

    Args:
        corpus: n sequences over V tokens.
        ceiling, below: h_b and exp(a - h_b) of every token, (V,) each.
        columns, averages, shift, d_sums: as in `backward`.
    """
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
    """Compute γ_s - f_X, 0 if f_X is γ_s but for its rounding.

    A token that has all attention of many sequences would gather that rounding instead of what vanishes.
    """
    difference = value - average
    rounding = 2 * float(jnp.finfo(value.dtype).eps) * jnp.abs(value)
    noise = jnp.where(jnp.abs(difference) <= rounding, difference, 0)
    return difference - jax.lax.stop_gradient(noise)
