"""Figure: a metric at the end of a phase against an axis, with the fitted power law."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray

from jaxattn.analysis.results import Results
from jaxattn.analysis.statistics import PowerLaw, aggregate, last_steps, power_law
from jaxattn.analysis.style import (
    INK,
    SOFT,
    WIDTH,
    Drawn,
    axis_label,
    colours,
    file_name,
    metric_label,
    seed_words,
    settings_label,
    style,
)
from jaxattn.errors import InputError


@dataclass(frozen=True)
class Series:
    """One metric along one axis, all other axes held.

    Attributes:
        settings: the values of the other axes.
        x: (m,) axis values, ascending.
        y: (m, seeds); NaN where a seed has no positive finite value.
        table: the aggregate, a row per x.
        law: the fitted power law.
    """

    settings: dict[str, Any]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    table: pd.DataFrame
    law: PowerLaw


def scaling(
    results: Results,
    *,
    axis: str,
    metric: str = "one_step_error",
    phase: str | None = None,
    expected: float | None = None,
    tolerance: float | None = None,
) -> Drawn:
    """Draw a metric at the end of a phase against an axis, both logarithmic, and fit its power law.

    Args:
        results: a results folder.
        axis: the swept key on the x-axis; every setting of the other axes becomes a line of its own.
        metric: what to draw.
        phase: which phase; by default the last one that recorded the metric.
        expected: a slope to compare with, drawn as a dashed guide.
        tolerance: how far from it the slope may be: it holds if its whole 95 % interval is that near, does not if
            none of it is, and is undecided else.

    Returns:
        The figure.

    Raises:
        InputError: an unknown axis, metric or phase, an axis that holds no positive numbers.
    """
    series = collect(results, axis=axis, metric=metric, phase=phase)
    phase = str(series[0].table["phase"].iloc[0])
    palette = colours(len(series), ordered=False)
    with style():
        figure = Figure(figsize=(0.7 * WIDTH, 3.3), layout="constrained")
        ax = figure.subplots()
        for line, colour in zip(series, palette, strict=True):
            ax.scatter(
                np.repeat(line.x, line.y.shape[1]), line.y.ravel(), s=9, color=colour, alpha=0.25, linewidths=0
            )
            value, low, high = (line.table[name].to_numpy(float) for name in ("iqm", "iqm_low", "iqm_high"))
            bars = np.stack([value - np.where(np.isnan(low), value, low), np.where(np.isnan(high), value, high) - value])
            ax.errorbar(
                line.x,
                value,
                yerr=np.maximum(bars, 0),
                fmt="o",
                color=colour,
                markersize=5,
                markeredgecolor="white",
                markeredgewidth=0.6,
                elinewidth=1,
                zorder=4,
            )
            fit = np.exp(line.law.intercept) * line.x**line.law.slope
            name = (settings_label(line.settings) + ": ") if line.settings else ""
            ax.plot(line.x, fit, color=colour, zorder=3, label=name + _fitted(line.law))
            if expected is not None and np.isfinite(line.law.slope):
                middle = np.exp(np.log(line.x).mean())
                guide = np.exp(line.law.intercept) * middle**line.law.slope * (line.x / middle) ** expected
                last = line is series[-1]
                text = f"slope {expected:g}, expected" if last else None
                ax.plot(line.x, guide, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=2, label=text)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ticks = np.unique(np.concatenate([line.x for line in series]))
        if len(ticks) <= 9:
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel(axis_label(axis))
        ax.set_ylabel(metric_label(metric))
        ax.legend(loc="best", labelcolor=SOFT)
    verdicts = [_sentence(line, expected, tolerance) for line in series]
    counts = [int(n) for line in series for n in line.table["n"] if n > 0]
    return Drawn(
        file_name("scaling", metric, axis, *([] if phase == results.phases[-1] else [phase])),
        f"{metric} against {axis}",
        f"{metric} at the end of phase {phase} against {axis}, logarithmic axes ({seed_words(counts)}). Dark dots: "
        f"interquartile mean with its 95 % bootstrap interval; light dots: single seeds; line: power law fitted to "
        f"all seeds. {' '.join(verdicts)}",
        figure,
    )


def collect(results: Results, *, axis: str, metric: str, phase: str | None = None) -> list[Series]:
    """Gather a metric at the end of a phase along an axis, one series per setting of the other axes.

    Args:
        results: a results folder.
        axis: the swept key.
        metric: which metric.
        phase: which phase; by default the last one that recorded the metric.

    Returns:
        The series, at least one, with their fits.

    Raises:
        InputError: as `scaling`.
    """
    if axis not in results.axes:
        raise InputError(f"axis {axis!r}: the run sweeps {', '.join(results.axes) or 'nothing'}")
    records = results.records[results.records["metric"] == metric]
    if records.empty:
        raise InputError(f"metric {metric!r}: the run recorded {', '.join(sorted(results.records['metric'].unique()))}")
    recorded = [str(name) for name in records["phase"].unique()]
    phase = recorded[-1] if phase is None else phase
    if phase not in recorded:
        raise InputError(f"phase {phase!r}: {metric} was recorded in {', '.join(recorded)}")
    records = last_steps(records[records["phase"] == phase])
    positive = records["value"].where(np.isfinite(records["value"]) & (records["value"] > 0))
    records = records.assign(value=positive)
    table = aggregate(records)
    if not (table["n"] > 0).any():
        raise InputError(f"scaling: {metric} has no positive finite value at the end of phase {phase!r}")
    groups: dict[str, list[tuple[float, int]]] = {}
    for cell in table.loc[table["n"] > 0, "cell"]:
        settings = results.settings(int(cell))
        x = settings.pop(axis, None)
        if isinstance(x, bool) or not isinstance(x, int | float) or not x > 0:
            raise InputError(f"axis {axis!r}: cell {cell} has {x!r} there; logarithmic axes need positive numbers")
        groups.setdefault(repr(settings), []).append((float(x), int(cell)))
    wide = records.pivot(index="cell", columns="seed", values="value")
    return [_series(results, sorted(members), wide, table, axis) for members in groups.values()]


def verdict(law: PowerLaw, expected: float, tolerance: float) -> str:
    """Judge a slope by its interval (by itself if it has none): "holds", "does not hold" or "undecided"."""
    low, high = (law.low, law.high) if np.isfinite(law.low) else (law.slope, law.slope)
    if low >= expected - tolerance and high <= expected + tolerance:
        return "holds"
    return "undecided" if low <= expected + tolerance and high >= expected - tolerance else "does not hold"


def _series(
    results: Results, members: list[tuple[float, int]], wide: pd.DataFrame, table: pd.DataFrame, axis: str
) -> Series:
    cells = [cell for _, cell in members]
    x = np.array([value for value, _ in members])
    y = wide.loc[cells].to_numpy(float)
    settings = results.settings(cells[0])
    del settings[axis]
    return Series(settings, x, y, table.set_index("cell").loc[cells].reset_index(), power_law(x, y))


def _fitted(law: PowerLaw) -> str:
    if not np.isfinite(law.slope):
        return "no fit"
    if not np.isfinite(law.low):
        return f"slope {law.slope:.3f}"
    return f"slope {law.slope:.3f} [{law.low:.3f}, {law.high:.3f}]"


def _sentence(line: Series, expected: float | None, tolerance: float | None) -> str:
    name = ", ".join(f"{key} = {value}" for key, value in line.settings.items())
    text = f"{name}: {_fitted(line.law)}" if name else _fitted(line.law).capitalize()
    if not np.isfinite(line.law.slope):
        return f"{text}: it needs two axis values and a seed that is positive at all of them."
    if expected is None:
        return f"{text}."
    if tolerance is None:
        return f"{text}, expected {expected:g}."
    return f"{text}, expected {expected:g} ± {tolerance:g}: {verdict(line.law, expected, tolerance)}."
