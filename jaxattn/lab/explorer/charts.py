"""Positions of curves, dots and ticks in the explorer's charts, in the units of an SVG view box."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from jaxattn.lab.results.labels import format_number

# Size of a chart and the area between its axes. On a phone, one unit is about one CSS pixel.
WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 350, 24, 196
MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Approximate maximum number of ticks of an axis.
_TICKS = 6
# Chart of support pairs: horizontal position of margin 0, distance to margin 1, and the range that is shown.
MARGIN_ZERO, MARGIN_UNIT, MARGIN_LOW, MARGIN_HIGH = 230, 60, -0.4, 1.9
# Axes extend by this fraction of their range beyond the data.
_MARGIN = 0.05


class Tick(NamedTuple):
    """Position and label of a tick."""

    at: float
    label: str


class Axis(NamedTuple):
    """Scale of an axis.

    Attributes:
        transform: function from values to the scale of the axis, elementwise; NaN where it is undefined.
        ticks: function from the lower and upper end of the transformed axis to ticks at transformed values.
    """

    transform: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    ticks: Callable[[float, float], list[Tick]]


class Curve(NamedTuple):
    """A curve in a chart.

    Attributes:
        x_name, y_name: names of the axes.
        x_ticks, y_ticks: ticks in view box units.
        points: for each point of the path, its position "x,y", or None if it is not finite.
        zero: vertical position of y = 0; None if the chart does not contain it.
    """

    x_name: str
    y_name: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    points: list[str | None]
    zero: float | None = None

    @property
    def polyline(self) -> str:
        """Return the positions of all finite points, as an SVG polyline expects them."""
        return " ".join(point for point in self.points if point is not None)

    @property
    def last(self) -> tuple[str, str]:
        """Return the coordinates of the last point of the path that is in the chart."""
        x, _, y = next(point for point in reversed(self.points) if point is not None).partition(",")
        return x, y


class Dots(NamedTuple):
    """A chart with one dot per token, which moves vertically.

    Attributes:
        ticks: ticks of the vertical axis in view box units.
        x: horizontal position of each token.
        zero: vertical position of the value 0.
        unit: vertical distance between the values 0 and 1. It is negative, because SVG counts downwards.
    """

    ticks: list[Tick]
    x: list[float]
    zero: float
    unit: float

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return round(self.zero + self.unit * value, 1)


def number(value: float | None) -> str:
    """Format a number with a minus sign; "–" if it is None or not finite."""
    return format_number(math.nan if value is None else value).replace("-", MINUS)


def power(exponent: int) -> str:
    """Format a power of ten, such as 10⁻³."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def margin_x(margin: float) -> float:
    """Return the horizontal position of a margin in the chart of support pairs."""
    return round(MARGIN_ZERO + MARGIN_UNIT * min(max(margin, MARGIN_LOW), MARGIN_HIGH), 1)


def _linear_ticks(low: float, high: float) -> list[Tick]:
    found = MaxNLocator(_TICKS - 1).tick_values(low, high)
    return [Tick(x, f"{x:g}".replace("-", MINUS)) for x in found if low <= x <= high]


def _log_ticks(low: float, high: float) -> list[Tick]:
    found = MaxNLocator(_TICKS, integer=True).tick_values(low, high)
    return [Tick(x, power(round(x))) for x in found if low <= x <= high]


def _signed_log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(x) * np.log10(1 + np.abs(x))


def _signed_log_ticks(low: float, high: float) -> list[Tick]:
    powers = range(max(math.ceil(max(abs(low), abs(high))), 1))
    values = sorted({0.0, *(10.0**k for k in powers), *(-(10.0**k) for k in powers)})
    ticks = [Tick(float(_signed_log(np.array(x))), f"{x:.0f}".replace("-", MINUS)) for x in values]
    ticks = [tick for tick in ticks if low <= tick.at <= high]
    if len(ticks) < 2:
        ends = (math.copysign(10 ** abs(end) - 1, end) for end in (low, high))
        ticks = [tick._replace(at=float(_signed_log(np.array(tick.at)))) for tick in _linear_ticks(*ends)]
    return ticks[:: math.ceil(len(ticks) / (_TICKS + 1)) or 1]


def _log10(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log10(np.where(x > 0, x, np.nan))


LINEAR = Axis(lambda x: x, _linear_ticks)
LOG = Axis(_log10, _log_ticks)
# sign(x) log10(1 + |x|) shows log t and components of p, which have both signs and range over many decades.
SIGNED_LOG = Axis(_signed_log, _signed_log_ticks)


def curve(
    x: Sequence[float | None],
    y: Sequence[float | None],
    axes: tuple[Axis, Axis],
    names: tuple[str, str],
) -> Curve:
    """Build a chart of y over x.

    Args:
        x: horizontal values at each point of the path; None if not finite.
        y: vertical values at each point of the path; None if not finite.
        axes: horizontal and vertical axis.
        names: names of the axes.

    Raises:
        ValueError: no point is finite on both axes.
    """
    xs, ys = (
        axis.transform(np.array([math.nan if v is None else v for v in values], float))
        for axis, values in zip(axes, (x, y), strict=True)
    )
    shown = np.isfinite(xs) & np.isfinite(ys)
    if not shown.any():
        raise ValueError(f"no finite points of {names[1]} over {names[0]}")
    low_x, high_x = _range(xs[shown])
    low_y, high_y = _range(ys[shown])

    def across(value: float) -> float:
        return round(float(LEFT + (value - low_x) / (high_x - low_x) * (RIGHT - LEFT)), 1)

    def up(value: float) -> float:
        return round(float(BOTTOM - (value - low_y) / (high_y - low_y) * (BOTTOM - TOP)), 1)

    return Curve(
        *names,
        [Tick(across(tick.at), tick.label) for tick in axes[0].ticks(low_x, high_x)],
        [Tick(up(tick.at), tick.label) for tick in axes[1].ticks(low_y, high_y)],
        [f"{across(a):g},{up(b):g}" if ok else None for a, b, ok in zip(xs, ys, shown, strict=True)],
        up(0) if axes[1] is LINEAR and low_y <= 0 <= high_y else None,
    )


def dots(values: Sequence[Sequence[float | None]]) -> Dots:
    """Build a chart with one dot per token.

    Args:
        values: for each token, its value at each point of the path; None if not finite.
    """
    known = np.array([value for row in values for value in row if value is not None] or [0.0], float)
    low, high = _range(np.append(known, 0.0))
    unit = -(BOTTOM - TOP) / (high - low)
    made = Dots(
        [],
        [round(x, 1) for x in np.linspace(LEFT + 6, RIGHT - 6, len(values)).tolist()],
        round(BOTTOM - low * unit, 1),
        round(unit, 4),
    )
    return made._replace(ticks=[Tick(made.y(tick.at), tick.label) for tick in _linear_ticks(low, high)])


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = (high - low) * _MARGIN or 1.0
    return low - margin, high + margin
