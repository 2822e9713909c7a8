"""Statistics over seeds: means, medians, interquartile means and their intervals."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.base.probe import Scale
from jaxattn.core.errors import InputError
from jaxattn.lab.results.intervals import (
    clopper_pearson,
    geometric,
    interquartile,
    middle_weights,
    student_t,
)
from jaxattn.lab.results.labels import interval, seed_words, setting, setting_columns, unknown_metric
from jaxattn.lab.results.run import NONE, Run

# Values of `Scale.kind`.
LINEAR: Final = "linear"
LOG: Final = "log"
YES_NO: Final = "yes/no"


_DECLARED = tuple(
    (re.compile(names), found)
    for names, found in (
        (r"((limit|relaxed)_)?feasible|came_to_end", Scale(YES_NO, 0.0, 1.0)),
        (r"((un)?relaxed_|head_|limit_)?one_minus_cosine", Scale(LOG, 0.0, 2.0)),
        (r"margin_shortfall|mismatch", Scale(LOG, 0.0)),
        (r"((limit|relaxed)_)?(certified_distance|duality_gap|primal_residual)", Scale(LOG, 0.0)),
        (r"(conservation_)?drift|one_step_error|embedding_error", Scale(LOG, 0.0)),
        (r"((train|test|validation)_)?accuracy(_best_on_\w+)?|important_mass", Scale(LINEAR, 0.0, 1.0)),
        (
            r"(important|(all_|only_)?relevant)_selected|tied_sequences|relaxed_support",
            Scale(LINEAR, 0.0, 1.0),
        ),
        (r"(spearman|correlation)_E[vp]_\w+|cos_\w+", Scale(LINEAR, -1.0, 1.0)),
    )
)


def scale(metric: str, declared: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> Scale:
    """Return the scale of a metric: the built-in scale, else the declared one, else linear and unbounded.

    Args:
        metric: name of the metric. An entry of a vector, such as NAME_07, has the scale of NAME.
        declared: (kind, low, high), keyed by metric, as declared by the probes of a run; a bound of None
            means unbounded.
    """
    for names, found in _DECLARED:
        if names.fullmatch(metric):
            return found
    if own := declared.get(metric) or declared.get(re.sub(r"_\d+$", "", metric)):
        kind, low, high = own
        return Scale(kind, -math.inf if low is None else low, math.inf if high is None else high)
    return Scale()


_Floats = NDArray[np.float64]

STATISTICS = ("mean", "median", "iqm", "mean_low", "mean_high", "iqm_low", "iqm_high")


def aggregate(
    results: Run | pd.DataFrame,
    *,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Compute statistics over seeds for each series.

    A series is one (cell, phase, step, metric). The `scale` of the metric determines the mean:

        linear    the mean, with Student's interval
        log       the geometric mean exp(mean of log x), with exp of Student's interval for log x
        yes/no    the fraction of seeds with value 1, with a Clopper-Pearson interval

    Differences, and series with values outside the scale, are treated as linear. The interquartile mean is
    the mean of the middle half, iqm = 2 ∫_{1/4}^{3/4} x(u) du with the empirical quantile function x(u). It
    has an interval if there are at least four seeds; see `intervals.interquartile`.

    Args:
        results: a results folder, or some or all of its records.
        confidence: coverage of the intervals.

    Returns:
        A table with one row per series and columns cell, axis values (if a folder was given), phase, step,
        metric, scale, n, missing, mean, median, iqm, mean_low, mean_high, iqm_low and iqm_high. Seeds with
        non-finite values are dropped: n is the number of finite values, and missing the number of
        non-finite values. There is no interval if there is a single seed or if all values are equal.

    Source:
        Interquartile means over seeds: Agarwal et al., arXiv 2108.13264. `rliable` drops whole seeds
        instead; both methods agree if n is a multiple of 4.
    """
    records = results.records if isinstance(results, Run) else results
    phase, phases = pd.factorize(records["phase"])
    metric, metrics = pd.factorize(records["metric"])
    given = records["value"].to_numpy(float)
    value = np.where(np.isfinite(given), given, np.nan)
    keys = np.stack([records["cell"].to_numpy(np.int64), phase, records["step"].to_numpy(np.int64), metric])
    # Sort values in ascending order within each series, with NaN last. Order statistics then need no further
    # sorting.
    order = np.lexsort((value, *keys[::-1]))
    keys, value = keys[:, order], value[order]
    start = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)][: len(value)])
    n = np.add.reduceat(np.isfinite(value), start, dtype=np.int64) if len(start) else start
    kind, low, high = _scales(results, keys[0, start], keys[3, start], [str(name) for name in metrics])
    low, high = (x.astype(float)[:, None] for x in (low, high))
    summary = np.full((len(start), len(STATISTICS)), np.nan)
    for seeds in np.unique(n[n > 0]):
        rows = np.flatnonzero(n == seeds)
        series = value[start[rows, None] + np.arange(seeds)]
        kind[rows] = _valid_scales(series, kind[rows])
        means = _means(series, kind[rows], low[rows], high[rows], confidence)
        middles = [np.median(series, axis=1), series @ middle_weights(seeds)]
        bounds = _clipped(interquartile(series, confidence=confidence), series, low[rows], high[rows])
        summary[rows] = np.stack([means[0], *middles, *means[1:], *bounds], axis=1)
    table = pd.DataFrame(
        {
            "cell": keys[0, start],
            "phase": np.asarray(phases, object)[keys[1, start]],
            "step": keys[2, start],
            "metric": np.asarray(metrics, object)[keys[3, start]],
            "scale": kind,
            "n": n,
            "missing": np.diff(np.r_[start, len(value)]) - n,
        }
    )
    table = pd.concat([table, pd.DataFrame(summary, columns=list(STATISTICS))], axis=1)
    return results.with_axes(table) if isinstance(results, Run) else table


def _scales(
    results: Run | pd.DataFrame, cells: NDArray[np.int64], metric: NDArray[np.int64], metrics: Sequence[str]
) -> tuple[NDArray[Any], ...]:
    """Return the kind and the bounds of the scale of each series.

    Args:
        results: a results folder, or records.
        cells: cell index of each series.
        metric: for each series, the position of its metric in `metrics`.
        metrics: names of the metrics.
    """
    of_run = isinstance(results, Run) and not results.manifest.get("differences")
    of_cell = {cell: results.scales(cell) if of_run else NONE for cell in np.unique(cells).tolist()}
    # Cells of one study share one mapping.
    distinct = {id(declared): declared for declared in of_cell.values()}
    place = {number: k for k, number in enumerate(distinct)}
    plain = isinstance(results, Run) and not of_run
    table = np.empty((len(distinct), len(metrics), 3), object)
    for row, declared in enumerate(distinct.values()):
        for column, name in enumerate(metrics):
            table[row, column] = tuple(Scale() if plain else scale(name, declared))
    rows = np.array([place[id(of_cell[cell])] for cell in cells.tolist()], int)
    found = table[rows, metric]
    return found[:, 0], found[:, 1], found[:, 2]


def last_steps(records: pd.DataFrame) -> pd.DataFrame:
    """Return the rows for the last step of each (cell, phase, metric).

    `records` contains the records of a run, or rows from `aggregate`.
    """
    last = records.groupby(["cell", "phase", "metric"], observed=True)["step"].transform("max")
    return records[records["step"] == last]


def metric_at_end(records: pd.DataFrame, metric: str, phase: str | None) -> tuple[pd.DataFrame, str]:
    """Return the records of a metric at the last step of a phase, and the name of the phase.

    The default phase is the last one that recorded the metric.

    Raises:
        InputError: the metric was not recorded, or was not recorded in this phase.
    """
    rows = records[records["metric"] == metric]
    if rows.empty:
        raise unknown_metric(metric, records["metric"].unique())
    recorded = [str(name) for name in rows["phase"].unique()]
    phase = recorded[-1] if phase is None else phase
    if phase not in recorded:
        raise InputError(f"phase {phase!r}: {metric} was recorded only in {', '.join(recorded)}")
    return last_steps(rows[rows["phase"] == phase]), phase


def summary_table(results: Run, **options: Any) -> pd.DataFrame:
    """Return `summary_rows` for display, transposed if there are more metrics than rows."""
    rows, keys = summary_rows(results, **options), len(results.axes) + 1
    return transposed(rows, keys) if len(rows.columns) - keys > len(rows) else rows


def summary_rows(
    results: Run,
    *,
    metrics: Sequence[str] | None = None,
    statistic: str = "mean",
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Return, for each cell, the statistics at the last step of each phase, formatted as strings.

    Args:
        results: a results folder.
        metrics: names of the metrics; defaults to all metrics except those that describe a single bin.
        statistic: "mean", computed on the scale of each metric, or "iqm" for the interquartile mean.
        confidence: see `aggregate`.

    Returns:
        A table with one row per cell and phase: the axis values, the phase, and a column per metric. An
        axis with the name of a metric has the column "NAME (setting)". An entry of a metric is, for example,
        "0.873 [0.871, 0.875]", or "1.00 (all equal)" if all seeds are equal. "(n=3)" is appended if fewer
        seeds than planned have a value.
    """
    table = estimates(results, metrics=metrics, statistic=statistic, confidence=confidence)
    _, chosen = _shown(results, metrics)
    keys = [*(results.axes or []), "phase"]
    wide = table.pivot(index=["cell", "phase"], columns="metric", values="text").fillna("")
    order = table[["cell", *keys]].drop_duplicates(["cell", "phase"])
    wide = wide.reindex(index=pd.MultiIndex.from_frame(order[["cell", "phase"]]), columns=chosen)
    heads = order[keys].map(setting).reset_index(drop=True)
    heads = heads.rename(columns=setting_columns(keys, chosen))
    return pd.concat([heads, wide.reset_index(drop=True).rename_axis(columns=None)], axis=1)


def estimates(
    results: Run, *, metrics: Sequence[str] | None = None, statistic: str = "mean", **options: Any
) -> pd.DataFrame:
    """Compute the entries of `summary_rows` as a table with columns value, low, high and text.

    Each row corresponds to a row of `aggregate`.
    """
    records, _ = _shown(results, metrics)
    table = aggregate(replace(results, records=records), **options)
    planned = len(results.manifest["seeds"])
    numbers = {"value": statistic, "low": f"{statistic}_low", "high": f"{statistic}_high"}
    table = table.assign(**{name: table[column] for name, column in numbers.items()})
    text = [
        interval(value, low, high)
        + (" (all equal)" if n > 1 and np.isnan(of_mean) else "")
        + (f" (n={n})" if n < planned else "")
        for value, low, high, of_mean, n in zip(
            *(table[name] for name in ("value", "low", "high", "mean_low", "n")), strict=True
        )
    ]
    return table.assign(text=text)


def summary_title(results: Run) -> str:
    """Return the title of a summary, which explains the entries and includes `summary_words`."""
    what = ", ".join([*results.derived, "last step of each phase"])
    return f"{what[0].upper()}{what[1:]}: {summary_words(results)}"


def summary_words(results: Run) -> str:
    """Describe the entries of a summary: statistic, interval and number of seeds."""
    records, _ = _shown(results, None)
    table = aggregate(replace(results, records=records))
    counts = table.loc[table["n"] > 0, "n"]
    if counts.empty or counts.max() == 1:
        return "1 seed, without an interval" if len(counts) else "no seed has a value"
    words = [f"mean over {seed_words(counts)} [95 % interval, Student's t]"]
    for kind, what in (
        (LOG, "geometric mean [Student's t of the logarithm]"),
        (YES_NO, "share of seeds [Clopper-Pearson]"),
    ):
        if names := list(dict.fromkeys(table.loc[(table["scale"] == kind) & (table["n"] > 0), "metric"])):
            words.append(f"for {', '.join(names)} the {what}")
    return "; ".join(words)


def geometric_words(table: pd.DataFrame) -> str:
    """Return a caption note that lists the metrics aggregated by geometric mean, or "" if there are none."""
    names = list(dict.fromkeys(table.loc[table["scale"] == LOG, "metric"]))
    return f" (geometric means for {', '.join(names)})" * bool(names)


def _shown(results: Run, metrics: Sequence[str] | None) -> tuple[pd.DataFrame, list[str]]:
    records = last_steps(results.records)
    chosen = metrics or [name for name in records["metric"].unique() if not re.search(r"_bin_\d+$", name)]
    return records[records["metric"].isin(list(chosen))], list(chosen)


def transposed(rows: pd.DataFrame, keys: int) -> pd.DataFrame:
    """Transpose a table from `summary_rows`: one row per metric, and one column per cell and phase.

    The axis values and the phase are the first `keys` columns.
    """
    *axes, phase = rows.columns[:keys]
    phases = [] if rows[phase].nunique() == 1 and axes else [phase]
    values = zip(*(rows[key] for key in [*axes, *phases]), strict=True)
    heads = [*(f"{axis} = " for axis in axes), *("" for _ in phases)]
    # Omit axes that are not defined for a cell.
    names = [", ".join(head + x for head, x in zip(heads, row, strict=True) if x) for row in values]
    wide = rows.iloc[:, keys:].set_axis(pd.Index(names), axis=0).T
    return wide.rename_axis(index=None, columns=None).reset_index(names="metric")


def _valid_scales(series: _Floats, kind: NDArray[Any]) -> NDArray[Any]:
    """Return the scale of each row of (m, n) values; linear if a value is outside the row's scale."""
    fits = (kind == LINEAR) | ((kind == LOG) & (series > 0).all(axis=1))
    return np.where(fits | ((kind == YES_NO) & np.isin(series, (0, 1)).all(axis=1)), kind, LINEAR)


def _means(
    series: _Floats, kind: NDArray[Any], low: _Floats, high: _Floats, confidence: float
) -> list[_Floats]:
    """Compute the mean of each row of (m, n) values on the row's scale, with its interval.

    The interval is clipped to [low, high] if all values of the row are in this range.
    """
    logs, shares = kind == LOG, kind == YES_NO
    bounds = np.stack(student_t(series, confidence=confidence))
    bounds[:, logs] = geometric(series[logs], confidence=confidence)
    bounds = _clipped(bounds, series, low, high)
    found = np.stack([series.mean(axis=1), *bounds])
    found[0, logs] = np.exp(np.log(series[logs]).mean(axis=1))
    hits = series[shares].sum(axis=1)
    found[1:, shares] = clopper_pearson(hits, series.shape[1], confidence=confidence)
    return list(found)


def _clipped(bounds: Any, series: _Floats, low: _Floats, high: _Floats) -> _Floats:
    """Clip the bounds of each row to [low, high], unless some of its values are outside this range.

    Such a value means that the name belongs to a different metric than the declared range.
    """
    bounds = np.stack(bounds)
    inside = ((series >= low) & (series <= high)).all(axis=1)
    return np.where(inside, np.clip(bounds, low[:, 0], high[:, 0]), bounds)
