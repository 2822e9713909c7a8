"""Attention on a small corpus, with an exponential for every entry: scores less the top one of a sequence."""

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
        f (K, n); the top score of each sequence, (n,); the normaliser Σ_s count_s exp(a_s - top), (n,).
    """
    token = corpus.bags.index.astype(jnp.int32)
    averages, top, normaliser = softmax_average(
        corpus.bags, take(scores, token), tuple(take(x, token) for x in columns)
    )
    return jnp.stack(averages), top, normaliser


def backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, top: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Compute the cotangents ∂L/∂γ_s = Σ_X q_s ḡ_X and ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X).

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,).
        columns: γ, (K, V).
        averages: f, (K, n).
        top: (n,), as `forward` returns it.
        d_sums: ∂L/∂f over the normaliser, (K, n): the cotangent of the sums before they are divided by it.

    Returns:
        ∂L/∂a (V,), and ∂L/∂γ (K, V).
    """
    layout = corpus.occurrences
    sequence = layout.index.astype(jnp.int32)
    score = jnp.where(layout.count > 0, layout.spread(scores) - take(top, sequence), -jnp.inf)
    weight = layout.count.astype(scores.dtype) * jnp.exp(score)
    d_values = [weight * take(x, sequence) for x in d_sums]
    d_score = [
        d_value * (layout.spread(value) - take(average, sequence))
        for d_value, value, average in zip(d_values, columns, averages, strict=True)
    ]
    d_scores, *d_columns = layout.sum(sum(d_score[1:], d_score[0]), *d_values)
    return d_scores, jnp.stack(d_columns)
