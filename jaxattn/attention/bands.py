"""Split scores a into bands within which exponentials neither overflow nor underflow.

Bands have width w. The ceiling (upper end) of band b is

    h_b = h - b w,    h = max a, rounded up,    b = 0, 1, ...

In each sequence, scores are shifted by the ceiling of the band that contains its largest score. Ceilings are
exact: w is a power of two, and h is a multiple of the spacing of floats at max |a|.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array


def width(dtype: jnp.dtype) -> float:
    """Return the band width w: 64 in float32, 512 in float64.

    A token is neglected only if its score is at least about log(max) - w (24 in float32) below the largest
    score in its sequence, where max is the largest finite float.
    """
    return 2.0 ** math.floor(math.log2(math.log(jnp.finfo(dtype).max)))


def first_ceiling(scores: Array) -> Array:
    """Return the ceiling h of the first band, (...,), for scores (..., V). No gradient flows through h."""
    scores = jax.lax.stop_gradient(scores)
    # Use at least the spacing at 1, because the spacing of floats at max |a| could underflow if all |a| are
    # far below 1.
    largest = jnp.maximum(jnp.abs(scores).max(axis=-1), 1)
    spacing = largest - jnp.nextafter(largest, jnp.zeros_like(largest))
    return spacing * jnp.ceil(scores.max(axis=-1) / spacing)


def count(scores: Array, maximum: int) -> Array:
    """Return the number of bands from the largest to the smallest score of each batch member, (S,).

    Args:
        scores: (S, V). Members with NaN count as one band: their results are NaN in any case, so they should
            not slow down the rest of the batch.
        maximum: the result is at most `maximum` + 1.
    """
    spread = first_ceiling(scores) - scores.min(axis=1)
    multiples = width(scores.dtype) * jnp.arange(1, maximum + 1, dtype=scores.dtype)
    return 1 + (spread[:, None] >= multiples[None]).sum(axis=1)


def split(scores: Array) -> tuple[Array, Array]:
    """Factor exp(a_s) = exp(h_b) · exp(a_s - h_b), where h_b is the smallest ceiling ≥ a_s.

    Args:
        scores: a, (V,), of any finite spread.

    Returns:
        h_b for every token, (V,), through which no gradient flows; and exp(a - h_b), (V,), between e^-w and
        1.
    """
    w, fixed, first = width(scores.dtype), jax.lax.stop_gradient(scores), first_ceiling(scores)
    # Offset the band index, so that ceilings near 0 do not lose precision by subtracting large
    # numbers.
    offset = first - w * jnp.floor(first / w)
    ceiling = offset + w * jnp.ceil((fixed - offset) / w)
    ceiling = jnp.where(ceiling < fixed, ceiling + w, ceiling)
    ceiling = jnp.where(ceiling - w >= fixed, ceiling - w, ceiling)
    return ceiling, jnp.exp(scores - ceiling)


def factor(ceiling: Array, of_sequence: Array) -> Array:
    """Return exp(h_b - h_X): 1 if h_b = h_X, e^-w if h_b is the next lower ceiling, and 0 otherwise.

    Args:
        ceiling: h_b, the ceiling of each token's band.
        of_sequence: h_X, the ceiling of the band of the largest score in each token's sequence.
    """
    w = width(ceiling.dtype)
    next_band = jnp.where(ceiling == of_sequence - w, math.exp(-w), 0)
    return jnp.where(ceiling == of_sequence, 1, next_band).astype(ceiling.dtype)


def divide(sums: Array, normaliser: Array) -> Array:
    """Divide sums by a normaliser ≥ e^-w, where w is the band width.

    The derivative does not contain the square of the normaliser, which may underflow.
    """
    scale = jax.lax.stop_gradient(normaliser)
    # Do not divide by normaliser / scale: XLA would merge the two divisions and form a square, which may
    # underflow.
    return sums / scale / (1 + (normaliser - scale) / scale)
