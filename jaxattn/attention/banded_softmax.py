"""Attention of a batch of scores over one corpus, as products with its count matrix, one for every band.

A product of the count matrix with exp(a - h), for one ceiling h of all sequences, underflows for a sequence
whose scores all lie far below h. So it is taken once for every band, with weights exp(a_s - h_b) where
a_s ≤ h_b, else 0. A sequence takes its sums from the first band in which it has weight, that is, the band of
its top score: no token of it lies above the ceiling, its top weight is e^-w or more, and the softmax is exact
to rounding.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.attention import bands
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged


def forward(
    corpus: Corpus, scores: Array, columns: Array, num_bands: int | Array
) -> tuple[Array, Array, Array]:
    """Average values over every sequence of one corpus, for a batch of scores and values.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (S, V).
        columns: γ, (S, K, V).
        num_bands: () int; how many bands to compute. Results for scores with more bands are wrong.

    Returns:
        f (S, K, n); the ceiling h of every sequence, (S, n); Σ_s count_s exp(a_s - h), (S, n).
    """
    top, tokens, values = bands.first_ceiling(scores)[None], scores.T, columns.transpose(2, 1, 0)
    # Every token of the first band without weight lies below the next ceiling, also after rounding.
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


def backward(
    corpus: Corpus,
    scores: Array,
    columns: Array,
    averages: Array,
    shift: Array,
    d_sums: Array,
    num_bands: int | Array,
) -> tuple[Array, Array, Array]:
    """Compute the cotangents ∂L/∂γ_s = Σ_X q_s ḡ_X and ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X).

    Args:
        corpus: n sequences over V tokens.
        scores: a, (S, V).
        columns: γ, (S, K, V).
        averages: f, (S, K, n).
        shift: (S, n), a ceiling for each sequence.
        d_sums: ∂L/∂f over the normaliser, (S, K, n).
        num_bands: () int; how many bands to compute. Results for scores with more bands are wrong.

    Returns:
        ∂L/∂a (S, V); ∂L/∂γ (S, K, V); and where cancellation took a third of the digits of ∂L/∂a, (S,) bool.
        The two sums Σ_X q_s ḡ_X γ_s and Σ_X q_s ḡ_X f_X nearly agree if attention rests on one token of
        almost every sequence.
    """
    top, tokens, values = bands.first_ceiling(scores)[None], scores.T, columns.transpose(2, 1, 0)
    own_shift, d_sums_by_sequence = shift.T, d_sums.transpose(2, 1, 0)
    delta = (d_sums * averages).sum(axis=1).T[:, None]
    by_sequence = jnp.concatenate([delta, d_sums_by_sequence], axis=1)

    def band(b: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        d_scores, d_values, largest = carry
        ceiling = _ceiling(top, b)
        # Beyond 2^30 in float32 one float may be the ceiling of several bands.
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
