"""Angles without the cancellation of 1 - cos, and the margin of a direction."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxattn.data.ragged import take
from jaxattn.theory.scores import Scores
from jaxattn.theory.selection import Selection


def cosine(a: Any, b: Any) -> Any:
    """Cosine of the angle between two vectors: a·b / (‖a‖ ‖b‖).

    Args:
        a: (..., d) float.
        b: (..., d) float, broadcast against `a`.

    Returns:
        (...) in [-1, 1], NaN if a vector is zero; float64 from NumPy, or a JAX array under a trace.
    """
    return 1.0 - one_minus_cosine(a, b)


def one_minus_cosine(a: Any, b: Any) -> Any:
    """One minus the cosine, with full relative precision for small angles: ½ ‖a/‖a‖ - b/‖b‖‖².

    Args:
        a: (..., d) float.
        b: (..., d) float, broadcast against `a`.

    Returns:
        (...) in [0, 2], NaN if a vector is zero; float64 from NumPy, or a JAX array under a trace.
    """
    a, b = _unit(a), _unit(b)
    # Rounding would take opposite vectors a little beyond.
    return (0.5 * ((a - b) ** 2).sum(-1)).clip(max=2)


def margin(p: Float[Array, " D"], scores: Scores, selection: Selection) -> Float[Array, ""]:
    """Margin of a direction: by how much p/‖p‖ scores selected tokens above the others, at least.

        min over X, s ∈ S_X, s' ∈ X \\ S_X of  p·(Φ_s - Φ_s') / ‖p‖

    The max-margin direction is the one with the largest; it is negative if p does not separate.

    Args:
        p: (D,) float.
        scores: keys Φ (m, D), and bags of n sequences.
        selection: the selected tokens of each sequence, for example those of the limit of p.

    Returns:
        () float; inf if there is nothing to separate, NaN if p = 0.
    """
    bags = scores.corpus.bags
    entries = take(jnp.matmul(scores.keys, p, precision="highest"), bags.index.astype(jnp.int32))
    others = (bags.count > 0) & ~selection.mask
    lowest = -bags.max(jnp.where(selection.mask, -entries, -jnp.inf))
    highest = bags.max(jnp.where(others, entries, -jnp.inf))
    return (lowest - highest).min() / jnp.linalg.norm(p)


def _unit(x: Any) -> Any:
    # Float64 even where JAX has no x64: in float32 no angle below 1e-4 could be seen.
    traced = isinstance(x, jax.core.Tracer)
    x = jnp.asarray(x) if traced else np.asarray(x, np.float64)
    xp = jnp if traced else np
    # The largest entry goes first, since the squares of a norm of 1e-200 would underflow.
    largest = xp.abs(x).max(-1, keepdims=True)
    x = x / xp.where(largest > 0, largest, xp.nan)
    return x / xp.sqrt((x**2).sum(-1, keepdims=True))
