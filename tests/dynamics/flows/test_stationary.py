"""The point at which the forces on tied tokens balance, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics.flows.stationary import stationary_point

pytestmark = pytest.mark.usefixtures("x64")
E = jnp.array([[1.0], [-1.0]])


def solve(values, p=0.8):
    """Two positive sequences and a negative one of the same two tokens, with scores p and -p."""
    corpus = ja.data.from_sequences([[0, 1]] * 3, labels=[1, 1, -1], vocab_size=2)
    leader, attended = np.zeros(2, np.int32), corpus.bags.count > 0
    return jax.jit(stationary_point)(
        E, np.array([p]), np.array(values), corpus, np.ones((1, 1)), np.zeros(2), attended, leader
    )


def test_newton_finds_the_balance_of_both_labels():
    # f = tanh p, and 2 log(1 + e^-f) + log(1 + e^f) is smallest at f = log 2.
    found = solve([1.0, -1.0])
    np.testing.assert_allclose(found.p, [np.arctanh(np.log(2))], rtol=1e-14)
    np.testing.assert_allclose(found.scores, np.arctanh(np.log(2)) * np.array([1, -1]), rtol=1e-14)
    np.testing.assert_allclose(found.moved, 2 * abs(np.arctanh(np.log(2)) - 0.8), rtol=1e-12)
    curvature = 2 / 9 * (1 - np.log(2) ** 2) ** 2
    np.testing.assert_allclose(found.inverse, [[1 / curvature]], rtol=1e-12)
    assert not found.pulled
    assert found.loose.tolist() == [False, False]


def test_direction_without_a_force_is_free():
    found = solve([1.0, 1.0])
    np.testing.assert_array_equal(found.p, [0.8])
    assert found.loose.tolist() == [False, True]
    assert not found.pulled
    np.testing.assert_array_equal(found.normals, [[0.0]])
