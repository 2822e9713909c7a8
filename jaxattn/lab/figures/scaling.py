"""Figures with power laws: a metric against a swept key, or against another metric during a phase."""

from dataclasses import dataclass, replace
from typing import Any

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from jaxattn.core.errors import InputError, counted
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import FIGURE_WIDTH, INK, SOFT, colours, legend_below, style
from jaxattn.lab.results.fits import NO_LAW, PowerLaw, power_law
from jaxattn.lab.results.judge import around, verdict
from jaxattn.lab.results.labels import (
    axis_label,
    file_name,
    format_number,
    literal,
    minus,
    seed_words,
    setting,
    settings_label,
    unknown_metric,
)
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import aggregate, geometric_words, metric_at_end

_INCOMPLETE = "a fit requires two points on the x-axis and a seed that is positive at all of them"
GUIDE: Any = {"linewidth": 0.9, "linestyle": (0, (4, 3))}


@dataclass(frozen=True)
class Series:
    """Values of a metric along one axis, with all other axes fixed.

    Attributes:
        settings: the values of the other axes.
        x: (m,); axis values in ascending order.
        y: (m, seeds); NaN where a seed has no positive finite value.
        table: statistics over seeds from `statistics.aggregate`, with one row per x.
        law: the fitted power law; all NaN if there is no fit.
        reason: why there is no fit; empty if there is one.
    """

    settings: dict[str, Any]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    table: pd.DataFrame
    law: PowerLaw
    reason: str = ""


def scaling(
    results: Run,
    *,
    axis: str,
    metric: str = "one_step_error",
    phase: str | None = None,
    expected: float | None = None,
    tolerance: float | None = None,
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
        tolerance: allowed deviation of the slope from `expected`. According to the caption, the slope agrees
            if its 95 % interval lies within the tolerance, differs if the interval lies outside it, and is
            inconclusive otherwise.

    Raises:
        InputError: an axis, metric or phase is unknown, or the axis has values that are not positive
            numbers.
    """
    series = collect(results, axis=axis, metric=metric, phase=phase)
    if expected is None:
        series = [_spanning(line, metric) for line in series]
    phase = str(series[0].table["phase"].iloc[0])
    palette = colours(len(series), ordered=False)
    with style():
        figure = Figure(figsize=(0.7 * FIGURE_WIDTH, 3.2), layout="constrained")
        ax = figure.subplots()
        lines = [_draw(ax, line, colour, expected) for line, colour in zip(series, palette, strict=True)]
        ax.set(xscale="log", yscale="log", xlabel=axis_label(axis), ylabel=results.label(metric))
        _ticks(ax, series)
        guide = Line2D([], [], color=SOFT, **GUIDE)
        guide.set_label("" if expected is None else minus(f"expected slope {expected:g}"))
        if len(series) == 1:
            known = np.isfinite(series[0].law.slope)
            ax.set_title(
                literal(minus(sentence(series[0], expected, tolerance).rstrip("."))) if known else "No fit"
            )
            if expected is not None:
                ax.legend(handles=[guide], loc="best", labelcolor=SOFT)
        else:
            legend_below(figure, [*lines, *([] if expected is None else [guide])])
    verdicts = [sentence(line, expected, tolerance) for line in series]
    left_out = len(results.cells) - sum(len(line.x) for line in series)
    if left_out:
        verdicts.append(
            f"{counted(left_out, 'cell')} without a positive finite value or other values of {axis} "
            f"{'is' if left_out == 1 else 'are'} not shown."
        )
    counts = [int(n) for line in series for n in line.table["n"] if n > 0]
    return RenderedFigure(
        file_name("scaling", metric, axis, *([] if phase == results.phases[-1] else [phase])),
        f"{metric} against {axis}",
        f"{metric} at the end of phase {phase} against {axis} on logarithmic axes, {seed_words(counts)}. "
        f"Dark dots are means{geometric_words(series[0].table)} with 95 % intervals, light dots are "
        "single seeds, and the line is a power law fitted to the seeds that have a value in every cell. "
        + " ".join(verdicts),
        figure,
    )


def _draw(ax: matplotlib.axes.Axes, line: Series, colour: Any, expected: float | None) -> Line2D:
    seeds: Any = {"s": 9, "color": colour, "alpha": 0.25, "linewidths": 0, "zorder": 2}
    ax.scatter(np.repeat(line.x, line.y.shape[1]), line.y.ravel(), **seeds)
    value, low, high = (line.table[name].to_numpy(float) for name in ("mean", "mean_low", "mean_high"))
    bars = np.nan_to_num([value - low, high - value]).clip(min=0)
    rim: Any = {"markeredgecolor": "white", "markeredgewidth": 0.6}
    ax.errorbar(line.x, value, bars, fmt="o", color=colour, markersize=5, elinewidth=1, zorder=5, **rim)
    law = line.law
    if np.isfinite(law.slope):
        ax.plot(line.x, np.exp(law.intercept) * line.x**law.slope, color=colour, zorder=3)
        if expected is not None:
            middle = np.exp(np.log(line.x).mean())
            guide = np.exp(law.intercept) * middle**law.slope * (line.x / middle) ** expected
            ax.plot(line.x, guide, color=INK if not line.settings else colour, zorder=4, **GUIDE)
    name = f"{settings_label(line.settings)}: " if line.settings else ""
    return Line2D([], [], color=colour, label=name + minus(fitted(law)))


def _ticks(ax: matplotlib.axes.Axes, series: list[Series]) -> None:
    ticks = np.unique(np.concatenate([line.x for line in series]))
    if len(ticks) <= 9:
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.xaxis.set_minor_locator(NullLocator())
    low, high = ax.get_ylim()
    if high < 100 * low:
        subs = range(1, 10) if high < 3 * low else (1, 2, 5)
        ax.yaxis.set_major_locator(LogLocator(subs=subs))
        ax.yaxis.set_major_formatter(FuncFormatter(_scientific))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _scientific(value: float, position: int | None = None) -> str:
    digits, exponent = f"{value:.0e}".split("e")
    if -2 <= int(exponent) <= 3:
        return f"{value:g}"
    return rf"${digits}\times10^{{{int(exponent)}}}$" if digits != "1" else f"$10^{{{int(exponent)}}}$"


def collect(results: Run, *, axis: str, metric: str, phase: str | None = None) -> list[Series]:
    """Collect a metric at the end of a phase along an axis, one series per combination of other axis values.

    The arguments are those of `scaling`.

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
    return [_series(results, sorted(members), wide, table, axis) for members in lines]


def _series(
    results: Run, members: list[tuple[float, int]], wide: pd.DataFrame, table: pd.DataFrame, axis: str
) -> Series:
    cells = [cell for _, cell in members]
    x = np.array([value for value, _ in members])
    y = wide.loc[cells].to_numpy(float)
    settings = results.settings(cells[0])
    del settings[axis]
    law = power_law(x, y)
    rows = table.set_index("cell").loc[cells].reset_index()
    return Series(settings, x, y, rows, law, "" if np.isfinite(law.slope) else _INCOMPLETE)


def _spanning(line: Series, metric: str) -> Series:
    """Return a series without its fit if the means of the metric span less than a decade."""
    least, most = line.table["mean"].min(), line.table["mean"].max()
    if line.reason or most >= 10 * least:
        return line
    reason = f"{metric} spans less than a decade, {format_number(least)} to {format_number(most)}"
    return replace(line, law=NO_LAW, reason=reason)


def fitted(law: PowerLaw) -> str:
    """Format the slope of a fit with its interval."""
    if not np.isfinite(law.slope):
        return "no fit"
    if not np.isfinite(law.low):
        return f"slope {law.slope:.3f}"
    return f"slope {law.slope:.3f} [{law.low:.3f}, {law.high:.3f}]"


def sentence(line: "Series | Course", expected: float | None, tolerance: float | None) -> str:
    """Describe a fit and its agreement with the expected slope in one sentence."""
    name, law = _named(line.settings), line.law
    text = f"{name}: {fitted(law)}" if name else fitted(law).capitalize()
    if not np.isfinite(law.slope):
        return f"{text}: {line.reason}."
    if expected is None:
        return f"{text}."
    if tolerance is None:
        return f"{text}, expected {expected:g}."
    criterion = around(expected, tolerance)
    return f"{text}, expected {criterion.text}: {verdict(law.estimate, criterion)}."


def _named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {setting(value)}" for key, value in settings.items())


@dataclass(frozen=True)
class Course:
    """Two metrics at each step of a phase, for all seeds of a cell.

    Attributes:
        settings: the cell's settings.
        x: (m, seeds); NaN if x or y is not positive, or if x is the same as at the previous step, as after
            the end of a path.
        y: (m, seeds); NaN at the same entries as x.
        law: the power law fitted to the chosen range of x.
    """

    settings: dict[str, Any]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    law: PowerLaw
    reason: str = _INCOMPLETE

    @property
    def median(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the medians of x and y over seeds, at each step that has values."""
        filled = np.isfinite(self.y).any(axis=1)
        return np.nanmedian(self.x[filled], axis=1), np.nanmedian(self.y[filled], axis=1)


def convergence(
    results: Run,
    *,
    x: str = "p_norm",
    y: str = "one_minus_cosine",
    phase: str | None = None,
    fit_from: float | None = None,
    fit_until: float | None = None,
    expected: float | None = None,
    tolerance: float | None = None,
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
        expected: expected exponent.
        tolerance: allowed deviation of the exponent, as in `scaling`.

    Raises:
        InputError: the metrics or the phase were not recorded, or no values are positive.
    """
    fits = any(option is not None for option in (fit_from, fit_until, expected))
    window = (fit_from or 0.0, fit_until or np.inf) if fits else None
    phase, courses = collect_courses(results, x=x, y=y, phase=phase, window=window)
    palette = colours(len(courses), ordered=False)
    with style():
        figure = Figure(figsize=(0.8 * FIGURE_WIDTH, 3.5), layout="constrained")
        ax = figure.subplots()
        handles = [_draw_course(ax, course, c, fits) for course, c in zip(courses, palette, strict=True)]
        ax.set(xscale="log", yscale="log", xlabel=results.label(x), ylabel=results.label(y))
        if expected is not None:
            handles.append(_guide(ax, courses, expected))
        if len(courses) > 1:
            legend_below(figure, handles)
        elif handles[1:]:
            ax.legend(handles=handles[1:], loc="best", labelcolor=SOFT)
    verdicts = [sentence(c, expected, tolerance) for c in courses] if fits else []
    seeds = [int(np.isfinite(course.y).any(axis=0).sum()) for course in courses]
    return RenderedFigure(
        file_name("convergence", y, x, *([] if phase == results.phases[-1] else [phase])),
        f"{y} against {x}",
        f"The phase {phase} on logarithmic axes, {seed_words(seeds)}. Thin lines are single seeds, and the "
        f"thick line is the median over seeds. {' '.join(verdicts)}".strip(),
        figure,
    )


def collect_courses(
    results: Run, *, x: str, y: str, phase: str | None, window: tuple[float, float] | None
) -> tuple[str, list[Course]]:
    """Collect two metrics of each cell during a phase, and fit power laws within a given window of x.

    Returns:
        The phase, and one `Course` per cell that recorded both metrics.

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
        if not {x, source} <= set(wide.index.get_level_values("metric")):
            continue
        courses.append(_course(results.settings(int(cell)), wide.loc[x], wide.loc[source], y, window))
    if not any(np.isfinite(course.y).any() for course in courses):
        raise InputError(f"convergence: {x} and {y} have no positive values in phase {phase!r}")
    return phase, courses


def _course(
    settings: dict[str, Any],
    x: pd.DataFrame,
    y: pd.DataFrame,
    name: str,
    window: tuple[float, float] | None,
) -> Course:
    along, up = (frame.to_numpy(float) for frame in x.align(y, join="inner"))
    up = 1 - up if name == "margin_shortfall" else up
    repeated = np.zeros(along.shape, bool)
    repeated[1:] = along[1:] == along[:-1]
    with np.errstate(invalid="ignore"):
        shown = (along > 0) & (up > 0) & np.isfinite(up) & ~repeated
    along, up = np.where(shown, along, np.nan), np.where(shown, up, np.nan)
    low, high = window or (np.inf, 0.0)
    with np.errstate(invalid="ignore"):
        inside = (along >= low) & (along <= high)
    return Course(settings, along, up, power_law(np.where(inside, along, np.nan), up))


def _draw_course(ax: matplotlib.axes.Axes, course: Course, colour: str, fits: bool) -> Line2D:
    ax.plot(course.x, course.y, color=colour, linewidth=0.5, alpha=max(0.06, 0.5 / course.x.shape[1] ** 0.5))
    ax.plot(*course.median, color=colour, linewidth=1.6, zorder=4)
    words = [settings_label(course.settings), minus(fitted(course.law)) if fits else ""]
    return Line2D([], [], color=colour, label=": ".join(filter(None, words)))


def _guide(ax: matplotlib.axes.Axes, courses: list[Course], expected: float) -> Line2D:
    appearance: Any = {"color": INK, **GUIDE}
    for course in courses:
        if np.isfinite(course.law.slope):
            ends = np.array([np.nanmin(course.x), np.nanmax(course.x)])
            ends[0] = max(ends[0], ends[1] * 1e-4)
            middle = np.sqrt(ends.prod())
            height = 3 * np.exp(course.law.intercept) * middle**course.law.slope
            ax.plot(ends, height * (ends / middle) ** expected, **appearance)
            break
    return Line2D([], [], label=minus(f"expected power {expected:g}"), **appearance)
