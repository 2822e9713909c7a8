"""Positions in charts invert to the values, and ticks are where their labels say."""

import math

import numpy as np
import pytest

from jaxattn.lab.explorer import charts

SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def value(label):
    text = label.replace(charts.MINUS, "-")
    return 10.0 ** int(text[2:].translate(SUPERSCRIPTS)) if text[-1] in "⁰¹²³⁴⁵⁶⁷⁸⁹" else float(text)


def signed_log(x):
    return math.copysign(math.log10(1 + abs(x)), x)


@pytest.mark.parametrize(
    ("axis", "scale", "values"),
    [
        (charts.LINEAR, float, [-3.0, 0.5, 12.0]),
        (charts.LOG, math.log10, [1e-9, 2e-4, 0.5]),
        (charts.SIGNED_LOG, signed_log, [-3.0, 0.0, 8.0, 5157.0]),
        (charts.SIGNED_LOG, signed_log, [0.1, 0.2, 0.3]),
    ],
)
def test_points_and_ticks_share_one_scale(axis, scale, values):
    """Two ticks determine the scale; all points and further ticks follow it."""
    drawn = charts.curve(values, values, (axis, axis), ("x", "y"))
    points = [tuple(map(float, point.split(","))) for point in drawn.points]
    for number, ticks in ((0, drawn.x_ticks), (1, drawn.y_ticks)):
        known = [(scale(x), point[number]) for x, point in zip(values, points, strict=True)]
        slope = (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])
        everything = [*known, *((scale(value(tick.label)), tick.at) for tick in ticks)]
        assert ticks
        for at, position in everything:
            assert position == pytest.approx(known[0][1] + slope * (at - known[0][0]), abs=0.25)
    x, y = np.array(points).T
    assert (np.diff(x) > 0).all()
    assert (np.diff(y) < 0).all()
    assert charts.LEFT < x[0] < x[-1] < charts.RIGHT
    assert charts.TOP < y[-1] < y[0] < charts.BOTTOM


def test_points_that_are_not_finite_are_left_out():
    drawn = charts.curve([None, 1.0, 2.0], [1.0, 0.5, 0.0], (charts.LINEAR, charts.LOG), ("x", "y"))
    assert [point is None for point in drawn.points] == [True, False, True]
    assert drawn.polyline == drawn.points[1]
    assert drawn.last == tuple(drawn.points[1].split(","))
    with pytest.raises(ValueError, match="no finite points of y over x"):
        charts.curve([None], [1.0], (charts.LINEAR, charts.LOG), ("x", "y"))


def test_dots_are_on_the_scale_of_their_ticks():
    dots = charts.dots([[0.5, -2.0], [None, 1.0]])
    assert dots.x[0] < dots.x[1]
    for tick in dots.ticks:
        assert dots.y(value(tick.label)) == pytest.approx(tick.at, abs=0.1)
    assert charts.TOP < dots.y(1.0) < dots.zero < dots.y(-2.0) < charts.BOTTOM


def test_margins_beyond_the_chart_are_drawn_at_its_edge():
    assert charts.margin_x(1) - charts.margin_x(0) == charts.MARGIN_UNIT
    assert charts.margin_x(7) == charts.margin_x(charts.MARGIN_HIGH)
    assert charts.margin_x(-7) == charts.margin_x(charts.MARGIN_LOW)
