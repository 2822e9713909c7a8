"""Shapes of curves: where a curve is lowest, its signs, and whether it is U-shaped.

All functions take B curves as rows of a (B, m) array, such as the curve of all seeds and those with each seed
left out, and return one number per curve. `finding.leave_one_out` takes these numbers.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jaxattn.lab.results.correlations import spearman

_Rows = NDArray[np.float64]


def lowest(rows: _Rows, centres: _Rows) -> _Rows:
    """Return the centre of the bin with the lowest value in each of B rows, (B,); NaN if none is finite.

    Example:
        >>> from jaxattn.lab import books
        >>> books.lowest(np.array([[3.0, 1.0, 2.0]]), np.array([-1.0, 0.0, 1.0])).tolist()
        [0.0]
    """
    return _per_row(lambda row: centres[np.nanargmin(row)] if np.isfinite(row).any() else math.nan, rows)


def u_shape(rows: _Rows, centres: _Rows) -> _Rows:
    """Return a score for the U-shape of each row about 0: 1 for a U, near 0 or negative if flat or monotone.

    Let x be the bin centres. The score is min(-Spearman(row, x) over x < 0, Spearman(row, x) over x > 0).

    Args:
        rows: (B, m).
        centres: (m,).

    Returns:
        The scores, (B,).

    Example:
        >>> from jaxattn.lab import books
        >>> centres = np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
        >>> books.u_shape(np.stack([centres**2, centres]), centres).round(3).tolist()
        [1.0, -1.0]
    """
    left, right = centres < 0, centres > 0
    return np.minimum(-spearman(rows[:, left], centres[left]), spearman(rows[:, right], centres[right]))


def sign_change(rows: _Rows, centres: _Rows) -> _Rows:
    """Return the fraction of bins in each of B rows whose mean has the same sign as the bin centre, (B,).

    Empty bins and bins centred at 0 are skipped.

    Example:
        >>> from jaxattn.lab import books
        >>> books.sign_change(np.array([[-2.0, 1.0, 3.0]]), np.array([-1.0, -0.5, 1.0])).round(3).tolist()
        [0.667]
    """

    def one(row: _Rows) -> float:
        use = np.isfinite(row) & (np.abs(centres) > 1e-9)
        return float((np.sign(row[use]) == np.sign(centres[use])).mean()) if use.any() else math.nan

    return _per_row(one, rows)


def _per_row(function: Callable[[_Rows], float], rows: _Rows) -> _Rows:
    return np.array([function(row) for row in rows], float)
