"""Bin statistics, and correlations over points and over bin means, for many weight vectors at once.

A bootstrap resample of N points is a vector of N integer weights, so a single pass handles all resamples.
"""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxattn.core.errors import InputError
from jaxattn.core.fractions import bin_numbers
from jaxattn.lab.results.run import Run

BINS = 20
Floats = NDArray[np.float64]


def axis(results: Run, cell: int) -> dict[str, Any]:
    """Return the bins of the posterior difference used in a cell; by default, `BINS` bins over [-1, 1].

    Returns:
        `bins`, `low` and `high`, as keyword arguments for `bin_means`.
    """
    found: dict[str, Any] = {"bins": BINS, "low": -1.0, "high": 1.0}
    with suppress(InputError):
        if number := results.lookup(cell, "probes.bins"):
            ends = {end: results.lookup(cell, f"probes.{end}") for end in ("low", "high")}
            found = {"bins": number} | ends
    return found


def quantile_bins(x: Floats, edges: Floats, dtype: str = "float32") -> NDArray[np.int64]:
    """Return the bin index of each point for bins between quantiles, or -1 outside all bins.

    The values of α span decades, so each edge has a tolerance relative to its own size; see
    `jaxattn.core.fractions.bin_numbers`.
    """
    numbers: NDArray[np.int64] = bin_numbers(x, edges, scale=np.abs(edges), dtype=dtype)
    return numbers


def quantile_edges(x: ArrayLike, bins: int) -> Floats:
    """Return edges of bins with approximately equal numbers of points; tied points are in the same bin."""
    inner = np.unique(np.quantile(np.asarray(x, float), np.linspace(0, 1, bins + 1)[1:-1]))
    return np.concatenate([[-np.inf], inner, [np.inf]])


def bin_means(
    x: ArrayLike, y: ArrayLike, *, bins: int = BINS, low: float = -1.0, high: float = 1.0
) -> pd.DataFrame:
    """Average y within equal-width bins of x; x and y are (N,).

    Returns:
        One row per bin, with columns center, n, mean and sd (NaN for an empty bin). Points outside
        [low, high] are dropped.

    Example:
        >>> from jaxattn.lab.results import bin_means
        >>> bin_means([-0.5, 0.2, 0.4], [1.0, 2.0, 4.0], bins=2)
           center  n  mean   sd
        0    -0.5  1   1.0  0.0
        1     0.5  2   3.0  1.0
    """
    edges = np.linspace(low, high, bins + 1)
    number = bin_numbers(np.asarray(x, float), edges)
    inside = number >= 0
    groups = pd.Series(np.asarray(y, float)[inside]).groupby(number[inside])
    n = np.bincount(number[inside], minlength=bins)
    table = pd.DataFrame({"center": (edges[1:] + edges[:-1]) / 2, "n": n})
    return table.assign(mean=groups.mean(), sd=groups.std(ddof=0))


CORRELATIONS = ("Pearson, tokens", "Spearman, tokens", "Pearson, bins", "Spearman, bins")


class Binned(NamedTuple):
    """Variable to correlate, with its bins.

    Attributes:
        values: (N,); value of each point.
        bins: (N,) int; bin index of each point; -1 if the point is in no bin.
    """

    values: Floats
    bins: NDArray[np.int64]


def correlations(x: Binned, y: Floats, weights: Floats) -> Floats:
    """Compute correlations of x with y, over points and over means in bins of x, for many weight vectors.

    Args:
        x: N points and their bins.
        y: (N,).
        weights: (R, N) ≥ 0; multiplicity of each point.

    Returns:
        (4, R), in the order of `CORRELATIONS`. NaN if x or y is constant, or if fewer than two points or
        bins have positive weight.
    """
    ranks = weighted_ranks(x.values, weights), weighted_ranks(y, weights)
    member = (x.bins[:, None] == np.arange(x.bins.max(initial=0) + 1)).astype(float)
    size = weights @ member
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_x, mean_y = (weights @ (member * z[:, None]) / size for z in (x.values, y))
    full = (size > 0).astype(float)
    held_x, held_y = (np.where(size > 0, z, 0) for z in (mean_x, mean_y))
    return np.stack(
        [
            pearson(x.values, y, weights),
            pearson(*ranks, weights),
            pearson(held_x, held_y, full),
            spearman(mean_x, mean_y, fewest=2),
        ]
    )


def pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Compute Pearson's correlation over weighted points, along the last axis.

    Args:
        x: (..., N); same shape as y.
        y: (..., N); broadcast against the weights.
        weights: (R, N) ≥ 0.

    Returns:
        (R,); NaN if x or y is constant.
    """
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The computed mean of equal numbers can differ from their common value by a rounding error.
        rounding = [1e-24 * (weights * z * z).sum(axis=-1) for z in (x, y)]
        x, y = (z - (weights * z).sum(axis=-1, keepdims=True) / total for z in (x, y))
        xx, yy, xy = ((weights * z).sum(axis=-1) for z in (x * x, y * y, x * y))
        constant = (xx <= rounding[0]) | (yy <= rounding[1])
        return np.where(constant, np.nan, xy / np.sqrt(np.where(constant, 1, xx * yy)))


def spearman(x: ArrayLike, y: ArrayLike, *, fewest: int = 3) -> Floats:
    """Compute Spearman's correlation between each row of x and y, over entries that are finite in both.

    Args:
        x: (B, m).
        y: (B, m), or (m,) to use the same y for all rows.
        fewest: minimum number of entries.

    Returns:
        (B,); NaN if too few entries are finite, or if x or y is constant.

    Example:
        >>> from jaxattn.lab import books
        >>> books.spearman([[1, 2, 3], [3, 1, 2]], [1, 2, 4]).tolist()
        [1.0, -0.5]
    """
    x = np.asarray(x, float)
    y = np.broadcast_to(np.asarray(y, float), x.shape)
    used = np.isfinite(x) & np.isfinite(y)
    weights = used.astype(float)
    rank_x, rank_y = (
        np.reshape([weighted_ranks(row, w[None])[0] for row, w in zip(z, weights, strict=True)], x.shape)
        for z in (x, y)
    )
    return np.where(used.sum(axis=1) >= fewest, pearson(rank_x, rank_y, weights), np.nan)


def weighted_ranks(values: Floats, weights: Floats) -> Floats:
    """Compute ranks of points with multiplicities; ties get average ranks.

    Args:
        values: (N,).
        weights: (R, N) ≥ 0; multiplicity of each point, for R weight vectors.

    Returns:
        (R, N): for each point, the mean rank 1, 2, ... of its copies among the copies of all points. A point
        with weight 0 has the rank at which it would be inserted.
    """
    distinct, inverse = np.unique(values, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    start = np.searchsorted(inverse[order], np.arange(len(distinct)))
    size = np.add.reduceat(weights[:, order], start, axis=1)
    below = np.cumsum(size, axis=1) - size
    return (below + (size + 1) / 2)[:, inverse]
