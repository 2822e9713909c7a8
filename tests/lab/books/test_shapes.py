"""Shapes of curves."""

import numpy as np

from jaxattn.lab.books import lowest, sign_change, u_shape

X = np.linspace(-0.95, 0.95, 20)


def test_u_shape_is_detected_but_a_line_and_a_hill_are_not():
    scores = u_shape(np.stack([X**2, X, -(X**2)]), X)
    np.testing.assert_allclose(scores, [1, -1, -1])


def test_lowest_bin_is_found_next_to_empty_bins():
    row = np.where(np.arange(20) == 3, np.nan, (X - 0.25) ** 2)
    np.testing.assert_allclose(lowest(np.stack([row, np.full(20, np.nan)]), X), [0.25, np.nan])


def test_sign_change_is_zero_if_all_signs_are_wrong():
    assert sign_change(np.sign(X)[None], X)[0] == 1
    assert sign_change(-np.sign(X)[None], X)[0] == 0
