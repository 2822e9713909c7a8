"""Attention of one lane, with gathers over the two layouts of the corpus.

`forward_anywhere` and `backward_anywhere` shift every sequence by its own top score, whatever the scores;
`forward` and `backward` take one shift for all sequences where that is safe, in half the time.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.attention.bag_softmax import average
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

    def narrow(weighted: Any) -> tuple[Array, Array, Array]:
        normaliser, *sums = corpus.bags.dot(*weighted)
        return jnp.stack(sums) / normaliser, jnp.broadcast_to(highest, normaliser.shape), normaliser

    return jax.lax.cond(
        is_narrow(scores), narrow, lambda _: forward_anywhere(corpus, scores, columns), weighted
    )


def backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, flows: Array
) -> tuple[Array, Array]:
    """Carry flows ḡ / normaliser back: ∂L/∂γ_s = Σ_X q_s ḡ_X, ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X).

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,).
        columns: γ, (K, V).
        averages: f, (K, n).
        shift: (n,); what the scores of each sequence were shifted by.
        flows: ḡ divided by the normaliser, (K, n).

    Returns:
        ∂L/∂a (V,), and ∂L/∂γ (K, V).
    """
    highest = jax.lax.stop_gradient(scores.max())
    scaled = flows * jnp.exp(jnp.where(is_narrow(scores), highest - shift, 0))
    carried = ((scaled * averages).sum(axis=0), *scaled)

    def narrow(carried: Any) -> tuple[Array, Array]:
        pulled, *pushed = corpus.occurrences.dot(*carried)
        d_columns = jnp.stack(pushed)
        weight = jnp.exp(scores - highest)
        return weight * ((columns * d_columns).sum(axis=0) - pulled), weight * d_columns

    def anywhere(_: Any) -> tuple[Array, Array]:
        return backward_anywhere(corpus, scores, columns, averages, shift, flows)

    return jax.lax.cond(is_narrow(scores), narrow, anywhere, carried)


def is_narrow(scores: Array) -> Array:
    """Whether one global shift keeps exp(a) in range for every sequence; () bool."""
    return scores.max() - scores.min() < 0.7 * math.log(jnp.finfo(scores.dtype).max)


def forward_anywhere(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Do what `forward` does, shifting every sequence by its own top score."""
    token = corpus.bags.index.astype(jnp.int32)
    averages, top, normaliser = average(
        corpus.bags, take(scores, token), tuple(take(x, token) for x in columns)
    )
    return jnp.stack(averages), top, normaliser


def backward_anywhere(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, flows: Array
) -> tuple[Array, Array]:
    """Do what `backward` does for any spread: one exponential for every entry."""
    layout = corpus.occurrences
    sequence = layout.index.astype(jnp.int32)
    score = jnp.where(layout.count > 0, layout.spread(scores) - take(shift, sequence), -jnp.inf)
    weight = layout.count.astype(scores.dtype) * jnp.exp(score)
    weighted = [weight * take(flow, sequence) for flow in flows]
    pulls = [
        flow * (layout.spread(value) - take(average, sequence))
        for flow, value, average in zip(weighted, columns, averages, strict=True)
    ]
    d_scores, *d_columns = layout.sum(sum(pulls[1:], pulls[0]), *weighted)
    return d_scores, jnp.stack(d_columns)
