"""Arithmetic that is written in a special way for speed, to be exact, or to avoid NaN."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxattn.core import backend


def sum_of_outer_products(left: Float[Array, "n k"], right: Float[Array, "n m"]) -> Float[Array, "k m"]:
    """Compute Σ_i left_i right_iᵀ = leftᵀ right."""
    columns = left.T
    # On a CPU, XLA's matrix product is two to three times faster for an explicitly transposed copy.
    return (jax.lax.optimization_barrier(columns) if backend.platform() == "cpu" else columns) @ right


def nonzero(x: Array) -> Array:
    """Replace 0 by 1, so that the result can be used as a divisor."""
    return jnp.where(x == 0, 1, x)


def power_of_two(x: Any) -> Any:
    """Return the largest power of two that is at most |x|, elementwise.

    Multiplication or division by a power of two is exact in floating point unless it overflows or underflows.
    Code that divides lengths by this number and undoes the scaling on return therefore gives the same result,
    bitwise, for inputs that differ by a power of two. Works under jit, vmap and grad, where the derivative
    of the result is zero.

    Args:
        x: (...) float; a length, such as the largest absolute entry of an array.

    Returns:
        (...) with the dtype of `x`; a JAX array if `x` is one, otherwise a NumPy array. 1 where x is 0, inf
        or NaN. Powers are limited to the range in which both they and their reciprocals are normal numbers.
    """
    xp: Any = jnp if isinstance(x, jax.Array) else np
    x = xp.asarray(x)
    x = x if xp.issubdtype(x.dtype, xp.floating) else x.astype(float)
    kind, integer = jnp.finfo(x.dtype), np.dtype(f"int{8 * x.dtype.itemsize}").type
    digits, one = int(kind.nmant), int(kind.maxexp) - 1
    infinite = 2 * one + 1  # exponent field of inf and NaN, where `one` is the field of 1
    # Read the exponent from the bits: comparisons would treat subnormal numbers as 0 on some devices.
    bits = x.view(integer) & np.iinfo(integer).max
    field = xp.clip(bits >> digits, 1, infinite - 2)
    field = xp.where((bits > 0) & (bits >> digits < infinite), field, one)
    return (field.astype(integer) << digits).view(x.dtype)


def dual_norm(q: float) -> float:
    """Return the exponent q* of the dual norm, where 1/q + 1/q* = 1."""
    return np.inf if q == 1 else 1.0 if q == np.inf else q / (q - 1)


def norm(x: np.ndarray, q: float) -> float:
    """Compute ‖x‖_q for a vector x, scaled so that powers do not overflow."""
    if q in (1, 2, np.inf):
        return float(np.linalg.norm(x, q))
    largest = np.abs(x).max(initial=np.finfo(float).tiny)
    return float(largest * np.linalg.norm(x / largest, q))


def lengths(rows: np.ndarray) -> np.ndarray:
    """Compute the norm of each row, (m,)."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))
