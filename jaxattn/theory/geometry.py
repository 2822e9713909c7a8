"""The angle between two directions, without the cancellation of 1 - cos."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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
    return 0.5 * ((a - b) ** 2).sum(-1)


def _unit(x: Any) -> Any:
    # Float64 even where JAX has no x64: in float32 no angle below 1e-4 could be seen.
    traced = isinstance(x, jax.core.Tracer)
    x = jnp.asarray(x) if traced else np.asarray(x, np.float64)
    xp = jnp if traced else np
    # The largest entry goes first, since the squares of a norm of 1e-200 would underflow.
    largest = xp.abs(x).max(-1, keepdims=True)
    x = x / xp.where(largest > 0, largest, xp.nan)
    return x / xp.sqrt((x**2).sum(-1, keepdims=True))
