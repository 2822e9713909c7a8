"""Figure of a metric against a swept key, with lines for a second key and panels for a third."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from jaxattn.core.errors import InputError
from jaxattn.lab.figures.panels import (
    columns,
    cross_out,
    cross_words,
    label_below,
    looks,
    panel_grid,
    place_values,
)
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import legend_below, style
from jaxattn.lab.results.combine import group
from jaxattn.lab.results.labels import axis_label, axis_sort_key, file_name, seed_words, tick_label
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import LOG, aggregate, geometric_words, metric_at_end

_MAX_LINES, _MAX_PANELS = 12, 9


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
        figure, grid = panel_grid(len(shown), sharey=True)
        label_below(grid, [axis_label(axis)] * len(shown))
        for number, (ax, value) in enumerate(zip(grid, shown, strict=True)):
            own = table if panels is None else table[table[panels] == value]
            handles = _panel(ax, own, axis, lines, levels)
            ax.set_yscale("log" if is_log else "linear")
            if panels is not None:
                ax.set_title(f"{axis_label(panels)} = {tick_label(value)}")
            if number % columns(ax) == 0:
                ax.set_ylabel(results.label(metric))
        if lines is not None:
            legend_below(figure, handles)
    return RenderedFigure(
        file_name("against", metric, *keys),
        f"{metric} against {axis}",
        f"{metric} at the end of phase {phase}: means over {seed_words(table.loc[table['n'] > 0, 'n'])}"
        f"{geometric_words(table)}, with 95 % intervals{averaged}.{cross_words(int(table['missing'].sum()))}",
        figure,
    )


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
    at = place_values(ax, levels[axis])
    ordered = len(values) > 3 and not any(isinstance(value, str) for value in values)
    handles = []
    for value, look in zip(values, looks(len(values), ordered=ordered), strict=True):
        own = table if lines is None else table[table[lines] == value]
        own = own.assign(at=own[axis].map(at)).sort_values("at")
        own = own[own["n"] > 0]
        mean, low, high = (own[name].to_numpy(float) for name in ("mean", "mean_low", "mean_high"))
        bars = np.nan_to_num([mean - low, high - mean]).clip(min=0)
        ax.errorbar(own["at"], mean, bars, elinewidth=1, capsize=2, **look)
        cross_out(ax, own["at"], mean, own["missing"])
        label = "" if lines is None else f"{axis_label(lines)} = {tick_label(value)}"
        handles.append(Line2D([], [], label=label, **look))
    return handles
