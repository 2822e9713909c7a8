"""Correlations of weighted points: of tokens and of their means over bins, for many weightings at once.

A bootstrap resample of N points is N whole-number weights, so that one pass without sorting gives the
statistics of all resamples.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STATISTICS = ("Pearson, tokens", "Spearman, tokens", "Pearson, bins", "Spearman, bins")


class Axis(NamedTuple):
    """One side of a correlation: the numbers of N points, and the bin of each, -1 for none.

    Attributes:
        values: (N,).
        bins: (N,) int, or None for the side that has no bins.
    """

    values: Floats
    bins: NDArray[np.int64]


def equal_bins(values: Floats, low: float, high: float, bins: int) -> Axis:
    """Bin points by equal intervals of [low, high]; points outside are in no bin."""
    number = np.floor((values - low) / (high - low) * bins).astype(np.int64)
    # A ratio of counts that was rounded to single precision still belongs to the last bin.
    number = np.where(np.abs(values - high) <= 1e-6, bins - 1, number)
    return Axis(values, np.where((number >= 0) & (number < bins), number, -1))


def equal_counts(values: Floats, bins: int) -> Axis:
    """Bin points by quantiles, so that bins hold about equally many; points that tie share a bin."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    return Axis(values, np.searchsorted(edges, values, side="right"))


def correlations(x: Axis, y: Floats, weights: Floats) -> Floats:
    """Correlate points, and their means over the bins of x, under many weightings.

    Args:
        x: N points and their bins.
        y: (N,).
        weights: (R, N) ≥ 0; how often each point counts.

    Returns:
        (4, R): `STATISTICS`. NaN where a side is constant or fewer than two points or bins are left.
    """
    ranks = weighted_ranks(x.values, weights), weighted_ranks(y, weights)
    member = (x.bins[:, None] == np.arange(x.bins.max(initial=0) + 1)).astype(float)
    size = weights @ member
    full = (size > 0).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = (
            np.where(size > 0, weights @ (member * z[:, None]) / size, 0) for z in (x.values, y)
        )
    rank_x, rank_y = (
        np.stack([weighted_ranks(row, use[None])[0] for row, use in zip(means, full, strict=True)])
        for means in (mean_x, mean_y)
    )
    return np.stack(
        [
            pearson(x.values, y, weights),
            pearson(*ranks, weights),
            pearson(mean_x, mean_y, full),
            pearson(rank_x, rank_y, full),
        ]
    )


def pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Compute Pearson's correlation of weighted points along the last axis.

    Args:
        x: (..., N), as y.
        y: (..., N); broadcast against the weights.
        weights: (R, N) ≥ 0.

    Returns:
        (R,); NaN where a side is constant.
    """
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The mean of equal numbers may differ from them in the last digit.
        rounding = [1e-24 * (weights * z * z).sum(axis=-1) for z in (x, y)]
        x, y = (z - (weights * z).sum(axis=-1, keepdims=True) / total for z in (x, y))
        xx, yy, xy = ((weights * z).sum(axis=-1) for z in (x * x, y * y, x * y))
        constant = (xx <= rounding[0]) | (yy <= rounding[1])
        return np.where(constant, np.nan, xy / np.sqrt(np.where(constant, 1, xx * yy)))


def weighted_ranks(values: Floats, weights: Floats) -> Floats:
    """Rank points that count several times; ties have their average rank.

    Args:
        values: (N,).
        weights: (R, N) ≥ 0.

    Returns:
        (R, N): the mean of the ranks 1, 2, ... that the copies of a point take among all copies. Points of
        weight 0 have the rank that they would enter with.
    """
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    start = np.searchsorted(place[order], np.arange(len(distinct)))
    size = np.add.reduceat(weights[:, order], start, axis=1)
    below = np.cumsum(size, axis=1) - size
    return (below + (size + 1) / 2)[:, place]


def resamples(points: int, number: int, rng: np.random.Generator) -> Floats:
    """Draw bootstrap weights: how often each of N points is drawn in N draws, (number, N)."""
    draws = rng.integers(0, points, (number, points))
    draws += points * np.arange(number)[:, None]
    return np.bincount(draws.ravel(), minlength=number * points).reshape(number, points).astype(float)
