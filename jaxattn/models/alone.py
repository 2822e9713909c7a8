"""Attention of one lane, gathers only: every sequence is shifted by its own top score, whatever the scores."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take

Columns = tuple[Array, ...]


def forward(corpus, scores, columns):
    """Shift every sequence by its own top score. The shift is kept apart from the normaliser: their sum in
    logarithms would round away what tells close scores of size 1e4 apart in float32."""
    bags = corpus.bags
    token = bags.index.astype(jnp.int32)
    score = jnp.where(bags.count > 0, take(scores, token), -jnp.inf)
    top = bags.max(score)
    # A padding sequence has no token; a shift of 0 keeps its weights at exp(-inf) = 0.
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    weight = bags.count.astype(scores.dtype) * jnp.exp(score - bags.spread(top))
    normaliser, *sums = bags.sum(weight, *(weight * take(x, token) for x in columns))
    return tuple(x / normaliser for x in sums), top, normaliser


def backward(corpus, scores, columns, averages, shift, flows):
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
    return d_scores, tuple(d_columns)
