"""Agreement of curves by shape alone, with intervals over seeds, and the rule that turns it into a verdict.

What is not published (optimiser, rates, cut-off) sets the heights of the curves, so only ranks, the place of
the minimum and the range of rise are compared. One rule, `RULE`, gives every verdict.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxattn.claims.rows import Tolerance
from jaxattn.results.binning import bin_numbers
from jaxattn.results.correlations import spearman
from jaxattn.results.intervals import ENOUGH_SEEDS, clopper_pearson, held, jackknife, student_t
from jaxattn.results.numbers import with_interval

AGREES, DIFFERS, CANNOT_TELL, MEASURED = "agrees", "differs", "cannot tell", "measured"
RULE = (
    "A number agrees if its whole 95 % interval lies within the criterion, differs if none of it does, and "
    "cannot tell if it straddles the criterion or has no interval. It is only measured if nothing is "
    "published to hold it against. Shapes are compared, never heights: they depend on what is not published. "
    "Intervals are over seeds: Student's t, with the jackknife's standard error where all seeds together "
    "make a number; of shares those of Clopper and Pearson. One seed has none. Nor has a number that is the "
    f"same whichever seed is left out, which is held against the criterion itself from {ENOUGH_SEEDS} seeds "
    "on. An interval of a bin is never narrower than the bin."
)
OLD = (
    "Not so yet on this page: intervals of shapes are percentile bootstrap intervals, which cover less than "
    "95 % with few seeds; with fewer than six, tokens within bins were resampled as well. They will be made "
    "again."
)
Rows = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number with its 95 % interval, NaN if there is none, and how many seeds it is made of."""

    value: float
    low: float
    high: float
    seeds: int = 0


@dataclass(frozen=True)
class Finding:
    """One measured number beside what is published.

    Attributes:
        measured: the number's name.
        estimate: the number.
        over: what the interval is over, in words.
        criterion: where it has to lie; None if nothing is published.
        published: the published number, "-" if there is none.
    """

    measured: str
    estimate: Estimate
    over: str
    criterion: Tolerance | None = None
    published: str = "-"

    @property
    def verdict(self) -> str:
        """What interval and criterion say."""
        if self.criterion is None:
            return MEASURED
        where = held(*self.estimate, (self.criterion.low, self.criterion.high))
        return {"inside": AGREES, "outside": DIFFERS}.get(where, CANNOT_TELL)

    @property
    def old(self) -> bool:
        """Whether its interval was made by an earlier version, which did not say of how many seeds."""
        return math.isfinite(self.estimate.low) and not self.estimate.seeds

    @property
    def text(self) -> str:
        """The number with its interval."""
        value, low, high, seeds = self.estimate
        same = seeds > 1 and math.isfinite(value) and math.isnan(low)
        return with_interval(value, low, high) + f" whichever of {seeds} seeds is left out" * same


def verdict(findings: Sequence[Finding]) -> str:
    """Put the verdicts of an item together: "agrees", or how many of its findings say what."""
    said = [finding.verdict for finding in findings if finding.criterion is not None]
    if not said:
        return MEASURED
    if len(set(said)) == 1:
        return said[0]
    counts = [f"{word} in {said.count(word)}" for word in (AGREES, DIFFERS, CANNOT_TELL) if word in said]
    return ", ".join(counts)


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


def estimate(
    rows: ArrayLike, *, between: tuple[float, float] = (-math.inf, math.inf), width: float = 0.0
) -> Estimate:
    """Read off a number from its value (first) and its values with each seed left out: jackknife, 95 %.

    Args:
        rows: (1 + S,) float, as of `binned`.
        between: what the number can be at all; the interval is cut there.
        width: of the bin that the number is the centre of; the interval is never narrower.

    Returns:
        The number.
    """
    value, *others = np.asarray(rows, float).tolist()
    low, high = jackknife(value, others)
    if width and len(others) > 1 and np.isfinite(others).all():
        half = np.fmax(high - value, width / 2)
        low, high = value - half, value + half
    low, high = np.clip([low, high], *between).tolist()
    return Estimate(value, low, high, len(others) or 1)


def over_seeds(samples: ArrayLike) -> Estimate:
    """Read off a mean over the seeds that have a value, with Student's t interval."""
    samples = np.asarray(samples, float)
    found = samples[np.isfinite(samples)]
    if not len(found):
        return Estimate(math.nan, math.nan, math.nan)
    low, high = student_t(found)
    return Estimate(float(found.mean()), float(low), float(high), len(found))


def share(found: ArrayLike) -> Estimate:
    """Read off a share from booleans, with the interval of Clopper and Pearson."""
    found = np.asarray(found, bool)
    hits = int(found.sum())
    low, high = clopper_pearson(hits, len(found))
    return Estimate(hits / len(found), float(low), float(high), len(found))


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
