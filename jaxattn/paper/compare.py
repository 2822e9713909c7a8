"""Agreement of curves by shape alone, with bootstrap intervals, and the rule that turns it into a verdict.

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
from jaxattn.results.intervals import ENOUGH_SEEDS, TOO_FEW, clopper_pearson, percentile, student_t
from jaxattn.results.numbers import with_interval

AGREES, DIFFERS, CANNOT_TELL, MEASURED = "agrees", "differs", "cannot tell", "measured"
RULE = (
    "A number agrees if its whole 95 % interval lies within the criterion, differs if none of it does, and "
    "cannot tell if it straddles the criterion or has no interval. It is only measured if nothing is "
    "published to hold it against. Shapes are compared, never heights: they depend on what is not published. "
    "Intervals are over seeds; with fewer than six, tokens within bins are resampled as well, and "
    f"{TOO_FEW}."
)
RESAMPLES = 1000
Rows = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number with its 95 % interval, NaN if there is none."""

    value: float
    low: float
    high: float


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
        value, low, high = self.estimate
        if not np.isfinite([value, low, high]).all():
            return CANNOT_TELL
        if self.criterion.low <= low and high <= self.criterion.high:
            return AGREES
        return CANNOT_TELL if low <= self.criterion.high and self.criterion.low <= high else DIFFERS

    @property
    def text(self) -> str:
        """The number with its interval."""
        return with_interval(*self.estimate)


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
    """Means and standard deviations within bins, as measured (row 0) and resampled (the rows after it).

    Attributes:
        centres: (m,) of the bins.
        tokens: (m,) how many, of all seeds.
        mean: (1 + B, m), NaN for an empty bin.
        sd: (1 + B, m), NaN for an empty bin.
        over: what was resampled, in words.
    """

    centres: Rows
    tokens: NDArray[np.int64]
    mean: Rows
    sd: Rows
    over: str


def binned(
    tokens: pd.DataFrame,
    quantity: str,
    *,
    edges: ArrayLike,
    x: str = "posterior_difference",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Binned:
    """Average a quantity within bins and resample it: seeds, and for few seeds the tokens of each bin too.

    Args:
        tokens: rows with columns seed, x and the quantity.
        quantity: the column to average.
        edges: (m + 1,) ascending bounds of the bins; points outside are left out.
        x: the column that is binned.
        resamples: number of resamples B.
        seed: seed of the resampling.

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
    rng = np.random.default_rng(seed)
    centres = (edges[1:] + edges[:-1]) / 2
    few = len(seeds) < ENOUGH_SEEDS
    sums = np.zeros((3, len(seeds), 1 + resamples * few, bins))
    for s in range(len(seeds)):
        for b in range(bins):
            own = y[(lane == s) & (place == b)]
            drawn = own[None]
            if few and len(own):
                drawn = np.concatenate([drawn, own[rng.integers(0, len(own), (resamples, len(own)))]])
            for power in range(3):
                sums[power, s, :, b] = (drawn**power).sum(axis=1)
    weights = np.ones((1 + resamples, len(seeds)))
    weights[1:] = rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), resamples)
    n, first, second = (
        np.einsum("rs,srb->rb", weights, np.broadcast_to(x, (len(seeds), 1 + resamples, bins))) for x in sums
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = first / n
        sd = np.sqrt(np.maximum(second / n - mean**2, 0))
    return Binned(centres, np.bincount(place, minlength=bins), mean, sd, _over(len(seeds)))


def _over(seeds: int) -> str:
    if seeds == 1:
        return "tokens within bins, one seed"
    return f"{seeds} seeds" + (" and tokens within bins" if seeds < ENOUGH_SEEDS else "")


def estimate(rows: ArrayLike) -> Estimate:
    """Read off a number from its value (first) and its resamples: percentile interval, 95 %."""
    rows = np.asarray(rows, float)
    if not np.isfinite(rows[0]):
        return Estimate(float(rows[0]), math.nan, math.nan)
    low, high = percentile(rows[1:])
    return Estimate(float(rows[0]), float(low), float(high))


def over_seeds(samples: ArrayLike) -> Estimate:
    """Read off a mean over seeds with Student's t interval."""
    samples = np.asarray(samples, float)
    return Estimate(float(samples.mean()), *student_t(samples))


def share(found: ArrayLike) -> Estimate:
    """Read off a share from booleans, with the interval of Clopper and Pearson."""
    found = np.asarray(found, bool)
    hits = int(found.sum())
    return Estimate(hits / len(found), *clopper_pearson(hits, len(found)))


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
