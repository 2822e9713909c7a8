"""Tables of results: last steps, means over cells, paired differences, and intervals over seeds.

Records are a pandas table with columns cell, seed, phase, step, metric and value. The tables of a cell are
those of `grid.cells`.
"""

import math

import numpy as np
import pandas as pd
from scipy import optimize, stats

SERIES = ["phase", "step", "metric"]
# Metrics on a log scale, yes/no metrics, and the bounds of other metrics.
LOG = ("one_step_error", "embedding_error", "one_minus_cosine", "duality_gap")
YES_NO = ("feasible", "came_to_end")
BOUNDS = {"accuracy": (0.0, 1.0), "important_mass": (0.0, 1.0), "important_selected": (0.0, 1.0)}
BOUNDS |= {"loss": (0.0, math.inf), "spearman": (-1.0, 1.0), "correlation": (-1.0, 1.0)}


def lookup(tables, key):
    """Return the value of a dotted key, or None; phases are addressed by name."""
    for part in key.split("."):
        if isinstance(tables, list):
            tables = {phase["name"]: phase for phase in tables}
        if isinstance(tables, str):
            tables = {"kind": tables}
        if part not in tables:
            return None
        tables = tables[part]
    return tables


def label(settings):
    """Return settings as a label that does not depend on their order. A setting of None is left out."""
    return tuple(sorted((key, str(x)) for key, x in settings.items() if x is not None))


def last_steps(records):
    """Return {(cell, phase, metric): {seed: value}} at the last step of each cell's phase."""
    found = {}
    for (cell, phase, metric), rows in records.groupby(["cell", "phase", "metric"], observed=True):
        ends = rows[rows["step"] == rows["step"].max()]
        found[cell, phase, metric] = dict(zip(ends["seed"], ends["value"], strict=True))
    return found


def with_ends(rows):
    """Add the last values of each cell at the last step of all cells with the same label."""
    added = []
    for _, series in rows.groupby(["label", "phase", "metric"], observed=True):
        end = series["step"].max()
        for _, own in series.groupby("cell"):
            if own["step"].max() < end:
                added.append(own[own["step"] == own["step"].max()].assign(step=end))
    return pd.concat([rows, *added])


def averaged(records, label_of):
    """Return {(label, phase, step, metric): values over seeds}, the means over the cells with a label.

    The last row of a phase has the last step of each cell. A seed without a finite value in one of these
    cells has no mean.
    """
    rows = with_ends(records.assign(label=[label_of[cell] for cell in records["cell"]]))
    found = {}
    for key, series in rows.groupby(["label", *SERIES], observed=True):
        cells = series["cell"].nunique()
        seeds = [own for _, own in series.groupby("seed")["value"]]
        found[key] = [own.sum() / cells if own.notna().sum() == cells else math.nan for own in seeds]
    return found


def paired(records, first_of, second_of):
    """Return {(label, phase, step, metric): differences over seeds} of the second cells minus the first.

    Both arguments map the cells of one value to a label of their other settings. A label with several cells
    of one value has no pairs.
    """
    unique = {
        name
        for name in {*first_of.values(), *second_of.values()}
        if [[*of.values()].count(name) for of in (first_of, second_of)] == [1, 1]
    }
    first_of, second_of = (
        {cell: name for cell, name in of.items() if name in unique} for of in (first_of, second_of)
    )
    of = first_of | second_of
    rows = with_ends(
        records[records["cell"].isin(list(of))].assign(label=[of[c] for c in records["cell"] if c in of])
    )
    first, second = (rows[rows["cell"].isin(list(side))] for side in (first_of, second_of))
    both = pd.merge(first, second, on=["label", "seed", *SERIES])
    both["difference"] = both["value_y"] - both["value_x"]
    groups = both.groupby(["label", *SERIES], observed=True)["difference"]
    return {key: series.tolist() for key, series in groups}


def bounds_of(metric):
    """Return the smallest and largest possible value of a metric."""
    if metric in LOG:
        return 0.0, math.inf
    if metric in YES_NO:
        return 0.0, 1.0
    known = [bounds for name, bounds in BOUNDS.items() if name in metric]
    return known[0] if known else (-math.inf, math.inf)


def mean_and_interval(values, metric, differences=False):
    """Return n, the mean of the finite values on the scale of the metric, and its 95 % interval or NaN."""
    x = np.array([value for value in values if math.isfinite(value)])
    n, bounds = len(x), (-math.inf, math.inf) if differences else bounds_of(metric)
    if n == 0:
        return n, math.nan, math.nan, math.nan
    if metric in YES_NO and not differences and set(x) <= {0.0, 1.0}:
        return n, x.mean(), *clopper_pearson(int(x.sum()), n)
    if metric in LOG and not differences and (x > 0).all():
        return n, *(math.exp(value) for value in t_interval(np.log(x)))
    mean, low, high = t_interval(x)
    if (x < bounds[0]).any() or (x > bounds[1]).any():
        bounds = (-math.inf, math.inf)
    return n, mean, max(low, bounds[0]), min(high, bounds[1])


def t_interval(x):
    """Return the mean and Student's interval, or NaN for one value or equal values."""
    mean = x.mean()
    if len(x) < 2 or np.ptp(x) == 0:
        return mean, math.nan, math.nan
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    return mean, mean - half, mean + half


def clopper_pearson(hits, n):
    """Return the probabilities at which k or more hits, and k or fewer, have a probability of 2.5 %."""
    low = high = None
    if hits > 0:
        low = optimize.brentq(lambda p: stats.binom.sf(hits - 1, n, p) - 0.025, 0, 1, xtol=1e-14)
    if hits < n:
        high = optimize.brentq(lambda p: stats.binom.cdf(hits, n, p) - 0.025, 0, 1, xtol=1e-14)
    return (0.0 if low is None else low), (1.0 if high is None else high)


def interquartile(values):
    """Return the mean of the middle half of the values, and its interval for at least four values or NaN."""
    x = np.sort([value for value in values if math.isfinite(value)])
    n, g = len(x), len(x) // 4
    # The empirical quantile function is x[j] between j/n and (j + 1)/n.
    weights = [2 * max(0.0, min((j + 1) / n, 0.75) - max(j / n, 0.25)) for j in range(n)]
    iqm, h = float(x @ weights), n - 2 * g
    if n < 4 or x[g] == x[n - g - 1]:
        return iqm, math.nan, math.nan
    winsorised = np.clip(x, x[g], x[n - g - 1])
    error = math.sqrt(((winsorised - winsorised.mean()) ** 2).sum() / (h * (h - 1)))
    half = stats.t.ppf(0.975, 0.8 * (h - 1)) * error
    return iqm, iqm - half, iqm + half
