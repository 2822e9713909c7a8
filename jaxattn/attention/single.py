"""Attention for one vector of scores, with gathers over the two layouts of the corpus.

`stable_forward` and `stable_backward` shift every sequence by its own top score, whatever the scores;
`forward` and `backward` take one shift for all sequences where that is safe, in half the time.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.attention.bag_softmax import softmax_average
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take


def forward(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Average values over every sequence.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,); any finite spread.
        columns: γ, (K, V).

    Returns:
        f (K, n); what the scores of each sequence were shifted by, (n,); the normaliser, (n,).
    """
    highest = jax.lax.stop_gradient(scores.max())
    weight = jnp.exp(scores - highest)
    # Computed outside the branches, these vectors cannot be fused into the gathers that read them.
    weighted = (weight, *(weight * x for x in columns))

    def with_global_shift(weighted: Any) -> tuple[Array, Array, Array]:
        normaliser, *sums = corpus.bags.dot(*weighted)
        return jnp.stack(sums) / normaliser, jnp.broadcast_to(highest, normaliser.shape), normaliser

    return jax.lax.cond(
        global_shift_is_safe(scores),
        with_global_shift,
        lambda _: stable_forward(corpus, scores, columns),
        weighted,
    )


def backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Compute the cotangents ∂L/∂γ_s = Σ_X q_s ḡ_X and ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X).

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,).
        columns: γ, (K, V).
        averages: f, (K, n).
        shift: (n,); what the scores of each sequence were shifted by.
        d_sums: ∂L/∂f over the normaliser, (K, n): the cotangent of the sums before they are divided by it.

    Returns:
        ∂L/∂a (V,), and ∂L/∂γ (K, V).
    """
    highest = jax.lax.stop_gradient(scores.max())
    rescaled = d_sums * jnp.exp(jnp.where(global_shift_is_safe(scores), highest - shift, 0))
    by_sequence = ((rescaled * averages).sum(axis=0), *rescaled)

    def with_global_shift(by_sequence: Any) -> tuple[Array, Array]:
        delta, *rows = corpus.occurrences.dot(*by_sequence)
        d_columns = jnp.stack(rows)
        weight = jnp.exp(scores - highest)
        return weight * ((columns * d_columns).sum(axis=0) - delta), weight * d_columns

    def stable(_: Any) -> tuple[Array, Array]:
        return stable_backward(corpus, scores, columns, averages, shift, d_sums)

    return jax.lax.cond(global_shift_is_safe(scores), with_global_shift, stable, by_sequence)


def global_shift_is_safe(scores: Array) -> Array:
    """Whether one shift for all sequences keeps exp(a) in range; () bool."""
    return scores.max() - scores.min() < 0.7 * math.log(jnp.finfo(scores.dtype).max)


def stable_forward(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Compute what `forward` does, shifting every sequence by its own top score."""
    token = corpus.bags.index.astype(jnp.int32)
    averages, top, normaliser = softmax_average(
        corpus.bags, take(scores, token), tuple(take(x, token) for x in columns)
    )
    return jnp.stack(averages), top, normaliser


def stable_backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Compute what `backward` does for any spread: one exponential for every entry."""
    layout = corpus.occurrences
    sequence = layout.index.astype(jnp.int32)
    score = jnp.where(layout.count > 0, layout.spread(scores) - take(shift, sequence), -jnp.inf)
    weight = layout.count.astype(scores.dtype) * jnp.exp(score)
    d_values = [weight * take(x, sequence) for x in d_sums]
    d_score = [
        d_value * (layout.spread(value) - take(average, sequence))
        for d_value, value, average in zip(d_values, columns, averages, strict=True)
    ]
    d_scores, *d_columns = layout.sum(sum(d_score[1:], d_score[0]), *d_values)
    return d_scores, jnp.stack(d_columns)
