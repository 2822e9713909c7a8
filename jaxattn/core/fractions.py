"""Fractions of counts: exact division, and comparisons that allow for rounding errors.

A fraction of counts, such as an accuracy of 14/20, is stored as the nearest float, and 0.7 in float32 is
below 0.7 in float64. Comparisons with a level therefore use the tolerance `ROUNDING`.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

# Tables and figures use this module, so it does not import JAX.

ROUNDING = 16
"""Number of machine epsilons, relative to the size of the values, within which two values count as equal."""


def rounding(dtype: DTypeLike = "float32") -> float:
    """Return the relative tolerance for values computed in `dtype`, `ROUNDING` times its machine epsilon."""
    return ROUNDING * float(np.finfo(dtype).eps)


def fraction(numerator: Any, denominator: Any) -> Any:
    """Divide counts, with correct rounding, so that equal fractions are equal floats.

    Args:
        numerator: array of integers in a floating-point dtype.
        denominator: same dtype; broadcast against the numerator.

    Returns:
        The fractions; NaN for 0/0.
    """
    # XLA replaces division by a broadcast array with multiplication by its rounded reciprocal, so that 41/41
    # is not 1. A denominator that depends on the numerator elementwise is not broadcast.
    return numerator / (denominator + 0 * numerator)


def share(mask: Any, axis: int = 0, dtype: DTypeLike = float) -> Any:
    """Return the fraction of True entries along an axis, correctly rounded.

    Args:
        mask: array of bool.
        axis: the axis.
        dtype: dtype of the result; defaults to the default float dtype.
    """
    return fraction(mask.sum(axis=axis, dtype=dtype), mask.shape[axis])


def reaches(x: Any, level: Any, *, scale: Any = None, dtype: DTypeLike = "float32") -> Any:
    """Return x ≥ level, where values that are equal up to rounding errors reach the level.

    Args:
        x: values; NaN never reaches a level.
        level: levels.
        scale: size of the values that the tolerance is relative to; defaults to |level|.
        dtype: dtype in which x was computed.
    """
    xp = _namespace(x)
    size = xp.where(xp.isfinite(level), xp.abs(level) if scale is None else scale, 0)
    return x >= level - rounding(dtype) * size


def bin_numbers(x: Any, edges: Any, *, scale: Any = None, dtype: DTypeLike = "float32") -> Any:
    """Return the bin index of each point, or -1 if the point is outside all bins.

    Bin b is edges[b] ≤ x < edges[b + 1], and the last bin includes its upper edge. A point that is on an edge
    up to rounding errors is in the bin above it.

    Args:
        x: (N,), a NumPy or JAX array; NaN is outside all bins.
        edges: (m + 1,) ascending.
        scale: size of the values that the tolerance is relative to, () or (m + 1,); defaults to the largest
            |edge|.
        dtype: dtype in which x was computed.

    Returns:
        (N,) int, from -1 to m - 1.
    """
    xp = _namespace(x)
    scale = xp.broadcast_to(xp.abs(edges).max() if scale is None else scale, edges.shape)
    number = reaches(x[:, None], edges, scale=scale, dtype=dtype).sum(axis=1) - 1
    inside = reaches(-x, -edges[-1], scale=scale[-1], dtype=dtype)
    return xp.where(inside, xp.minimum(number, len(edges) - 2), -1)


def tied(x: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Return fractions of 1 with values that differ only by rounding errors replaced by the same value.

    Sums of fractions with different denominators, such as the average signed frequency, are not correctly
    rounded, so equal sums can be different floats.

    Args:
        x: array of values that are at most 1 in absolute value, such as sums of frequencies.
        dtype: dtype in which x was computed; values closer than `rounding(dtype)` are equal.
    """
    size = np.abs(x)
    distinct = np.unique(size)
    starts = np.concatenate([[True], np.diff(distinct) > rounding(dtype)])
    first = distinct[starts]
    merged: np.ndarray = np.copysign(first[np.searchsorted(first, size, side="right") - 1], x)
    return merged


def _namespace(x: Any) -> Any:
    return x.__array_namespace__() if hasattr(x, "__array_namespace__") else np
