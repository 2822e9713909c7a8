"""Bands of scores, so narrow that within a band no exponential overflows or underflows.

The ceilings of the bands of width w are

    h_b = h - b w,    h = max a, rounded up,    b = 0, 1, ...

A sequence uses the ceiling h_b of the band of its largest score as its shift. Ceilings are exact: w is a
power of two, and h is a multiple of the spacing of floats at max |a|.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array


def width(dtype: jnp.dtype) -> float:
    """Return the width w of a band: 64 in float32, 512 in float64.

    Neglected scores are by at least log(max) - w = 24 smaller than the largest score of their sequence.
    """
    return 2.0 ** math.floor(math.log2(math.log(jnp.finfo(dtype).max)))


def first_ceiling(scores: Array) -> Array:
    """Return the first ceiling h of scores (..., V): (...,), without derivative."""
    scores = jax.lax.stop_gradient(scores)
    # For |a| below about 1 the spacing may underflow.
    largest = jnp.maximum(jnp.abs(scores).max(axis=-1), 1)
    spacing = largest - jnp.nextafter(largest, jnp.zeros_like(largest))
    return spacing * jnp.ceil(scores.max(axis=-1) / spacing)


def count(scores: Array, most: int) -> Array:
    """Return the number of bands of scores (S, V), (S,): 1 to `most`, or `most` + 1 if there are more.

    Scores with NaN count as one band: their results are NaN, and the rest of the batch is not slowed down.
    """
    spread = first_ceiling(scores) - scores.min(axis=1)
    multiples = width(scores.dtype) * jnp.arange(1, most + 1, dtype=scores.dtype)
    return 1 + (spread[:, None] >= multiples[None]).sum(axis=1)


def split(scores: Array) -> tuple[Array, Array]:
    """Factor exp(a_s) = exp(h_b) · exp(a_s - h_b) with the smallest ceiling h_b ≥ a_s, for any finite spread.

    Args:
        scores: a, (V,).

    Returns:
        h_b of every token, without derivative, (V,); and exp(a - h_b), between e^-w and 1, (V,).
    """
    w, fixed, first = width(scores.dtype), jax.lax.stop_gradient(scores), first_ceiling(scores)
    # Bands are counted from a ceiling near 0, because a difference of two large numbers would be rounded.
    offset = first - w * jnp.floor(first / w)
    ceiling = offset + w * jnp.ceil((fixed - offset) / w)
    ceiling = jnp.where(ceiling < fixed, ceiling + w, ceiling)
    ceiling = jnp.where(ceiling - w >= fixed, ceiling - w, ceiling)
    return ceiling, jnp.exp(scores - ceiling)


def factor(ceiling: Array, of_sequence: Array) -> Array:
    """Return exp(h_b - h_X) for tokens of a sequence X: 1 in its band, e^-w in the next, and 0 below.

    `of_sequence` is h_X, the ceiling of the largest score of each token's sequence.
    """
    w = width(ceiling.dtype)
    next_band = jnp.where(ceiling == of_sequence - w, math.exp(-w), 0)
    return jnp.where(ceiling == of_sequence, 1, next_band).astype(ceiling.dtype)


def divide(sums: Array, normaliser: Array) -> Array:
    """Divide by a normaliser ≥ exp(-w), whose square, in the derivative of a ratio, may underflow."""
    scale = jax.lax.stop_gradient(normaliser)
    # Not normaliser / scale, because XLA would combine the two ratios to one with a square.
    return sums / scale / (1 + (normaliser - scale) / scale)
