"""Seeds to numbers: means, medians, interquartile means and their bootstrap intervals."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxattn.results.intervals import ENOUGH_SEEDS, TOO_FEW
from jaxattn.results.labels import seed_words
from jaxattn.results.numbers import interval, setting
from jaxattn.results.run import Run

STATISTICS = ("mean", "median", "iqm", "mean_low", "mean_high", "iqm_low", "iqm_high")
# One block of series times resamples stays below 16 MB.
BLOCK = 2_000_000


def aggregate(
    results: Run | pd.DataFrame,
    *,
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Summarise every series over its seeds.

    A series is one (cell, phase, step, metric). The interquartile mean is the mean of the middle half,
    iqm = 2 ∫_{1/4}^{3/4} x(u) du over the empirical quantile function x(u): seeds at a quartile count by
    the fraction that lies inside. Intervals are percentile bootstrap intervals over seeds.

    Args:
        results: a results folder, or its records or some rows of them.
        seed: seed of the resampling. Every series of n seeds sees the same resamples, so that a series'
            interval does not depend on what else the table holds.
        resamples: bootstrap resamples.
        confidence: coverage of the intervals.

    Returns:
        One row per series: cell, axis values (if a folder was given), phase, step, metric, n, mean, median,
        iqm, mean_low, mean_high, iqm_low, iqm_high. Seeds that are not finite are left out, and n counts the
        others. One seed has no interval (NaN).

    Source:
        Interquartile means with bootstrap intervals: Agarwal et al., arXiv 2108.13264; `rliable` drops whole
        seeds instead (the same if 4 divides n).
    """
    records = results.records if isinstance(results, Run) else results
    phase, phases = pd.factorize(records["phase"])
    metric, metrics = pd.factorize(records["metric"])
    given = records["value"].to_numpy(float)
    value = np.where(np.isfinite(given), given, np.nan)
    keys = np.stack([records["cell"].to_numpy(np.int64), phase, records["step"].to_numpy(np.int64), metric])
    # Within a series values come in ascending order, NaN last: order statistics for free.
    order = np.lexsort((value, *keys[::-1]))
    keys, value = keys[:, order], value[order]
    start = np.flatnonzero(np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)][: len(value)])
    n = np.add.reduceat(np.isfinite(value), start, dtype=np.int64) if len(start) else start
    summary = np.full((len(start), len(STATISTICS)), np.nan)
    for seeds in np.unique(n[n > 0]):
        rows = np.flatnonzero(n == seeds)
        series = value[start[rows, None] + np.arange(seeds)]
        summary[rows] = _summarise(series, seed=seed, resamples=resamples, confidence=confidence)
    table = pd.DataFrame(
        {
            "cell": keys[0, start],
            "phase": np.asarray(phases, object)[keys[1, start]],
            "step": keys[2, start],
            "metric": np.asarray(metrics, object)[keys[3, start]],
            "n": n,
        }
    )
    table = pd.concat([table, pd.DataFrame(summary, columns=list(STATISTICS))], axis=1)
    return results.with_axes(table) if isinstance(results, Run) else table


def last_steps(records: pd.DataFrame) -> pd.DataFrame:
    """Keep, of every (cell, phase, metric), the rows of its last step: records or their aggregate."""
    last = records.groupby(["cell", "phase", "metric"], observed=True)["step"].transform("max")
    return records[records["step"] == last]


def summary_table(results: Run, **options: Any) -> pd.DataFrame:
    """Lay out `summary_rows` for reading: turned round if there are more metrics than rows."""
    rows = summary_rows(results, **options)
    by_metric = turned(rows, [*results.axes, "phase"])
    return by_metric if len(by_metric) > len(rows) else rows


def summary_rows(
    results: Run,
    *,
    metrics: Sequence[str] | None = None,
    statistic: str = "iqm",
    seed: int = 0,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Lay out the last step of each phase, cell by cell.

    Args:
        results: a results folder.
        metrics: which metrics; by default all but the single bins.
        statistic: "iqm" or "mean".
        seed: as `aggregate`.
        resamples: as `aggregate`.
        confidence: as `aggregate`.

    Returns:
        Text such as "0.873 [0.871, 0.875]", with "(n=3)" where fewer seeds than planned are finite. One row
        per cell and phase: the values of the axes, the phase, and a column per metric.
    """
    records, chosen = _shown(results, metrics)
    table = results.with_axes(aggregate(records, seed=seed, resamples=resamples, confidence=confidence))
    planned = len(results.manifest["seeds"])
    text = [
        interval(value, low, high) + ("" if n == planned else f" (n={n})")
        for value, low, high, n in zip(
            table[statistic], table[f"{statistic}_low"], table[f"{statistic}_high"], table["n"], strict=True
        )
    ]
    keys = [*(results.axes or []), "phase"]
    wide = table.assign(text=text).pivot(index=["cell", "phase"], columns="metric", values="text").fillna("")
    order = table[["cell", *keys]].drop_duplicates(["cell", "phase"])
    wide = wide.reindex(index=pd.MultiIndex.from_frame(order[["cell", "phase"]]), columns=chosen)
    heads = order[keys].map(setting).reset_index(drop=True)
    return pd.concat([heads, wide.reset_index(drop=True).rename_axis(columns=None)], axis=1)


def summary_title(results: Run) -> str:
    """Say what a summary shows: what its values are, and `summary_words`."""
    what = ", ".join([*results.derived, "last step of each phase"])
    return f"{what[0].upper()}{what[1:]}: {summary_words(results)}"


def summary_words(results: Run) -> str:
    """Say what the entries of a summary are: the estimator, its interval, and over how many seeds."""
    records, _ = _shown(results, None)
    finite = records[np.isfinite(records["value"])]
    counts = finite.groupby(["cell", "phase", "metric"], observed=True).size()
    if counts.empty or counts.max() == 1:
        return "1 seed, without an interval" if len(counts) else "no seed has a finite value"
    words = f"interquartile mean [95 % bootstrap interval] over {seed_words(counts)}"
    few = ((counts > 1) & (counts < ENOUGH_SEEDS)).any()
    return words + f"; with fewer than {ENOUGH_SEEDS}, {TOO_FEW}" * bool(few)


def _shown(results: Run, metrics: Sequence[str] | None) -> tuple[pd.DataFrame, list[str]]:
    """Take the last step of each phase, and of metrics those asked for, by default all but single bins."""
    records = last_steps(results.records)
    chosen = metrics or [name for name in records["metric"].unique() if not re.search(r"_bin_\d+$", name)]
    return records[records["metric"].isin(list(chosen))], list(chosen)


def turned(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Turn `summary_rows` round: one row per metric, a column per cell and phase, named after the `keys`."""
    *axes, phase = keys
    phases = [] if rows[phase].nunique() == 1 and axes else [phase]
    names = [
        ", ".join([*(f"{axis} = {row[axis]}" for axis in axes if row[axis]), *row[phases]])
        for _, row in rows.iterrows()
    ]
    wide = rows.drop(columns=list(keys)).set_axis(pd.Index(names), axis=0).T
    return wide.rename_axis(index=None, columns=None).reset_index(names="metric")


def bootstrap_mean(
    samples: ArrayLike, *, seed: int = 0, resamples: int = 2000, confidence: float = 0.95
) -> tuple[float, float]:
    """Bound the mean of samples, (n,), by the bootstrap of `aggregate`; NaN for one sample."""
    series = np.sort(np.asarray(samples, float))[None]
    summary = _summarise(series, seed=seed, resamples=resamples, confidence=confidence)[0]
    return float(summary[STATISTICS.index("mean_low")]), float(summary[STATISTICS.index("mean_high")])


def _summarise(
    series: NDArray[np.float64], *, seed: int, resamples: int, confidence: float
) -> NDArray[np.float64]:
    """Compute `STATISTICS` of (m, n) values, ascending along n."""
    seeds = series.shape[1]
    weights = _iqm_weights(seeds)
    summary = np.full((len(series), len(STATISTICS)), np.nan)
    summary[:, 0] = series.mean(axis=1)
    summary[:, 1] = np.median(series, axis=1)
    summary[:, 2] = series @ weights
    if seeds > 1:
        draws = np.random.default_rng(seed).integers(0, seeds, (resamples, seeds))
        # In ascending series sorted draws are sorted resamples. Both statistics of a resample are then linear
        # in the series, with one matrix for all series: thousands of them cost one product.
        linear = np.zeros((2, resamples, seeds))
        where = (np.arange(resamples)[:, None], np.sort(draws, axis=1))
        np.add.at(linear[0], where, 1 / seeds)
        np.add.at(linear[1], where, weights)
        tails = [(1 - confidence) / 2, (1 + confidence) / 2]
        step = max(1, BLOCK // resamples)
        for first in range(0, len(series), step):
            block = slice(first, first + step)
            for operator, columns in zip(linear, (slice(3, 5), slice(5, 7)), strict=True):
                summary[block, columns] = np.quantile(series[block] @ operator.T, tails, axis=1).T
    return summary


def _iqm_weights(n: int) -> NDArray[np.float64]:
    """The share of every order statistic in the middle half of n: 2 |[j/n, (j+1)/n] ∩ [1/4, 3/4]|."""
    edges = np.clip(np.arange(n + 1) / n, 0.25, 0.75)
    return 2 * np.diff(edges)
