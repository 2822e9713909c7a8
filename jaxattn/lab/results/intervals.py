"""95 % intervals for means, fractions and resampled statistics; see docs/reference/intervals.md.

Except for `clopper_pearson`, the functions return NaN if the data allow no error estimate: if there is
only one seed, or if all seeds have the same value, for example at a boundary of the range.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]

LEVEL = 0.95
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
# Degrees of freedom of the interval for interquartile means, relative to those of Yuen. With this factor, the
# coverage for normal samples is 0.949 to 0.957 for 4 to 60 seeds (`python benchmarks/coverage.py`).
FREEDOM = 0.8


def student_t(samples: ArrayLike, *, confidence: float = LEVEL) -> tuple[Any, Any]:
    """Compute intervals for the mean of independent samples: mean ± t √(variance / n).

    Args:
        samples: (..., n) float.
        confidence: nominal coverage of the intervals.

    Returns:
        The bounds, (...) each; NaN for fewer than two samples, or if samples are non-finite or all equal.
    """
    samples = np.asarray(samples, float)
    n = samples.shape[-1]
    centre = samples.mean(axis=-1) if n else np.full(samples.shape[:-1], np.nan)
    if n < 2:
        return _around(centre, np.full_like(centre, np.nan))
    varies = (samples != samples[..., :1]).any(axis=-1)
    # Squares of very small or large numbers would underflow or overflow.
    unit = np.abs(samples).max(axis=-1, keepdims=True)
    unit = np.where((unit > 0) & np.isfinite(unit), unit, 1.0)
    with np.errstate(invalid="ignore"):
        error = (samples / unit).std(axis=-1, ddof=1) * unit[..., 0] / math.sqrt(n)
    return _around(centre, np.where(varies, _quantile_of_t(n - 1, confidence) * error, np.nan))


def interquartile(samples: ArrayLike, *, confidence: float = LEVEL) -> tuple[Any, Any]:
    """Compute intervals for the interquartile means of independent samples.

        iqm ± t √(Σ_i (w_i - mean w)² / (h (h - 1)))

    Here w are the winsorised samples: the g = ⌊n/4⌋ smallest and largest of the n samples are replaced by
    the smallest and largest of the h = n - 2g others. t is a quantile of Student's distribution with
    0.8 (h - 1) degrees of freedom, for which the coverage is close to nominal for normal samples.

    Args:
        samples: (..., n) float, in ascending order along the last axis.
        confidence: nominal coverage of the intervals.

    Returns:
        The bounds, (...) each; NaN for fewer than four samples, if samples are non-finite, or if the h
        samples in the middle are all equal.

    Source:
        Standard error: Tukey and McLaughlin, Sankhyā A 25 (1963); Yuen, Biometrika 61 (1974). The factor 0.8
        is original to this library.
    """
    samples = np.asarray(samples, float)
    n = samples.shape[-1]
    centre, g = samples @ middle_weights(n), n // 4
    if g == 0:
        return _around(centre, np.full_like(centre, np.nan))
    h = n - 2 * g
    middle = samples[..., g : n - g]
    winsorised = np.clip(samples, middle[..., :1], middle[..., -1:])
    low, high = student_t(winsorised, confidence=confidence)
    # `student_t` provides t(n - 1) √(variance / n), without overflow.
    ratio = math.sqrt(n * (n - 1) / (h * (h - 1))) / _quantile_of_t(n - 1, confidence)
    return _around(centre, _quantile_of_t(FREEDOM * (h - 1), confidence) * ratio * (high - low) / 2)


def middle_weights(n: int) -> _Floats:
    """Return the weights of n sorted values in the interquartile mean.

    The weight of value j = 0, ..., n - 1 is 2 |[j/n, (j+1)/n] ∩ [1/4, 3/4]|.
    """
    return 2 * np.diff(np.clip(np.arange(n + 1) / n, 0.25, 0.75))


def geometric(samples: ArrayLike, *, confidence: float = LEVEL) -> tuple[Any, Any]:
    """Compute intervals for geometric means by applying `student_t` to log `samples`, (..., n) float > 0."""
    low, high = student_t(np.log(np.asarray(samples, float)), confidence=confidence)
    return np.exp(low), np.exp(high)


def clopper_pearson(hits: Any, trials: int, *, confidence: float = LEVEL) -> tuple[Any, Any]:
    """Compute Clopper-Pearson intervals for probabilities, from k hits in n trials.

    Their coverage is at least the nominal coverage.

    Args:
        hits: k, (...) int.
        trials: n.
        confidence: nominal coverage 1 - α.

    Returns:
        Lower bound: the α/2 quantile of Beta(k, n - k + 1), or 0 if k = 0. Upper bound: the 1 - α/2 quantile
        of Beta(k + 1, n - k), or 1 if k = n.

    Source:
        Clopper and Pearson, Biometrika 26 (1934).
    """
    from scipy.special import betaincinv  # slow to import

    hits = np.asarray(hits, float)
    misses, tail = trials - hits, (1 - confidence) / 2
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, tail), 0.0)
    high = np.where(misses > 0, betaincinv(hits + 1, np.maximum(misses, 1), 1 - tail), 1.0)
    return low[()], high[()]


def jackknife(value: Any, left_out: Any) -> tuple[Any, Any]:
    """Compute jackknife intervals for a statistic of n seeds.

        value ± t σ,   σ² = (n - 1)/n Σ_i (x_(i) - mean)²

    Here mean is the average of the x_(i), and t is the 97.5 % quantile of Student's distribution with n - 1
    degrees of freedom. If the statistic is a mean, this is Student's interval. For any other symmetric
    function of the seeds, the expectation of σ² is at least the variance for n - 1 seeds, but the coverage
    may still be below 95 %.

    Args:
        value: (...) float; the statistic over all seeds.
        left_out: (n, ...) float; x_(i), the statistic without seed i.

    Returns:
        The 95 % bounds, (...) each; NaN for a single seed, for non-finite values, or if leaving out a seed
        never changes the value.

    Source:
        Efron and Stein, Annals of Statistics 9 (1981).
    """
    value, left_out = np.asarray(value, float), np.asarray(left_out, float)
    n = len(left_out)
    if n < 2:
        return _around(value, np.full_like(value, np.nan))
    matters = (left_out != left_out[:1]).any(axis=0)
    with np.errstate(invalid="ignore"):
        error = math.sqrt(n - 1) * left_out.std(axis=0)
    return _around(value, np.where(matters, _quantile_of_t(n - 1, LEVEL) * error, np.nan))


def bca(value: Any, draws: Any, left_out: Any, *, confidence: float = LEVEL) -> tuple[_Floats, _Floats]:
    """Compute bias-corrected and accelerated (BCa) bootstrap intervals.

    The bounds are quantiles of the resampled values, at the levels Φ(z0 + (z0 + z)/(1 - a (z0 + z))). Here Φ
    is the normal distribution function, z is the lower or upper normal quantile for the coverage, z0 is Φ⁻¹
    of the fraction of resampled values below the value, and a = Σ d_i³ / (6 (Σ d_i²)^(3/2)), where
    d_i = mean_j x_(j) - x_(i).

    Args:
        value: (...) float; the statistic of all points.
        draws: (B, ...) float; resampled values.
        left_out: (n, ...) float; x_(i), the value without point i, or without the i-th group of points.
        confidence: nominal coverage of the intervals.

    Returns:
        The bounds, (...) each, which contain the value; NaN for non-finite numbers, or if the value is
        outside the range of the resampled values.

    Source:
        Efron, Journal of the American Statistical Association 82 (1987).
    """
    from scipy.special import ndtr, ndtri  # slow to import

    value, draws, left_out = (np.asarray(x, float) for x in (value, draws, left_out))
    below = (draws < value).mean(axis=0) + (draws == value).mean(axis=0) / 2
    apart = left_out.mean(axis=0) - left_out
    with np.errstate(invalid="ignore", divide="ignore"):
        bias, power = ndtri(below), (apart**3).sum(axis=0) / 6 / (apart**2).sum(axis=0) ** 1.5
        bounds = []
        for tail in ((1 - confidence) / 2, (1 + confidence) / 2):
            z = bias + ndtri(tail)
            bounds.append(_quantiles(draws, ndtr(bias + z / (1 - power * z))))
    known = np.isfinite(draws).all(axis=0) & (below > 0) & (below < 1) & np.isfinite(power)
    low, high = np.minimum(bounds[0], value), np.maximum(bounds[1], value)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def resamples(points: int, number: int, rng: np.random.Generator) -> _Floats:
    """Sample bootstrap weights: the multiplicity of each point in each resample, (number, points)."""
    draws = rng.integers(0, points, (number, points))
    draws += points * np.arange(number)[:, None]
    return np.bincount(draws.ravel(), minlength=number * points).reshape(number, points).astype(float)


def _around(centre: Any, half: Any) -> tuple[Any, Any]:
    return centre - half, centre + half


def _quantile_of_t(freedom: float, confidence: float) -> float:
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _quantiles(draws: _Floats, share: Any) -> Any:
    ordered = np.sort(draws, axis=0)
    position = np.asarray(np.nan_to_num(share) * (len(draws) - 1))
    first = position.astype(int)
    last = np.minimum(first + 1, len(draws) - 1)
    below, above = (np.take_along_axis(ordered, x[None], axis=0)[0] for x in (first, last))
    return below + (position - first) * (above - below)
