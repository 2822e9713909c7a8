"""Scores cut into bands of a width w that exp can span, so that no exponential overflows or is lost.

    h_b = h - b w,    h = max a, rounded up,    b = 0, 1, ...

A sequence takes the ceiling h_b of the band that its top score lies in as its shift. The ceilings are the
same numbers wherever they are computed: w is a power of two, and h a multiple of the spacing of floats at
max |a|, so that no h_b is rounded.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array


def width(dtype: jnp.dtype) -> float:
    """The width w of a band: 64 in float32, 512 in float64.

    What is lost lies by log(max) - w = 24 or more below a sequence's top score.
    """
    return 2.0 ** math.floor(math.log2(math.log(jnp.finfo(dtype).max)))


def first_ceiling(scores: Array) -> Array:
    """Compute the first ceiling h of scores (..., V): (...,), no derivative."""
    scores = jax.lax.stop_gradient(scores)
    # Smaller than about 1 the spacing may underflow.
    largest = jnp.maximum(jnp.abs(scores).max(axis=-1), 1)
    spacing = largest - jnp.nextafter(largest, jnp.zeros_like(largest))
    return spacing * jnp.ceil(scores.max(axis=-1) / spacing)


def count(scores: Array, most: int) -> Array:
    """Count the bands of scores (S, V), 1 to `most`, or `most` + 1 if they need more. Returns (S,).

    Scores that hold NaN count as one band: they come out as NaN, and delay nothing else in the batch.
    """
    spread = first_ceiling(scores) - scores.min(axis=1)
    multiples = width(scores.dtype) * jnp.arange(1, most + 1, dtype=scores.dtype)
    return 1 + (spread[:, None] >= multiples[None]).sum(axis=1)


def split(scores: Array) -> tuple[Array, Array]:
    """Split exp(a_s) = exp(h_b) · exp(a_s - h_b) at the ceiling h_b next above a_s, for any finite spread.

    Args:
        scores: a, (V,).

    Returns:
        h_b of every token, no derivative, (V,); and exp(a - h_b), from e^-w to 1, (V,).
    """
    w, fixed, first = width(scores.dtype), jax.lax.stop_gradient(scores), first_ceiling(scores)
    # Counted from a ceiling near 0: the difference of two large numbers would lose the band.
    offset = first - w * jnp.floor(first / w)
    ceiling = offset + w * jnp.ceil((fixed - offset) / w)
    ceiling = jnp.where(ceiling < fixed, ceiling + w, ceiling)
    ceiling = jnp.where(ceiling - w >= fixed, ceiling - w, ceiling)
    return ceiling, jnp.exp(scores - ceiling)


def factor(ceiling: Array, of_sequence: Array) -> Array:
    """Compute exp(h_b - h_X) for tokens of a sequence X: in its band 1, in the next e^-w, and 0 below.

    Args:
        ceiling: h_b of tokens.
        of_sequence: h_X, of the top score of the sequence that each is in.
    """
    w = width(ceiling.dtype)
    next_band = jnp.where(ceiling == of_sequence - w, math.exp(-w), 0)
    return jnp.where(ceiling == of_sequence, 1, next_band).astype(ceiling.dtype)


def divide(sums: Array, normaliser: Array) -> Array:
    """Divide by a normaliser from exp(-w) on, whose square, in the derivative of a ratio, may underflow."""
    scale = jax.lax.stop_gradient(normaliser)
    # Not normaliser / scale: XLA would turn the ratio of two ratios into one, over a square.
    return sums / scale / (1 + (normaliser - scale) / scale)
