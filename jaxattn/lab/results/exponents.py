"""Exponents of power laws during training: a metric against steps or time, fitted decade by decade."""

import itertools
import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.core.errors import InputError
from jaxattn.lab.results.fits import powers
from jaxattn.lab.results.intervals import student_t
from jaxattn.lab.results.labels import unknown_metric
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import metric_in_phase

_Floats = NDArray[np.float64]
_COLUMNS = ("from", "to", "exponent", "low", "high", "n", "points")


def power_laws(
    results: Run,
    metric: str,
    *,
    against: str = "step",
    phase: str | None = None,
    decades: float = 1.0,
) -> pd.DataFrame:
    """Return the local exponents of a metric, for each cell and each decade of steps or time.

    In each window, metric ~ x^exponent is fitted to every seed by least squares in log space. The windows
    have the same length in log x and end at the last x. A power law has the same exponent in all of them.

    Args:
        results: a results folder.
        metric: name of the metric. Points that are not positive are dropped.
        against: x, "step" or the name of a metric, such as "time" of a `gradient_flow`.
        phase: name of the phase; defaults to the last phase that recorded the metric.
        decades: length of a window, as log10 of the ratio of its ends.

    Returns:
        A table with one row per cell and window, in ascending order of x, and the columns cell, axis values,
        from, to (the window), exponent, low, high (mean over seeds with Student's 95 % interval), n (seeds
        with at least two points in the window) and points (the smallest number of points of these seeds).

    Raises:
        InputError: the metric, x or phase was not recorded, or `decades` is not positive.
    """
    if not decades > 0:
        raise InputError(f"decades: must be positive, got {decades}")
    records = results.records
    _, phase = metric_in_phase(records, metric, phase)
    own = records[records["phase"] == phase]
    if against != "step" and against not in set(own["metric"]):
        raise unknown_metric(against, own["metric"].unique())
    rows = []
    for cell, found in own.groupby("cell"):
        y = _by_seed(found, metric)
        x = y.columns.to_numpy(float) if against == "step" else _by_seed(found, against).to_numpy(float)
        rows += [{"cell": cell} | row for row in windows(x, y.to_numpy(float), decades)]
    return results.with_axes(pd.DataFrame(rows, columns=["cell", *_COLUMNS]))


def windows(x: _Floats, y: _Floats, decades: float = 1.0) -> list[dict[str, float]]:
    """Return the exponent of y ~ x^exponent in each window of x, with an interval over seeds.

    Args:
        x: (S, m) or (m,) float; points that are not positive are dropped.
        y: (S, m) float; points that are not positive and finite are dropped.
        decades: length of a window, as log10 of the ratio of its ends.

    Returns:
        One dictionary per window with at least two points, with the keys from, to, exponent, low, high, n
        and points; see `power_laws`.
    """
    y = np.asarray(y, float)
    x = np.broadcast_to(np.asarray(x, float), y.shape)
    used = (x > 0) & (y > 0) & np.isfinite(x) & np.isfinite(y)
    if not used.any():
        return []
    first, last = x[used].min(), x[used].max()
    # A window that rounding makes a little too short does not count as a further one.
    number = max(math.ceil(math.log10(last / first) / decades - 1e-9), 1)
    edges = last * 10.0 ** (-decades * np.arange(number, -1, -1))
    found = []
    for low, high in itertools.pairwise(edges):
        inside = used & (x >= low * (1 - 1e-12)) & (x <= high * (1 + 1e-12))
        slopes = powers(x, np.where(inside, y, np.nan))
        fitted = slopes[np.isfinite(slopes)]
        if not len(fitted):
            continue
        bounds = student_t(fitted)
        points = int(inside.sum(axis=1)[np.isfinite(slopes)].min())
        values = (max(low, first), high, fitted.mean(), *bounds, len(fitted), points)
        found.append({name: float(value) for name, value in zip(_COLUMNS, values, strict=True)})
    return found


def _by_seed(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric of one cell and phase, with one row per seed and one column per step."""
    rows = records[records["metric"] == metric]
    return rows.pivot(index="seed", columns="step", values="value")
