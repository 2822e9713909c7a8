"""Figure of a metric against a swept key, with lines for a second key and panels for a third."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxattn.core.errors import InputError
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import FIGURE_WIDTH, SOFT, colours, legend_below, style
from jaxattn.lab.results.combine import group
from jaxattn.lab.results.labels import (
    axis_label,
    axis_sort_key,
    file_name,
    grow_by_factors,
    seed_words,
    tick_label,
)
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import LOG, aggregate, geometric_words, metric_at_end

# Lines differ in marker and dash, not only in colour.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)))
_MAX_LINES, _MAX_PANELS, _MAX_TICKS, _COLUMNS = 12, 9, 6, 3
_HEIGHT = 2.3


def against(
    results: Run,
    *,
    axis: str,
    metric: str = "loss",
    lines: str | None = None,
    panels: str | None = None,
    phase: str | None = None,
    scale: Literal["linear", "log"] | None = None,
) -> RenderedFigure:
    """Plot a metric at the end of a phase against a swept key, as means over seeds with 95 % intervals.

    The values of other swept keys are averaged for each seed; see `combine.group`. The horizontal axis is
    logarithmic if its values grow by factors, and categorical if they are not numbers.

    Args:
        results: a results folder.
        axis: swept key on the horizontal axis.
        metric: name of the metric.
        lines: swept key with a line for each value.
        panels: swept key with a panel for each value.
        phase: name of the phase; defaults to the last phase that recorded the metric.
        scale: scale of the vertical axis; by default logarithmic if the metric is aggregated by its geometric
            mean.

    Raises:
        InputError: a key, metric or phase is unknown, a key is named twice, or there are too many lines or
            panels.
    """
    keys = [key for key in (axis, lines, panels) if key is not None]
    table, phase, averaged = _rows(results, keys, metric, phase)
    levels = {key: sorted(table[key].unique().tolist(), key=axis_sort_key) for key in keys}
    for key, most in ((lines, _MAX_LINES), (panels, _MAX_PANELS)):
        if key is not None and len(levels[key]) > most:
            raise InputError(
                f"{key}: {len(levels[key])} values, but at most {most} are drawn; use another key"
            )
    positive = bool((table["mean"].dropna() > 0).all())
    if scale == "log" and not positive:
        raise InputError(f"against: scale = 'log' is not possible, because {metric} has values of 0 or below")
    is_log = scale == "log" or (scale is None and positive and (table["scale"] == LOG).all())
    shown = levels[panels] if panels else [None]
    with style():
        figure, grid = _grid(len(shown), axis_label(axis), results.label(metric))
        for ax, value in zip(grid, shown, strict=True):
            own = table if panels is None else table[table[panels] == value]
            handles = _panel(ax, own, axis, lines, levels)
            ax.set_yscale("log" if is_log else "linear")
            if panels is not None:
                ax.set_title(f"{axis_label(panels)} = {tick_label(value)}")
        if lines is not None:
            legend_below(figure, handles)
    missing = int(table["missing"].sum())
    return RenderedFigure(
        file_name("against", metric, *keys),
        f"{metric} against {axis}",
        f"{metric} at the end of phase {phase}: means over {seed_words(table.loc[table['n'] > 0, 'n'])}"
        f"{geometric_words(table)}, with 95 % intervals{averaged}."
        + f" A cross marks a mean without the seeds that have no value ({missing} in all)."
        * bool(missing),
        figure,
    )


def _grid(number: int, x: str, y: str) -> tuple[Figure, list[matplotlib.axes.Axes]]:
    """Return a figure with axes for a number of panels, labelled at the left and at the bottom."""
    columns = min(_COLUMNS, number)
    rows = -(-number // columns)
    size = FIGURE_WIDTH * (0.62, 0.85, 1.0)[columns - 1], _HEIGHT * rows + 0.3
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=True).ravel())
    for ax in grid[number:]:
        ax.set_axis_off()
    for ax in grid[max(0, number - columns) : number]:
        ax.set_xlabel(x)
    for ax in grid[:number:columns]:
        ax.set_ylabel(y)
    return figure, grid[:number]


def _rows(results: Run, keys: Sequence[str], metric: str, phase: str | None) -> tuple[pd.DataFrame, str, str]:
    """Return statistics with one row per combination of values of the keys, the phase, and a caption note."""
    for number, key in enumerate(keys):
        if key not in results.axes:
            raise InputError(f"{key}: not swept; swept keys: {', '.join(results.axes) or 'none'}")
        if key in keys[:number]:
            raise InputError(f"{key}: named twice; choose different keys for axis, lines and panels")
    records, phase = metric_at_end(results.records, metric, phase)
    # Cells may end at different steps.
    found = replace(results, records=records.assign(step=records["step"].max()))
    others = [axis for axis in results.axes if axis not in keys]
    averaged = f", averaged over {', '.join(others)}" if others else ""
    table = aggregate(group(found, keys) if others else found)
    known = table[list(keys)].notna().all(axis=1)
    if not (table.loc[known, "n"] > 0).any():
        raise InputError(f"against: no finite value of {metric} in cells that set {' and '.join(keys)}")
    return table[known], phase, averaged


def _panel(
    ax: matplotlib.axes.Axes, table: pd.DataFrame, axis: str, lines: str | None, levels: dict[str, list[Any]]
) -> list[Line2D]:
    """Draw the lines of a panel, and return the entries of the legend."""
    values = levels[lines] if lines else [None]
    at = _scaled(ax, levels[axis])
    palette = colours(len(values), ordered=_are_numbers(values) and len(values) > 3)
    looks = zip(itertools.cycle(_MARKERS), itertools.cycle(_DASHES), strict=False)
    handles = []
    for value, colour, (marker, dash) in zip(values, palette, looks, strict=False):
        own = table if lines is None else table[table[lines] == value]
        own = own.assign(at=own[axis].map(at)).sort_values("at")
        own = own[own["n"] > 0]
        mean, low, high = (own[name].to_numpy(float) for name in ("mean", "mean_low", "mean_high"))
        bars = np.nan_to_num([mean - low, high - mean]).clip(min=0)
        appearance: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linestyle": dash}
        ax.errorbar(own["at"], mean, bars, elinewidth=1, capsize=2, **appearance)
        lost = own["missing"].to_numpy() > 0
        ax.plot(own["at"][lost], mean[lost], "x", color=SOFT, markersize=8, zorder=6)
        label = "" if lines is None else f"{axis_label(lines)} = {tick_label(value)}"
        handles.append(Line2D([], [], label=label, **appearance))
    return handles


def _scaled(ax: matplotlib.axes.Axes, values: Sequence[Any]) -> dict[Any, float]:
    """Set the scale and the ticks of the horizontal axis, and return the position of each value."""
    numeric = _are_numbers(values)
    at = {value: float(value) if numeric else float(k) for k, value in enumerate(values)}
    if numeric and len(values) > 2 and grow_by_factors(values):
        ax.set_xscale("log")
    if not numeric or len(values) <= _MAX_TICKS:
        ax.set_xticks([at[value] for value in values], [tick_label(value) for value in values])
        ax.minorticks_off()
    if not numeric:
        ax.margins(x=0.1)
    return at


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
