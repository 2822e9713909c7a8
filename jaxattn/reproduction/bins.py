"""Means within bins, of all seeds and with each left out, and the shapes of such rows."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxattn.results.correlations import bin_numbers, spearman

Rows = NDArray[np.float64]


class Binned(NamedTuple):
    """Means and standard deviations within bins, of all seeds (row 0) and with each left out (after it).

    Attributes:
        centres: (m,) of the bins.
        tokens: (m,) how many a seed has, mean over seeds.
        mean: (1 + S, m), NaN for an empty bin; (1, m) for one seed.
        sd: as mean.
    """

    centres: Rows
    tokens: Rows
    mean: Rows
    sd: Rows

    @property
    def width(self) -> float:
        """Of a bin, where all are equally wide."""
        return float(self.centres[1] - self.centres[0]) if len(self.centres) > 1 else 0.0

    @property
    def over(self) -> str:
        """What intervals are over, in words."""
        seeds = len(self.mean) - 1 or 1
        return "one seed" if seeds == 1 else f"{seeds} seeds"


def binned(
    tokens: pd.DataFrame, quantity: str, *, edges: ArrayLike, x: str = "posterior_difference"
) -> Binned:
    """Average a quantity within bins, over all seeds and over all but each.

    Args:
        tokens: rows with columns seed, x and the quantity.
        quantity: the column to average.
        edges: (m + 1,) ascending bounds of the bins; points outside are left out.
        x: the column that is binned.

    Returns:
        The bins.
    """
    edges = np.asarray(edges, float)
    bins = len(edges) - 1
    at, y = tokens[x].to_numpy(float), tokens[quantity].to_numpy(float)
    place = bin_numbers(at, edges)
    inside = (place >= 0) & np.isfinite(y)
    place, y = place[inside], y[inside]
    seeds, lane = np.unique(tokens["seed"].to_numpy()[inside], return_inverse=True)
    cell, weights = lane * bins + place, 1 - np.eye(1 + len(seeds), len(seeds), -1)
    weights = weights if len(seeds) > 1 else weights[:1]
    n, first, second = (
        weights @ np.bincount(cell, y**power, len(seeds) * bins).reshape(len(seeds), bins)
        for power in range(3)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = first / n
        sd = np.sqrt(np.maximum(second / n - mean**2, 0))
    counts = np.bincount(place, minlength=bins) / max(len(seeds), 1)
    return Binned((edges[1:] + edges[:-1]) / 2, counts, mean, sd)


def lowest(rows: Rows, centres: Rows) -> Rows:
    """Find the centre of every row's lowest bin, (B,); NaN for a row without a finite entry."""
    return _each(lambda row: centres[np.nanargmin(row)] if np.isfinite(row).any() else math.nan, rows)


def u_shape(rows: Rows, centres: Rows) -> Rows:
    """Measure how U-shaped every row is about 0: the weaker of its fall on the left and rise on the right.

    min(-Spearman(row, x) over x < 0, Spearman(row, x) over x > 0)

    Returns:
        (B,): 1 for a U, about 0 or below for a flat or a monotone row.
    """
    left, right = centres < 0, centres > 0
    return np.minimum(-spearman(rows[:, left], centres[left]), spearman(rows[:, right], centres[right]))


def longest_rise(rows: Rows) -> tuple[Rows, Rows, Rows]:
    """Find the longest run of bins in which a row rises from each to the next.

    Args:
        rows: (B, m); NaN is skipped.

    Returns:
        (B,) bins in the run, (B,) number of its first bin and (B,) of its last.
    """
    found = np.array([_run(row) for row in rows], float)
    return found[:, 0], found[:, 1], found[:, 2]


def _run(row: Rows) -> tuple[int, int, int]:
    used = np.flatnonzero(np.isfinite(row))
    best, start = (0, 0, 0), 0
    for k in range(len(used)):
        if k and row[used[k]] <= row[used[k - 1]]:
            start = k
        best = max(best, (k - start + 1, int(used[start]), int(used[k])), key=lambda run: run[0])
    return best


def sign_change(rows: Rows, centres: Rows) -> Rows:
    """Share of the bins whose sign is that of their centre, (B,); bins at 0 and empty ones are left out."""

    def one(row: Rows) -> float:
        use = np.isfinite(row) & (np.abs(centres) > 1e-9)
        return float((np.sign(row[use]) == np.sign(centres[use])).mean()) if use.any() else math.nan

    return _each(one, rows)


def _each(function: Callable[[Rows], float], rows: Rows) -> Rows:
    return np.array([function(row) for row in rows], float)
