"""Curves printed as numbers in the public review thread of arXiv 2505.17282."""

from typing import NamedTuple

import numpy as np


class Curve(NamedTuple):
    """Published curve with m points.

    Attributes:
        name: name of the model.
        letters: quantity in the notation of the model, such as E·W2 p.
        centres: x-coordinates with shape (m,).
        values: y-coordinates with shape (m,).
    """

    name: str
    letters: str
    centres: np.ndarray
    values: np.ndarray


# Centres of the 20 bins of the tables of bin means.
_CENTRES = np.linspace(-0.9516666666666667, 0.8850000000000002, 20)
MLP = (
    Curve(
        "MLP",
        "E·v",
        _CENTRES,
        np.array(
            [
                0.13,
                0.24,
                0.06,
                0.09,
                0.04,
                0.1,
                0.01,
                0.04,
                -0.01,
                0.03,
                0.06,
                0.11,
                0.18,
                0.24,
                0.34,
                0.44,
                0.57,
                0.72,
                0.87,
                1.4,
            ]
        ),
    ),
    Curve(
        "MLP",
        "E·p",
        _CENTRES,
        np.array(
            [
                4.76,
                4.61,
                3.26,
                3.08,
                2.8,
                2.06,
                1.6,
                1.43,
                0.89,
                0.67,
                0.59,
                0.71,
                1.11,
                1.61,
                2.02,
                2.3,
                3.28,
                3.39,
                4.84,
                6.1,
            ]
        ),
    ),
)
TWO_LAYERS = (
    Curve(
        "two layers with weights",
        "E·v",
        _CENTRES,
        np.array(
            [
                -1.07,
                -1.14,
                -0.82,
                -0.69,
                -0.58,
                -0.65,
                -0.53,
                -0.44,
                -0.18,
                -0.13,
                0.01,
                0.11,
                0.26,
                0.39,
                0.54,
                0.63,
                0.81,
                0.73,
                0.61,
                0.93,
            ]
        ),
    ),
    Curve(
        "two layers with weights",
        "E·W2 p",
        _CENTRES,
        np.array(
            [
                15.47,
                7.37,
                7.79,
                4.64,
                3.68,
                1.6,
                0.68,
                -0.61,
                -2.22,
                -2.8,
                -3.92,
                -3.18,
                -2.23,
                -1.43,
                -0.15,
                0.29,
                3.21,
                2.98,
                7.9,
                12.44,
            ]
        ),
    ),
)


def _evenly(low, high, count):
    return np.array([low + (high - low) * k / (count - 1) for k in range(count)])


# Rows of the model with four classes on Yelp, by the index of the class. The x-axis is not named.
YELP = {
    1: Curve(
        "four classes",
        "E·v_2",
        _evenly(-0.026, 0.032, 19),
        np.array(
            [
                -42.0,
                -27.0,
                -51.0,
                -21.0,
                -41.0,
                -42.0,
                -42.0,
                -36.0,
                18.0,
                36.0,
                31.0,
                56.0,
                44.0,
                23.0,
                45.0,
                43.0,
                63.0,
                81.0,
                54.0,
            ]
        ),
    ),
    3: Curve(
        "four classes",
        "E·v_4",
        _evenly(-0.021, 0.021, 19),
        np.array(
            [
                -65.0,
                -66.0,
                -37.0,
                -33.0,
                -31.0,
                -31.0,
                -26.0,
                -23.0,
                -22.0,
                -0.6,
                32.0,
                28.0,
                31.0,
                29.0,
                19.0,
                30.0,
                42.0,
                34.0,
                21.0,
            ]
        ),
    ),
}
