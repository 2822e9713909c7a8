"""Figures over two swept keys: colour maps of a metric's mean, and thresholds along one of the keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from jaxattn.core.errors import InputError, counted
from jaxattn.lab.figures.panels import panel_grid, place_values
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.figures.style import BLUE, FIGURE_WIDTH, GREY, RED, SOFT, style
from jaxattn.lab.results.labels import (
    axis_label,
    axis_sort_key,
    evenly_spaced,
    file_name,
    format_number,
    formula,
    interval,
    literal,
    minus,
    seed_words,
    setting,
    tick_label,
)
from jaxattn.lab.results.run import Run
from jaxattn.lab.results.statistics import aggregate, metric_at_end

# Maximum number of ticks on a readable axis, and maximum number of tiles in which values are printed.
_MAX_TICKS, _MAX_NUMBERS = 40, 400


def diagram(
    results: Run,
    *,
    x_axis: str,
    y_axis: str,
    metric: str = "important_selected",
    phase: str | None = None,
) -> RenderedFigure:
    """Plot the mean of a metric over seeds as a colour map over two axes, with values printed in the tiles.

    Args:
        results: a results folder.
        x_axis: swept key on the horizontal axis.
        y_axis: swept key on the vertical axis.
        metric: name of the metric. Its values at the last step of the phase are averaged over all other
            axes.
        phase: name of the phase; defaults to the last one that recorded the metric.

    Raises:
        InputError: the run does not have the axis, metric or phase.
    """
    for axis in (x_axis, y_axis):
        if axis not in results.axes:
            raise InputError(f"axis {axis!r}: not swept; swept keys: {', '.join(results.axes) or 'none'}")
    records, phase = metric_at_end(results.records, metric, phase)
    table = aggregate(replace(results, records=records))
    rows_and_columns = [sorted(table[key].dropna().unique(), key=axis_sort_key) for key in (y_axis, x_axis)]
    groups = table.groupby([y_axis, x_axis], sort=False)
    fields = groups["mean"].mean().unstack().loc[*rows_and_columns]
    lost = groups["missing"].sum().unstack().loc[*rows_and_columns].to_numpy() > 0
    values = fields.to_numpy(float)
    if not np.isfinite(values).any():
        raise InputError(f"diagram: {metric} has no finite value at the end of phase {phase!r}")
    rows, columns = values.shape
    others = [axis for axis in results.axes if axis not in (x_axis, y_axis)]
    averaged = f" and over {', '.join(others)}" if others else ""
    with style():
        figure = Figure(
            figsize=(min(FIGURE_WIDTH, 1.8 + 0.62 * columns), 1.1 + 0.36 * rows), layout="constrained"
        )
        ax = figure.subplots()
        appearance: Any = {"cmap": "viridis", "norm": _scale(values), "edgecolors": "white", "linewidth": 1.5}
        mesh = ax.pcolormesh(values, **appearance)
        across, up = evenly_spaced(range(columns), _MAX_TICKS), evenly_spaced(range(rows), _MAX_TICKS)
        ax.set_xticks(np.array(across) + 0.5, [tick_label(fields.columns[k]) for k in across])
        ax.set_yticks(np.array(up) + 0.5, [tick_label(fields.index[k]) for k in up])
        ax.tick_params(length=0)
        ax.grid(False)
        ax.spines[:].set_visible(False)
        shade = np.asarray(mesh.norm(values))
        for (row, column), value in np.ndenumerate(values) if values.size <= _MAX_NUMBERS else ():
            dark = shade[row, column] < 0.6
            text = minus(format_number(value)) + "*" * bool(lost[row, column])
            at: Any = {"ha": "center", "va": "center", "color": "white" if dark else "black"}
            ax.text(column + 0.5, row + 0.5, text, **at)
        ax.set(xlabel=axis_label(x_axis), ylabel=axis_label(y_axis), title=results.label(metric))
    return RenderedFigure(
        file_name("diagram", metric, y_axis, x_axis, *([] if phase == results.phases[-1] else [phase])),
        f"{metric} over {y_axis} and {x_axis}",
        f"Mean of {metric} over {seed_words(table['n'])}{averaged} at the end of phase {phase}, for every "
        f"{y_axis} and {x_axis}.{' An asterisk marks means without seeds that failed.' * bool(lost.any())}",
        figure,
    )


def _scale(values: np.ndarray) -> Normalize:
    low, high = np.nanmin(values), np.nanmax(values)
    if low > 0 and high > 100 * low:
        return LogNorm(low, high)
    return Normalize(0, 1) if low >= 0 and high <= 1 else Normalize(low, high)


Theory = Callable[[Any], float] | Mapping[Any, float]


@dataclass(frozen=True, repr=False)
class PhaseDiagram:
    """Thresholds along one swept key, for each value of another key.

    Attributes:
        x: key of the horizontal axis.
        y: key along which the threshold is defined.
        condition: display text of the condition under which a seed counts as having crossed the threshold.
        outcomes: one row per point and seed that was run, with columns x, y, seed, value (of the metric)
            and crossed.
        thresholds: one row per x, with columns x, threshold, low and high (95 % interval), above and
            at_most (the adjacent values that bracket the threshold), seeds, missing (number of non-finite
            values), and turned_back (number of seeds that crossed at a lower y but not at a higher y, and
            so do not have a single threshold).
    """

    x: str
    y: str
    condition: str
    outcomes: pd.DataFrame
    thresholds: pd.DataFrame

    def figure(self, theory: Theory | None = None, *, label: str = "theory") -> RenderedFigure:
        """Plot the median thresholds over seeds with 95 % intervals, and the points that were run.

        Args:
            theory: the predicted y at the values of x in the diagram: either a function, which receives
                `math.inf` for infinite x, or a mapping.
            label: legend label of the line.

        Raises:
            InputError: `theory` is a function but x is not numeric, or `theory` contains values of x that are
                not in the diagram.
        """
        columns = sorted(self.thresholds["x"].tolist(), key=axis_sort_key)
        table = self.thresholds.set_index("x").loc[columns]
        with style():
            figure, (ax,) = panel_grid(1)
            at = place_values(ax, columns)
            _points(ax, self, at)
            run = sorted(self.outcomes["y"].unique().tolist())
            middle = table["threshold"].to_numpy()
            # Clip intervals to the range of swept values.
            low, high = (np.clip(table[name], run[0], run[-1]) for name in ("low", "high"))
            bars = np.nan_to_num(np.stack([middle - low, high - middle]))
            name = f"half of the seeds: {literal(self.condition)}"
            ax.errorbar(
                list(at.values()), middle, bars, fmt="o", color=BLUE, markersize=4, capsize=2, label=name
            )
            if theory is not None:
                predicted = _predicted(theory, at)
                line: Any = {"color": RED, "linestyle": (0, (4, 2)), "marker": "s", "markersize": 3}
                ax.plot([at[x] for x in predicted], list(predicted.values()), label=formula(label), **line)
            if 0 < 10 * run[0] <= run[-1]:
                ax.set_yscale("log")
            ax.set(xlabel=axis_label(self.x), ylabel=axis_label(self.y))
            ax.legend(loc="best", labelcolor=SOFT)
        return RenderedFigure(
            file_name("boundary", self.y, self.x),
            f"Threshold of {self.y} over {self.x}",
            _words(self, label if theory is not None else ""),
            figure,
        )

    def __repr__(self) -> str:
        rows = self.thresholds.itertuples()
        words = [f"{setting(row.x)}: {interval(row.threshold, row.low, row.high)}" for row in rows]
        shown = words if len(words) <= 6 else [*words[:5], f"{len(words) - 5} more"]
        return f"PhaseDiagram({self.y} at which {self.condition}, by {self.x}: {'; '.join(shown)})"

    def _repr_html_(self) -> str:
        return self.thresholds.to_html(index=False, border=0)


def _predicted(theory: Theory, at: Mapping[Any, float]) -> dict[Any, float]:
    """Return the predicted y for values of x in a diagram."""
    if isinstance(theory, Mapping):
        if unknown := [x for x in theory if x not in at]:
            known = ", ".join(map(setting, at))
            raise InputError(f"theory: x = {unknown[0]!r} is not plotted; choose from {known}")
        return {x: float(theory[x]) for x in at if x in theory}
    try:
        return {x: float(theory(float(x))) for x in at}
    except ValueError:
        raise InputError(
            "theory: the values of x are not numbers; pass a mapping instead of a function"
        ) from None


def _points(ax: matplotlib.axes.Axes, diagram: PhaseDiagram, at: Mapping[Any, float]) -> None:
    shares = diagram.outcomes.groupby(["x", "y"], sort=False)["crossed"].mean().reset_index()
    look: Any = {"cmap": "Greys", "vmin": 0, "vmax": 1, "s": 14, "edgecolors": GREY, "linewidths": 0.5}
    ax.scatter(shares["x"].map(at), shares["y"], c=shares["crossed"], **look)


def _words(diagram: PhaseDiagram, theory: str) -> str:
    few = diagram.thresholds["seeds"]
    words = (
        f"Dots are the thresholds at which half of the seeds have {diagram.condition} "
        f"({seed_words(few)}), with 95 % intervals of the median. Small marks are the points that were "
        "run; a darker mark means that more seeds have crossed."
    )
    if theory:
        words += f" The dashed line is {theory}."
    if turned := int(diagram.thresholds["turned_back"].sum()):
        words += f" {counted(turned, 'seed')} crossed back at larger values, without a single threshold."
    return words
