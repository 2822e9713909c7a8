"""95 % intervals: of a mean, of a probability, and of whatever was computed from resamples."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
# Resamples of n seeds alone span their range at best, which covers the truth with probability 1 - 2^(1 - n).
ENOUGH_SEEDS = 6
TOO_FEW = "the interval says little of what other seeds would give"


def student_t(samples: ArrayLike) -> tuple[float, float]:
    """Bound a mean from independent samples: mean ± t √(variance / n).

    Args:
        samples: (n,) float.

    Returns:
        The bounds; NaN for fewer than two samples or one that is not finite.
    """
    from scipy.special import stdtrit  # slow to import

    samples = np.asarray(samples, float)
    n = len(samples)
    if n < 2 or not np.isfinite(samples).all():
        return math.nan, math.nan
    half = float(stdtrit(n - 1, TAILS[1]) * samples.std(ddof=1) / math.sqrt(n))
    centre = float(samples.mean())
    return centre - half, centre + half


def clopper_pearson(hits: int, trials: int) -> tuple[float, float]:
    """Bound a probability from k hits in n trials, with coverage of at least 95 % whatever it is.

    Returns:
        The α/2 quantile of Beta(k, n - k + 1), 0 for no hit, and the 1 - α/2 quantile of Beta(k + 1, n - k),
        1 for no miss.

    Source:
        Clopper and Pearson, Biometrika 26 (1934).
    """
    from scipy.special import betaincinv  # slow to import

    misses = trials - hits
    low = float(betaincinv(hits, misses + 1, TAILS[0])) if hits else 0.0
    high = float(betaincinv(hits + 1, misses, TAILS[1])) if misses else 1.0
    return low, high


def percentile(draws: ArrayLike) -> tuple[Floats, Floats]:
    """Take the percentile interval of resampled numbers.

    Args:
        draws: (B, ...) float; those that are not finite are left out.

    Returns:
        The bounds, (...) each; NaN where no draw is finite.
    """
    draws = np.asarray(draws, float)
    draws = np.where(np.isfinite(draws), draws, np.nan)
    bounds = np.full((2, *draws.shape[1:]), np.nan)
    known = np.isfinite(draws).any(axis=0)
    if known.any():
        bounds[:, known] = np.nanquantile(draws[:, known], TAILS, axis=0)
    return np.asarray(bounds[0]), np.asarray(bounds[1])


def resamples(points: int, number: int, rng: np.random.Generator) -> Floats:
    """Draw bootstrap weights: how often each of N points is drawn in N draws, (number, N)."""
    draws = rng.integers(0, points, (number, points))
    draws += points * np.arange(number)[:, None]
    return np.bincount(draws.ravel(), minlength=number * points).reshape(number, points).astype(float)
