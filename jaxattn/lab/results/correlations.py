"""Bin statistics, and correlations of points and of bin means under many weightings.

A bootstrap resample of N points is a vector of N integer weights, so all resamples are computed in one pass.
"""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxattn.core.errors import InputError
from jaxattn.lab.results.run import Run

BINS = 20


def axis(results: Run, cell: int) -> dict[str, Any]:
    """Return the posterior-difference bins of a cell, by default `BINS` over [-1, 1].

    Returns:
        bins, low and high, as arguments of `bin_means`.
    """
    found: dict[str, Any] = {"bins": BINS, "low": -1.0, "high": 1.0}
    with suppress(InputError):
        if number := results.lookup(cell, "probes.bins"):
            ends = {end: results.lookup(cell, f"probes.{end}") for end in ("low", "high")}
            found = {"bins": number} | ends
    return found


def bin_numbers(x: ArrayLike, edges: ArrayLike) -> NDArray[np.int64]:
    """Return the bin index of each point, or -1.

    Bin b is edges[b] ≤ x < edges[b + 1]; the last one includes its upper edge.

    Args:
        x: (N,); NaN belongs to no bin.
        edges: (m + 1,) ascending.

    Returns:
        (N,) from -1 to m - 1.
    """
    x, edges = np.asarray(x, float), np.asarray(edges, float)
    # Ratios of counts can lie exactly on an edge, but are rounded to float32.
    gaps = np.diff(edges[np.isfinite(edges)])
    slack = 1e-5 * gaps.min() if gaps.size else 0.0
    inside = (x >= edges[0] - slack) & (x <= edges[-1] + slack)
    number = np.clip(np.searchsorted(edges - slack, x, side="right") - 1, 0, len(edges) - 2)
    return np.where(inside, number, -1)


def quantile_edges(x: ArrayLike, bins: int) -> NDArray[np.float64]:
    """Return the edges of bins with about the same number of points. Tied points are in the same bin."""
    inner = np.unique(np.quantile(np.asarray(x, float), np.linspace(0, 1, bins + 1)[1:-1]))
    return np.concatenate([[-np.inf], inner, [np.inf]])


def bin_means(
    x: ArrayLike, y: ArrayLike, *, bins: int = BINS, low: float = -1.0, high: float = 1.0
) -> pd.DataFrame:
    """Average y in equal bins of x, both (N,).

    Returns:
        One row per bin: center, n, mean and sd (NaN for an empty bin). Points outside [low, high] are
            dropped.
    """
    edges = np.linspace(low, high, bins + 1)
    number = bin_numbers(x, edges)
    inside = number >= 0
    groups = pd.Series(np.asarray(y, float)[inside]).groupby(number[inside])
    n = np.bincount(number[inside], minlength=bins)
    table = pd.DataFrame({"center": (edges[1:] + edges[:-1]) / 2, "n": n})
    return table.assign(mean=groups.mean(), sd=groups.std(ddof=0))


Floats = NDArray[np.float64]

CORRELATIONS = ("Pearson, tokens", "Spearman, tokens", "Pearson, bins", "Spearman, bins")


class Binned(NamedTuple):
    """One variable of a correlation, with bins.

    Attributes:
        values: (N,).
        bins: (N,) int, the bin of each point, -1 for none.
    """

    values: Floats
    bins: NDArray[np.int64]


def correlations(x: Binned, y: Floats, weights: Floats) -> Floats:
    """Compute correlations of points, and of their means in bins of x, under many weightings.

    Args:
        x: N points and their bins.
        y: (N,).
        weights: (R, N) ≥ 0; multiplicity of each point.

    Returns:
        (4, R): `CORRELATIONS`. NaN if x or y is constant, or if fewer than two points or bins have weight.
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
    """Compute Pearson's correlation of weighted points along the last axis.

    Args:
        x: (..., N), with the shape of y.
        y: (..., N); broadcast against the weights.
        weights: (R, N) ≥ 0.

    Returns:
        (R,); NaN if x or y is constant.
    """
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The mean of equal numbers may differ from them by rounding error.
        rounding = [1e-24 * (weights * z * z).sum(axis=-1) for z in (x, y)]
        x, y = (z - (weights * z).sum(axis=-1, keepdims=True) / total for z in (x, y))
        xx, yy, xy = ((weights * z).sum(axis=-1) for z in (x * x, y * y, x * y))
        constant = (xx <= rounding[0]) | (yy <= rounding[1])
        return np.where(constant, np.nan, xy / np.sqrt(np.where(constant, 1, xx * yy)))


def spearman(x: ArrayLike, y: ArrayLike, *, fewest: int = 3) -> Floats:
    """Compute Spearman's correlation between each row of x and y, over entries that are finite in both.

    Args:
        x: (B, m).
        y: (B, m), or (m,) for all rows.
        fewest: minimum number of entries.

    Returns:
        (B,); NaN if too few entries are finite, or x or y is constant.
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
    """Compute ranks of points with multiplicities, with average ranks for ties.

    Args:
        values: (N,).
        weights: (R, N) ≥ 0.

    Returns:
        (R, N): the mean rank 1, 2, ... of the copies of each point among all copies. A point with weight 0
        has the rank at which it would be inserted.
    """
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    start = np.searchsorted(place[order], np.arange(len(distinct)))
    size = np.add.reduceat(weights[:, order], start, axis=1)
    below = np.cumsum(size, axis=1) - size
    return (below + (size + 1) / 2)[:, place]
