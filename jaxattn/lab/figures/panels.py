"""Parts of figures: grids of panels, appearances of lines, and axes of swept values."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import matplotlib.axes
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike

from jaxattn.lab.figures.style import FIGURE_WIDTH, SOFT, colours
from jaxattn.lab.results.labels import grow_by_factors, tick_label

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)))
_COLUMNS, _HEIGHT = 3, 2.0
# Width of a figure with a number of columns, relative to the width of the page.
_WIDTHS = 0.62, 0.85, 1.0
# Maximum number of values of which each has a tick, in a figure with one column and in others.
_MAX_TICKS = 9, 6


def looks(count: int, *, ordered: bool = False) -> list[dict[str, Any]]:
    """Return appearances of lines, which differ in marker and dash, not only in colour; see `colours`."""
    parts = zip(
        colours(count, ordered=ordered), itertools.cycle(_MARKERS), itertools.cycle(_DASHES), strict=False
    )
    return [{"color": c, "marker": m, "markersize": 4, "linestyle": dash} for c, m, dash in parts]


def panel_grid(number: int, **options: Any) -> tuple[Figure, list[matplotlib.axes.Axes]]:
    """Return a figure with axes for a number of panels; the options are those of `Figure.subplots`."""
    across = 2 if number == 4 else min(_COLUMNS, number)
    down = -(-number // across)
    size = FIGURE_WIDTH * _WIDTHS[across - 1], _HEIGHT * down + 0.4
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False, **options).ravel())
    for ax in grid[number:]:
        ax.set_axis_off()
    return figure, grid[:number]


def columns(ax: matplotlib.axes.Axes) -> int:
    """Return the number of columns of the grid of a panel."""
    grid = ax.get_gridspec()
    return grid.ncols if grid else 1


def label_below(grid: Sequence[matplotlib.axes.Axes], labels: Sequence[str]) -> None:
    """Label the horizontal axes of panels, except of those above a panel with the same label."""
    step = columns(grid[0])
    for number, (ax, label) in enumerate(zip(grid, labels, strict=True)):
        if list(labels[number + step : number + step + 1]) != [label]:
            ax.set_xlabel(label)


def place_values(ax: matplotlib.axes.Axes, values: Sequence[Any]) -> dict[Any, float]:
    """Set the scale and the ticks of a horizontal axis, and return the position of each value.

    The axis is logarithmic if the values grow by factors, and categorical if they are not numbers. An
    infinite value is one step after the last finite one.

    Args:
        ax: the axes.
        values: the values in order; "inf" is infinite.
    """
    numeric = all((isinstance(x, int | float) and not isinstance(x, bool)) or x == "inf" for x in values)
    numbers = [float(x) for x in values] if numeric else [float(k) for k in range(len(values))]
    finite = [x for x in numbers if x < math.inf]
    is_log = False
    if numeric and len(finite) > 1 and finite[0] > 0:
        is_log = grow_by_factors(finite) if len(finite) > 2 else finite[1] >= 4 * finite[0]
    last, before = (finite[-1], finite[-2]) if len(finite) > 1 else (2 * (finite or [0.5])[0], 0.0)
    beyond = last if len(finite) < 2 else last**2 / before if is_log else 2 * last - before
    at = dict(zip(values, np.minimum(numbers, beyond).tolist(), strict=True))
    if is_log:
        ax.set_xscale("log")
    if not numeric or len(finite) < len(numbers) or len(values) <= _MAX_TICKS[columns(ax) > 1]:
        ax.set_xticks(list(at.values()), [tick_label(x) for x in values])
        ax.xaxis.set_minor_locator(NullLocator())
    if not numeric:
        ax.margins(x=0.1)
    return at


def cross_out(ax: matplotlib.axes.Axes, x: ArrayLike, mean: ArrayLike, missing: ArrayLike) -> None:
    """Mark means without some of the seeds by crosses."""
    lost = np.asarray(missing) > 0
    ax.plot(np.asarray(x)[lost], np.asarray(mean)[lost], "x", color=SOFT, markersize=8, zorder=6)


def cross_words(missing: int) -> str:
    """Return the sentence of a caption that explains crosses, or "" if there are none."""
    words = f" A cross marks a mean without the seeds that have no value ({missing} in all)."
    return words * bool(missing)
