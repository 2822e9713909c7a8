"""Figure: a metric at the end of a phase over two axes."""

from typing import Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from jaxattn.core.errors import InputError
from jaxattn.results.drawn import Drawn
from jaxattn.results.labels import axis_label, file_name, minus, seed_words, unknown_metric
from jaxattn.results.numbers import format_number, in_order, setting
from jaxattn.results.run import Run
from jaxattn.results.statistics import aggregate, last_steps
from jaxattn.results.style import WIDTH, style


def diagram(
    results: Run,
    *,
    x_axis: str,
    y_axis: str,
    metric: str = "important_selected",
    phase: str | None = None,
) -> Drawn:
    """Colour the plane of two axes by the mean of a metric over seeds, and write it into every field.

    Args:
        results: a results folder.
        x_axis: the swept key from left to right.
        y_axis: the swept key from bottom to top.
        metric: what to show, at the last step of the phase; over all other axes it is averaged.
        phase: which phase; by default the last one that recorded the metric.

    Returns:
        The figure.

    Raises:
        InputError: an axis, metric or phase that the run does not have.
    """
    for axis in (x_axis, y_axis):
        if axis not in results.axes:
            raise InputError(f"axis {axis!r}: the run sweeps {', '.join(results.axes) or 'nothing'}")
    records = results.records[results.records["metric"] == metric]
    if records.empty:
        raise unknown_metric(metric, results.records["metric"])
    recorded = [str(name) for name in records["phase"].unique()]
    if phase not in (None, *recorded):
        raise InputError(f"{metric} in phase {phase!r}: recorded in {', '.join(recorded)}")
    phase = recorded[-1] if phase is None else phase
    table = aggregate(last_steps(records[records["phase"] == phase]))
    table = table.merge(results.cells, on="cell")
    fields = table.pivot_table(index=y_axis, columns=x_axis, values="mean", aggfunc="mean", sort=False)
    fields = fields.loc[sorted(fields.index, key=in_order), sorted(fields.columns, key=in_order)]
    values = fields.to_numpy(float)
    if not np.isfinite(values).any():
        raise InputError(f"diagram: {metric} has no finite value at the end of phase {phase!r}")
    rows, columns = values.shape
    with style():
        figure = Figure(figsize=(min(WIDTH, 1.8 + 0.62 * columns), 1.1 + 0.36 * rows), layout="constrained")
        ax = figure.subplots()
        look: Any = {"cmap": "viridis", "norm": _scale(values), "edgecolors": "white", "linewidth": 1.5}
        mesh = ax.pcolormesh(values, **look)
        ax.set_xticks(np.arange(columns) + 0.5, [setting(x) for x in fields.columns])
        ax.set_yticks(np.arange(rows) + 0.5, [setting(y) for y in fields.index])
        ax.tick_params(length=0)
        ax.grid(False)
        ax.spines[:].set_visible(False)
        shade = np.asarray(mesh.norm(values))
        for (row, column), value in np.ndenumerate(values):
            dark = shade[row, column] < 0.6
            text = minus(format_number(value))
            at: Any = {"ha": "center", "va": "center", "fontsize": 8, "color": "white" if dark else "black"}
            ax.text(column + 0.5, row + 0.5, text, **at)
        ax.set_xlabel(axis_label(x_axis))
        ax.set_ylabel(axis_label(y_axis))
        ax.set_title(results.label(metric))
    return Drawn(
        file_name("diagram", metric, y_axis, x_axis, *([] if phase == results.phases[-1] else [phase])),
        f"{metric} over {y_axis} and {x_axis}",
        f"{metric} at the end of phase {phase}, mean over seeds ({seed_words(table['n'])}), for every "
        f"{y_axis} and {x_axis}.",
        figure,
    )


def _scale(values: np.ndarray) -> Normalize:
    """Colour by size: by its logarithm where values span decades, from 0 to 1 where they are shares."""
    low, high = np.nanmin(values), np.nanmax(values)
    if low > 0 and high > 100 * low:
        return LogNorm(low, high)
    return Normalize(0, 1) if low >= 0 and high <= 1 else Normalize(low, high)
