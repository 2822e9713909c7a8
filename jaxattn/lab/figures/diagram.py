"""Figures over two swept keys: colour maps of a metric's mean, and thresholds along one of the keys."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import matplotlib.axes
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from jaxattn.core.errors import InputError, counted
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
    fields = table.pivot_table(index=y_axis, columns=x_axis, values="mean", aggfunc="mean", sort=False)
    fields = fields.loc[sorted(fields.index, key=axis_sort_key), sorted(fields.columns, key=axis_sort_key)]
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
            text = minus(format_number(value))
            at: Any = {"ha": "center", "va": "center", "color": "white" if dark else "black"}
            ax.text(column + 0.5, row + 0.5, text, **at)
        ax.set(xlabel=axis_label(x_axis), ylabel=axis_label(y_axis), title=results.label(metric))
    return RenderedFigure(
        file_name("diagram", metric, y_axis, x_axis, *([] if phase == results.phases[-1] else [phase])),
        f"{metric} over {y_axis} and {x_axis}",
        f"Mean of {metric} over {seed_words(table['n'])}{averaged} at the end of phase {phase}, for every "
        f"{y_axis} and {x_axis}.",
        figure,
    )


def _scale(values: np.ndarray) -> Normalize:
    low, high = np.nanmin(values), np.nanmax(values)
    if low > 0 and high > 100 * low:
        return LogNorm(low, high)
    return Normalize(0, 1) if low >= 0 and high <= 1 else Normalize(low, high)


Theory = Callable[[Any], float] | Mapping[Any, float]
_CURVE_POINTS = 200


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
            theory: the predicted y, drawn as a line: either a function of x, which receives `math.inf` for
                infinite x, or a mapping from values of x in the diagram to y.
            label: legend label of the line.

        Raises:
            InputError: `theory` is a function but x is not numeric, or `theory` contains values of x that are
                not in the diagram.
        """
        horizontal = _Horizontal.of(self.thresholds["x"].tolist())
        table = self.thresholds.set_index("x").loc[horizontal.values]
        with style():
            figure = Figure(figsize=(0.7 * FIGURE_WIDTH, 3.2), layout="constrained")
            ax = figure.subplots()
            _points(ax, self, horizontal)
            run = sorted(self.outcomes["y"].unique().tolist())
            middle = table["threshold"].to_numpy()
            # Clip intervals to the range of swept values.
            low, high = (np.clip(table[name], run[0], run[-1]) for name in ("low", "high"))
            ax.errorbar(
                horizontal.positions,
                middle,
                np.nan_to_num(np.stack([middle - low, high - middle])),
                fmt="o",
                color=BLUE,
                markersize=4,
                capsize=2,
                linewidth=1.2,
                label=f"half of the seeds: {literal(self.condition)}",
            )
            if theory is not None:
                x, y = horizontal.curve(theory)
                marker = "s" if len(x) < _CURVE_POINTS else ""
                ax.plot(
                    x, y, color=RED, linestyle=(0, (4, 2)), marker=marker, markersize=3, label=formula(label)
                )
            horizontal.scale(ax)
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


class _Horizontal(NamedTuple):
    """Values on a horizontal axis, in order, and their positions."""

    values: list[Any]
    positions: list[float]
    numbers: list[float]
    logarithmic: bool

    @classmethod
    def of(cls, values: list[Any]) -> "_Horizontal":
        values = sorted(values, key=axis_sort_key)
        if not all(isinstance(x, int | float) or x == "inf" for x in values):
            return cls(values, [float(k) for k in range(len(values))], [], False)
        numbers = [float(x) for x in values]
        finite = [x for x in numbers if x < math.inf]
        logarithmic = len(finite) > 1 and finite[0] > 0 and finite[-1] >= 4 * finite[0]
        if not finite:
            beyond = 1.0
        elif len(finite) == 1:
            beyond = 2 * finite[0]
        else:
            beyond = finite[-1] ** 2 / finite[-2] if logarithmic else 2 * finite[-1] - finite[-2]
        return cls(values, [min(x, beyond) for x in numbers], numbers, logarithmic)

    def curve(self, theory: Theory) -> tuple[list[float], list[float]]:
        if isinstance(theory, Mapping):
            if unknown := [x for x in theory if x not in self.values]:
                raise InputError(
                    f"theory: x = {unknown[0]!r} is not plotted; "
                    f"choose from {', '.join(map(setting, self.values))}"
                )
            shown = [
                (position, x) for position, x in zip(self.positions, self.values, strict=True) if x in theory
            ]
            return [position for position, _ in shown], [float(theory[x]) for _, x in shown]
        if not self.numbers:
            raise InputError("theory: the values of x are not numbers; pass a mapping instead of a function")
        finite = [x for x in self.numbers if x < math.inf]
        spread = np.geomspace if self.logarithmic else np.linspace
        between = spread(finite[0], finite[-1], _CURVE_POINTS).tolist() if len(finite) > 1 else finite
        positions, at = list(between), list(between)
        if len(finite) < len(self.numbers):
            positions, at = [*positions, self.positions[-1]], [*at, math.inf]
        return positions, [float(theory(x)) for x in at]

    def scale(self, ax: matplotlib.axes.Axes) -> None:
        if self.logarithmic:
            ax.set_xscale("log")
            ax.minorticks_off()
        ax.set_xticks(self.positions, [tick_label(x) for x in self.values])


def _points(ax: matplotlib.axes.Axes, diagram: PhaseDiagram, horizontal: _Horizontal) -> None:
    position = dict(zip(horizontal.values, horizontal.positions, strict=True))
    shares = diagram.outcomes.groupby(["x", "y"], sort=False)["crossed"].mean().reset_index()
    ax.scatter(
        shares["x"].map(position),
        shares["y"],
        c=shares["crossed"],
        cmap="Greys",
        vmin=0,
        vmax=1,
        s=14,
        edgecolors=GREY,
        linewidths=0.5,
    )


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
