import numpy as np
import pytest
from dynamics.shapes import DIM, POINTS, VOCAB, corpus_of, padded

import jaxattn as ja

pytestmark = pytest.mark.usefixtures("x64")

MIRRORED = [[1, 0.3, 0], [1, -0.3, 0], [0, 0, 0]]
ORDERED = [[0, 1, 2]], [1]
CONTRADICTION = [[0, 1, 2], [0, 1, 3]], [1, -1]


def sensitivity(keys, values, start, data=ORDERED, until_norm=1e3):
    scores = ja.theory.Scores(padded(keys, VOCAB, DIM), corpus_of(*data), padded(values, VOCAB))
    start = np.asarray(start, float)
    start = padded(start, DIM) if start.ndim == 1 else start
    return ja.dynamics.rounding_sensitivity(scores, start, until_norm=until_norm, points=POINTS)


@pytest.mark.parametrize("scale", [2.0**-10, 1.0, 2.0**10])
@pytest.mark.parametrize(
    ("keys", "values", "start"),
    [
        pytest.param(np.eye(3), [1, 1, 0], [0, 0, 0], id="two exchangeable tokens, p = 0"),
        pytest.param(np.eye(3), [1, 1, 0], [0.3, 0.3, -2], id="equal scores at the start"),
        pytest.param(np.eye(3), [0, 1, 1], [-2, 0.3, 0.3], id="tokens in another order"),
        pytest.param(MIRRORED, [1, 1, 0], [0.2, 0, 0], id="keys mirrored at p"),
    ],
)
def test_symmetric_path_is_unstable(keys, values, start, scale):
    """Of two tokens with the same value, the one with the higher score attracts more attention and wins.

    In the symmetric direction, deviations grow like e^(λ s), with a constant λ.
    """
    found = sensitivity(scale * np.asarray(keys), values, np.divide(start, scale), until_norm=1e3 / scale)
    assert found.unstable
    assert (found.deviation > 0.01).any()


def test_path_that_ends_at_a_saddle_is_unstable():
    """From p = 0, symmetry keeps the computed path on a line, on which it ends at ‖p‖ = 0.79."""
    keys, values = [[1, 2], [1, -2], [-3, 0], [0, 0]], [1, 1, -1, 2]
    data = [[1, 3], [0, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 3], [0, 1, 3]], [-1] * 6
    scores = ja.theory.Scores(padded(keys, VOCAB, DIM), corpus_of(*data), padded(values, VOCAB))
    on_the_line, off_it = (
        ja.dynamics.exact_flow(scores, padded(start, DIM), until_norm=1e3, points=POINTS)
        for start in ([0, 0], [0, 1e-12])
    )
    assert on_the_line.norm[-1] < 1
    assert off_it.norm[-1] > 999
    assert sensitivity(keys, values, [0, 0], data).unstable


@pytest.mark.parametrize(
    ("keys", "values", "start", "data"),
    [
        pytest.param(np.eye(3), [1, 1, 0], [0.1, 0, 0], ORDERED, id="one token ahead"),
        pytest.param(np.eye(3), [1, 1.01, 0], [0, 0, 0], ORDERED, id="values differ"),
        pytest.param([[1, 0, 0], [1, 0, 0], [0, 0, 1]], [1, 1, 0], [0, 0, 0], ORDERED, id="equal keys"),
        pytest.param(MIRRORED, [1, 1, 0], [0.2, 0.1, 0], ORDERED, id="keys mirrored, but not at p"),
        pytest.param(np.eye(3), [1, 0, 0], [0, 0, 0], ORDERED, id="tokens that both lose"),
        pytest.param(np.eye(4), [1, -1, 0.5, 0], [0, 0, 0, 0], CONTRADICTION, id="tie of opposite forces"),
    ],
)
def test_other_paths_are_stable(keys, values, start, data):
    found = sensitivity(keys, values, start, data)
    assert not found.unstable
    assert found.deviation.max() < 1e-5


def test_deviation_is_at_least_that_of_the_start_and_deterministic():
    found, again = (sensitivity(np.eye(3), [1, 0, -1], [1, 2, 3]).deviation for _ in range(2))
    np.testing.assert_array_equal(found, again)
    assert found.shape == (2,)
    assert (found > 0.9e-12).all()


def test_several_starts_are_rejected():
    with pytest.raises(ja.InputError, match="p: must be a vector"):
        sensitivity(np.eye(3), [1, 0, -1], np.zeros((2, 3)))
