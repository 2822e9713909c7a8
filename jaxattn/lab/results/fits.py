"""Power laws y ≈ exp(intercept) x^slope, fitted to each seed by least squares in log space."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxattn.lab.results.intervals import student_t
from jaxattn.lab.results.judge import Estimate

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PowerLaw:
    """Power law y ≈ exp(intercept) x^slope, with a confidence interval for the slope over seeds.

    The bounds are NaN if there is no interval.
    """

    slope: float
    intercept: float
    low: float
    high: float
    seeds: int

    @property
    def estimate(self) -> Estimate:
        """Return the slope with its interval."""
        return Estimate(self.slope, self.low, self.high, self.seeds)


NO_LAW = PowerLaw(np.nan, np.nan, np.nan, np.nan, 0)


def power_law(x: ArrayLike, y_by_seed: ArrayLike) -> PowerLaw:
    """Fit the power law log y = intercept + slope · log x to m points for each of several seeds.

    The slope is the mean of the slopes fitted to the seeds, with Student's 95 % interval for this mean.

    Args:
        x: (m,) > 0, or (m, seeds) if x differs between seeds; points with x = NaN are dropped. At least two
            values must be distinct.
        y_by_seed: (m, seeds). A seed is dropped unless y is positive and finite at every x.

    Returns:
        The fit; all NaN if no seed or fewer than two distinct x remain.

    Example:
        >>> from jaxattn.lab.results import power_law
        >>> law = power_law([1.0, 10.0, 100.0], [[2.0], [20.0], [200.0]])
        >>> round(law.slope, 6)
        1.0
    """
    y = np.asarray(y_by_seed, float)
    x = np.asarray(x, float)
    x = np.broadcast_to(x if x.ndim == 2 else x[:, None], y.shape)
    used = np.isfinite(x) & (x > 0)
    complete = (~used | (np.isfinite(y) & (y > 0))).all(axis=0) & used.any(axis=0)
    slopes, mean_x, mean_y = _lines(x[:, complete].T, y[:, complete].T)
    seeds = int(np.isfinite(slopes).sum())
    if seeds < len(slopes) or not seeds:
        return PowerLaw(np.nan, np.nan, np.nan, np.nan, seeds)
    low, high = student_t(slopes)
    slope = float(slopes.mean())
    return PowerLaw(slope, float(mean_y.mean() - slope * mean_x.mean()), float(low), float(high), seeds)


def powers(x: ArrayLike, y: ArrayLike) -> _Floats:
    """Fit y ~ x^power to the points of each seed.

    Args:
        x: (m,) or (S, m) float > 0.
        y: (S, m) float > 0; points with y = NaN are dropped.

    Returns:
        The powers, (S,) float64; NaN for a seed with fewer than two distinct values of x.

    Example:
        >>> from jaxattn.lab import books
        >>> x = np.array([1.0, 2.0, 4.0])
        >>> books.powers(x, np.stack([x**2, 3 / x])).round(6).tolist()
        [2.0, -1.0]
    """
    return _lines(x, y)[0]


def _lines(x: ArrayLike, y: ArrayLike) -> tuple[_Floats, _Floats, _Floats]:
    """Return the slope, mean log x and mean log y for each row, over points with positive x and y."""
    y = np.asarray(y, float)
    x = np.broadcast_to(np.asarray(x, float), y.shape)
    used = (x > 0) & (y > 0) & np.isfinite(x) & np.isfinite(y)
    log_x, log_y = (np.log(np.where(used, z, 1)) for z in (x, y))
    points = np.maximum(used.sum(axis=1), 1)
    mean_x, mean_y = (z.sum(axis=1) / points for z in (log_x, log_y))
    centred = np.where(used, log_x - mean_x[:, None], 0)
    spread = np.square(centred).sum(axis=1)
    return (centred * log_y).sum(axis=1) / np.where(spread > 0, spread, np.nan), mean_x, mean_y
