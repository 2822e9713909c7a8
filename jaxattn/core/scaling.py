"""Exact rescaling by powers of two, which keeps thresholds independent of the unit of length."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


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
