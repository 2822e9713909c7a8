"""Verdicts on numbers: a single rule that compares an estimate and its 95 % interval with a criterion.

A criterion is a required range. A number *agrees* if its whole interval is inside the range, *differs* if
none of the interval is, and is *inconclusive* otherwise, or if it has no interval.

Means have a Student t interval, statistics over all seeds a jackknife interval, and fractions a
Clopper-Pearson interval. If there are at least six seeds and all have the same value, this value is
compared with the criterion.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxattn.core.fractions import reaches
from jaxattn.lab.results.intervals import clopper_pearson, jackknife, student_t
from jaxattn.lab.results.labels import brief, with_interval

# Minimum number of seeds for a verdict if all seeds have the same value: with confidence 1 - 2^(1 - n) ≥ 95
# %, this value is the median of the distribution.
ENOUGH_SEEDS = 6
ANYTHING = (-math.inf, math.inf)


AGREES, DIFFERS, INCONCLUSIVE = "agrees", "differs", "inconclusive"


class Criterion(NamedTuple):
    """Required range of a number, low ≤ x ≤ high, with its description."""

    low: float
    high: float
    text: str


def around(value: float, distance: float) -> Criterion:
    """Return the criterion that x is within `distance` of `value`.

    Example:
        >>> from jaxattn.lab import books
        >>> books.around(0.5, 0.02)
        Criterion(low=0.48, high=0.52, text='0.5 ± 0.02')
    """
    return Criterion(value - distance, value + distance, f"{brief(value)} ± {brief(distance)}")


def at_least(value: float) -> Criterion:
    """Return the criterion that x ≥ `value`.

    Example:
        >>> from jaxattn.lab import books
        >>> books.at_least(0.9).text
        '≥ 0.9'
    """
    return Criterion(value, math.inf, f"≥ {brief(value)}")


def at_most(value: float) -> Criterion:
    """Return the criterion that x ≤ `value`.

    Example:
        >>> from jaxattn.lab import books
        >>> books.at_most(0.1).text
        '≤ 0.1'
    """
    return Criterion(-math.inf, value, f"≤ {brief(value)}")


def within_factor(value: float, factor: float) -> Criterion:
    """Return the criterion that x is between `value` / `factor` and `value` · `factor`.

    Example:
        >>> from jaxattn.lab import books
        >>> books.within_factor(10.0, 2.0).text
        '10 within a factor of 2'
    """
    return Criterion(value / factor, value * factor, f"{brief(value)} within a factor of {brief(factor)}")


class Estimate(NamedTuple):
    """Estimate with its 95 % confidence interval.

    Attributes:
        value: the estimate.
        low, high: the interval; NaN if there is none.
        seeds: number of seeds with a value.
        missing: number of seeds without a value.
        hits: number of seeds that satisfy a condition, if the estimate is a fraction of seeds; else None.
    """

    value: float
    low: float
    high: float
    seeds: int = 0
    missing: int = 0
    hits: int | None = None

    def text(self, same: str) -> str:
        """Format the estimate with its interval, or with `same`, such as "in all 7", if all seeds agree."""
        written = with_interval(self.value, self.low, self.high)
        alone = self.seeds > 1 and math.isfinite(self.value) and math.isnan(self.low)
        return f"{written} {same}" if alone else written


def mean(samples: ArrayLike, between: tuple[float, float] = ANYTHING) -> Estimate:
    """Estimate the mean over the seeds that have a value, with Student's t interval.

    Args:
        samples: (S,) float; NaN or inf for a seed without a value.
        between: possible range of the mean; the interval is clipped to this range.

    Returns:
        The mean; NaN if no seed has a value. There is no interval for a single seed or if all values are
        equal.
    """
    samples = np.asarray(samples, float)
    known = samples[np.isfinite(samples)]
    value = float(known.mean()) if len(known) else math.nan
    value, low, high = np.clip([value, *student_t(known)], *between).tolist()
    return Estimate(value, low, high, len(known), len(samples) - len(known))


def share(satisfied: ArrayLike, known: ArrayLike | bool = True) -> Estimate:
    """Estimate the fraction of seeds that satisfy a condition, with a Clopper-Pearson interval.

    Args:
        satisfied: (S,) bool.
        known: (S,) bool; False for seeds to exclude.

    Returns:
        The estimate; its value is NaN if no seed is included.
    """
    satisfied, known = np.broadcast_arrays(satisfied, known)
    hits, seeds = int(np.sum(satisfied & known)), int(known.sum())
    if not seeds:
        return Estimate(math.nan, math.nan, math.nan, 0, len(known), 0)
    low, high = clopper_pearson(hits, seeds)
    return Estimate(hits / seeds, float(low), float(high), seeds, len(known) - seeds, hits)


def jackknifed(rows: ArrayLike, between: tuple[float, float] = ANYTHING) -> Estimate:
    """Estimate a statistic over all seeds, with a jackknife interval from its leave-one-out values.

    Args:
        rows: (1 + S,) float; the statistic over all seeds, followed by its value with each seed left out;
            (1,) for one seed.
        between: possible range of the statistic; the interval is clipped to it.
    """
    value, *others = np.asarray(rows, float).tolist()
    low, high = np.clip(jackknife(value, others), *between).tolist()
    return Estimate(value, low, high, len(others) or 1)


def verdict(estimate: Estimate, criterion: Criterion, *, resolution: float = 0.0) -> str:
    """Compare an estimate with its criterion; return "agrees", "differs" or "inconclusive".

    Args:
        estimate: the estimate with its interval.
        criterion: the required range.
        resolution: smallest difference that the measurement resolves, such as the width of a bin. The range
            of values that is compared with the criterion is at least this wide.
    """
    value, low, high = estimate[:3]
    if resolution and estimate.seeds > 1 and math.isfinite(value):
        half = np.fmax(high - value, resolution / 2)
        low, high = value - half, value + half
    elif math.isfinite(value) and math.isnan(low) and estimate.seeds >= ENOUGH_SEEDS:
        low = high = value
    if not np.isfinite([value, low, high]).all():
        return INCONCLUSIVE
    if reaches(low, criterion.low) and reaches(-high, -criterion.high):
        return AGREES
    if reaches(-low, -criterion.high) and reaches(high, criterion.low):
        return INCONCLUSIVE
    return DIFFERS
