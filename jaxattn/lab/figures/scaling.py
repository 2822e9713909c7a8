"""Figures with power laws: a metric against a swept key, or against another metric during a phase."""

from dataclasses import dataclass, replace
from typing import Any

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from jaxattn.core.errors import InputError, counted
from jaxattn.lab.figures.panels import cross_out, cross_words, looks, panel_grid, place_values
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import INK, legend_below, style
from jaxattn.lab.results.fits import NO_LAW, PowerLaw, power_law
from jaxattn.lab.results.labels import (
    axis_label,
    file_name,
    format_number,
    minus,
    seed_words,
    setting,
    settings_label,
    unknown_metric,
)
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import aggregate, geometric_words, metric_at_end

_INCOMPLETE = "a fit requires two points on the x-axis and a seed that is positive at all of them"
GUIDE: Any = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 4}


@dataclass(frozen=True)
class Series:
    """Values of a metric against x, for all seeds, with a fitted power law.

    Attributes:
        settings: settings that distinguish the series from the others.
        x: (m,) axis values in ascending order, or (m, seeds) values of another metric; NaN where y is NaN.
        y: (m, seeds); NaN where a seed has no positive finite value.
        law: the fitted power law; all NaN if there is no fit.
        reason: why there is no fit; empty if there is one.
        table: statistics over seeds, with one row per x; None if x is a metric.
    """

    settings: dict[str, Any]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    law: PowerLaw
    reason: str = ""
    table: pd.DataFrame | None = None

    @property
    def median(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the medians of x and y over seeds, at each x that has values, for x of each seed."""
        filled = np.isfinite(self.y).any(axis=1)
        return np.nanmedian(self.x[filled], axis=1), np.nanmedian(self.y[filled], axis=1)

    def words(self, expected: float | None) -> str:
        """Return a sentence with the slope and the expected one, or with the reason why there is no fit."""
        name = ", ".join(f"{key} = {setting(value)}" for key, value in self.settings.items())
        text = f"{name}: {fitted(self.law)}" if name else fitted(self.law).capitalize()
        if self.reason:
            return f"{text}: {self.reason}."
        return f"{text}." if expected is None else f"{text}, expected {expected:g}."

    def label(self, fits: bool) -> str:
        """Return the entry of a legend: the settings, and the slope if there are fits."""
        parts = [settings_label(self.settings), minus(fitted(self.law)) if fits else ""]
        return ": ".join(filter(None, parts))


def fitted(law: PowerLaw) -> str:
    """Format the slope of a fit with its interval."""
    if not np.isfinite(law.slope):
        return "no fit"
    bounds = f" [{law.low:.3f}, {law.high:.3f}]" if np.isfinite(law.low) else ""
    return f"slope {law.slope:.3f}{bounds}"


def scaling(
    results: Run,
    *,
    axis: str,
    metric: str = "one_step_error",
    phase: str | None = None,
    expected: float | None = None,
) -> RenderedFigure:
    """Plot a metric at the end of a phase against an axis, on logarithmic scales, with a fitted power law.

    Without an expected slope, a power law is fitted only if the means of the metric span a decade.

    Args:
        results: a results folder.
        axis: swept key on the x-axis. Each combination of values on the other axes is drawn as a separate
            line. Cells of blocks without this axis are left out. Combinations with a single point are also
            left out, unless every combination has a single point.
        metric: name of the metric.
        phase: name of the phase; defaults to the last phase that recorded the metric.
        expected: expected slope, drawn as a dashed line.

    Raises:
        InputError: an axis, metric or phase is unknown, or the axis has values that are not positive
            numbers.
    """
    phase, series = collect(results, axis=axis, metric=metric, phase=phase)
    if expected is None:
        series = [_spanning(line, metric) for line in series]
    tables = pd.concat([line.table for line in series])
    with style():
        figure, (ax,) = panel_grid(1)
        ax.set(xscale="log", yscale="log", xlabel=axis_label(axis), ylabel=results.label(metric))
        place_values(ax, np.unique(np.concatenate([line.x for line in series])).tolist())
        handles = [_draw(ax, line, look) for line, look in zip(series, looks(len(series)), strict=True)]
        if expected is not None:
            handles.append(_guide(ax, series, expected, 1.0))
        legend_below(figure, handles)
    words = [line.words(expected) for line in series]
    if left_out := len(results.cells) - len(tables):
        words.append(
            f"{counted(left_out, 'cell')} without a positive finite value or other values of {axis} "
            f"{'is' if left_out == 1 else 'are'} not shown."
        )
    return RenderedFigure(
        file_name("scaling", metric, axis, *([] if phase == results.phases[-1] else [phase])),
        f"{metric} against {axis}",
        f"{metric} at the end of phase {phase} against {axis} on logarithmic axes, "
        f"{seed_words(tables.loc[tables['n'] > 0, 'n'])}. Large marks are means{geometric_words(tables)} "
        "with 95 % intervals, light dots are single seeds, and the line is a power law fitted to the seeds "
        f"that have a value in every cell.{cross_words(int(tables['missing'].sum()))} {' '.join(words)}",
        figure,
    )


def _draw(ax: matplotlib.axes.Axes, line: Series, look: dict[str, Any]) -> Line2D:
    assert line.table is not None
    seeds: Any = {"s": 9, "color": look["color"], "alpha": 0.25, "linewidths": 0, "zorder": 2}
    ax.scatter(np.repeat(line.x, line.y.shape[1]), line.y.ravel(), **seeds)
    mean, low, high = (line.table[name].to_numpy(float) for name in ("mean", "mean_low", "mean_high"))
    bars = np.nan_to_num([mean - low, high - mean]).clip(min=0)
    ax.errorbar(line.x, mean, bars, elinewidth=1, zorder=5, **look | {"linestyle": ""})
    cross_out(ax, line.x, mean, line.table["missing"])
    if np.isfinite(line.law.slope):
        y = np.exp(line.law.intercept) * line.x**line.law.slope
        ax.plot(line.x, y, zorder=3, **look | {"marker": ""})
    return Line2D([], [], label=line.label(fits=True), **look)


def _guide(ax: matplotlib.axes.Axes, series: list[Series], expected: float, factor: float) -> Line2D:
    """Draw a line with the expected slope through the middle of the first fit, or a factor above it."""
    for line in series:
        if np.isfinite(line.law.slope):
            ends = np.array([np.nanmin(line.x), np.nanmax(line.x)])
            ends[0] = max(ends[0], ends[1] * 1e-4)
            middle = np.sqrt(ends.prod())
            height = factor * np.exp(line.law.intercept) * middle**line.law.slope
            ax.plot(ends, height * (ends / middle) ** expected, **GUIDE)
            break
    return Line2D([], [], label=minus(f"expected slope {expected:g}"), **GUIDE)


def collect(results: Run, *, axis: str, metric: str, phase: str | None = None) -> tuple[str, list[Series]]:
    """Collect a metric at the end of a phase along an axis, one series per combination of other axis values.

    The arguments are those of `scaling`.

    Returns:
        The phase, and the series.

    Raises:
        InputError: as in `scaling`.
    """
    if axis not in results.axes:
        raise InputError(f"axis {axis!r}: not swept; swept keys: {', '.join(results.axes) or 'none'}")
    records, phase = metric_at_end(results.records, metric, phase)
    positive = records["value"].where(np.isfinite(records["value"]) & (records["value"] > 0))
    records = records.assign(value=positive)
    table = aggregate(replace(results, records=records))
    groups: dict[str, list[tuple[float, int]]] = {}
    for cell in table.loc[table["n"] > 0, "cell"]:
        settings = results.settings(int(cell))
        x = settings.pop(axis, None)
        if x is None:
            continue
        if isinstance(x, bool) or not isinstance(x, int | float) or not x > 0:
            raise InputError(
                f"axis {axis!r}: the value in cell {cell} is {x!r}; logarithmic axes require positive numbers"
            )
        groups.setdefault(repr(settings), []).append((float(x), int(cell)))
    if not groups:
        raise InputError(f"scaling: {metric} has no positive finite value at the end of phase {phase!r}")
    wide = records.pivot(index="cell", columns="seed", values="value")
    lines = [members for members in groups.values() if len(members) > 1] or list(groups.values())
    found = []
    for members in lines:
        sizes, cells = zip(*sorted(members), strict=True)
        settings = {key: value for key, value in results.settings(cells[0]).items() if key != axis}
        y = wide.loc[list(cells)].to_numpy(float)
        law = power_law(sizes, y)
        rows = table.set_index("cell").loc[list(cells)].reset_index()
        reason = "" if np.isfinite(law.slope) else _INCOMPLETE
        found.append(Series(settings, np.array(sizes), y, law, reason, rows))
    return phase, found


def _spanning(line: Series, metric: str) -> Series:
    """Return a series without its fit if the means of the metric span less than a decade."""
    assert line.table is not None
    least, most = line.table["mean"].min(), line.table["mean"].max()
    if line.reason or most >= 10 * least:
        return line
    reason = f"{metric} spans less than a decade, {format_number(least)} to {format_number(most)}"
    return replace(line, law=NO_LAW, reason=reason)


def convergence(
    results: Run,
    *,
    x: str = "p_norm",
    y: str = "one_minus_cosine",
    phase: str | None = None,
    fit_from: float | None = None,
    fit_until: float | None = None,
    expected: float | None = None,
) -> RenderedFigure:
    """Plot one metric against another during a phase, on log scales, for each seed and for the median.

    Args:
        results: a results folder.
        x: metric on the x-axis.
        y: metric on the y-axis; "margin_shortfall" is 1 - margin_ratio.
        phase: name of the phase; defaults to the last phase that recorded both metrics.
        fit_from: smallest x to include in the fit. No fit is computed if `fit_from`, `fit_until` and
            `expected` are all omitted.
        fit_until: largest x to include in the fit.
        expected: expected exponent, drawn as a dashed line.

    Raises:
        InputError: the metrics or the phase were not recorded, or no values are positive.
    """
    fits = any(option is not None for option in (fit_from, fit_until, expected))
    window = (fit_from or 0.0, fit_until or np.inf) if fits else None
    phase, courses = collect_courses(results, x=x, y=y, phase=phase, window=window)
    with style():
        figure, (ax,) = panel_grid(1)
        handles = []
        for course, look in zip(courses, looks(len(courses)), strict=True):
            alpha = max(0.06, 0.5 / course.x.shape[1] ** 0.5)
            ax.plot(course.x, course.y, color=look["color"], linewidth=0.5, alpha=alpha)
            space = max(1, len(course.x) // 6)
            ax.plot(*course.median, markevery=space, linewidth=1.6, zorder=4, **look)
            handles.append(Line2D([], [], label=course.label(fits) or "median over seeds", **look))
        ax.set(xscale="log", yscale="log", xlabel=results.label(x), ylabel=results.label(y))
        if expected is not None:
            handles.append(_guide(ax, courses, expected, 3.0))
        legend_below(figure, handles)
    seeds = [int(np.isfinite(course.y).any(axis=0).sum()) for course in courses]
    words = [course.words(expected) for course in courses] if fits else []
    return RenderedFigure(
        file_name("convergence", y, x, *([] if phase == results.phases[-1] else [phase])),
        f"{y} against {x}",
        f"The phase {phase} on logarithmic axes, {seed_words(seeds)}. Thin lines are single seeds, and the "
        f"thick line is the median over seeds. {' '.join(words)}".strip(),
        figure,
    )


def collect_courses(
    results: Run, *, x: str, y: str, phase: str | None, window: tuple[float, float] | None
) -> tuple[str, list[Series]]:
    """Collect two metrics of each cell during a phase, and fit power laws within a given window of x.

    Values are NaN where x or y is not positive, and where x is the same as at the previous step, as after the
    end of a path.

    Returns:
        The phase, and one series per cell that recorded both metrics.

    Raises:
        InputError: as in `convergence`.
    """
    records = results.records
    source = "margin_ratio" if y == "margin_shortfall" else y
    for metric in (x, source):
        if not (records["metric"] == metric).any():
            raise unknown_metric(metric, records["metric"])
    both = [set(records.loc[records["metric"] == metric, "phase"].unique()) for metric in (x, source)]
    phases = [name for name in results.phases if name in both[0] & both[1]]
    if not phases or phase not in (None, *phases):
        raise InputError(
            f"phase {phase!r}: {x} and {y} were recorded only in {', '.join(phases) or 'different phases'}"
        )
    phase = phases[-1] if phase is None else phase
    records = records[(records["phase"] == phase) & records["metric"].isin([x, source])]
    courses = []
    for cell, rows in records.groupby("cell"):
        wide = rows.pivot(index=["metric", "step"], columns="seed", values="value")
        if {x, source} <= set(wide.index.get_level_values("metric")):
            along, up = (frame.to_numpy(float) for frame in wide.loc[x].align(wide.loc[source], join="inner"))
            up = 1 - up if y == "margin_shortfall" else up
            courses.append(_course(results.settings(int(cell)), along, up, window))
    if not any(np.isfinite(course.y).any() for course in courses):
        raise InputError(f"convergence: {x} and {y} have no positive values in phase {phase!r}")
    return phase, courses


def _course(
    settings: dict[str, Any],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    window: tuple[float, float] | None,
) -> Series:
    repeated = np.zeros(x.shape, bool)
    repeated[1:] = x[1:] == x[:-1]
    low, high = window or (np.inf, 0.0)
    with np.errstate(invalid="ignore"):
        shown = (x > 0) & (y > 0) & np.isfinite(y) & ~repeated
        inside = shown & (x >= low) & (x <= high)
    x, y = np.where(shown, x, np.nan), np.where(shown, y, np.nan)
    law = power_law(np.where(inside, x, np.nan), y)
    return Series(settings, x, y, law, "" if np.isfinite(law.slope) else _INCOMPLETE)
