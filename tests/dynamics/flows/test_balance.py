"""Tied tokens whose keys nearly coincide exert a small force that must not be neglected."""

import mpmath
import numpy as np
import pytest

import jaxattn as ja

pytestmark = pytest.mark.usefixtures("x64")

# Keys, values, sequences and labels. Token 1 has the key of token 0, up to 1e-15 to 1e-13.
WITH_A_THIRD = (
    [[0.7, -0.2, -1.4], [0, 0, 0], [1.9, 1.1, -1.4], [0.4, 1.2, -0.9], [0, 0, 0], [0, 0, 0]],
    [-1.1, 0.3, 1.7, 1.3, 0.0, 0.0],
    [[2, 3], [0, 1, 2, 3], [0, 1], [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]],
    [-1, 1, -1, 1, -1, 1],
)
WITH_A_FOURTH = (
    [[0, -0.2, 1.1], [0, 0, 0], [-1.2, 0.9, 0], [-1.2, -1.2, -1.5], [-0.4, 2.1, 0.8], [-0.7, -0.7, 0.5]],
    [-0.6, -1.7, 0.4, -0.7, 1.5, 1.1],
    [[0, 1, 4, 5], [0, 1, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 4], [2]],
    [-1, 1, 1, -1, -1, 1],
)


def direction(keys, values, sequences, labels, p):
    """Compute the direction of -∂L/∂p by the plain formula, with 60 digits."""
    with mpmath.workdps(60):
        number = np.vectorize(lambda x: mpmath.mpf(float(x)), otypes=[object])
        keys, values, p = number(keys), number(values), number(p)
        total = 0 * p
        for tokens, label in zip(sequences, labels, strict=True):
            q = softmax(keys[tokens] @ p)
            f = q @ values[tokens]
            total += label / (1 + mpmath.exp(label * f)) * ((q * (values[tokens] - f)) @ keys[tokens])
        return (total / mpmath.sqrt(total @ total)).astype(float)


def direction_of_classes(keys, values, sequences, labels, p):
    """Compute the direction of -∂L/∂p for K classes by the plain formula, with 60 digits."""
    with mpmath.workdps(60):
        number = np.vectorize(lambda x: mpmath.mpf(float(x)), otypes=[object])
        keys, values, p = number(keys), number(values), number(p)
        total = 0 * p
        for tokens, label in zip(sequences, labels, strict=True):
            q = softmax(keys[tokens] @ p)
            f = q @ values[tokens]
            residual = (np.arange(len(f)) == label) - softmax(f)
            total += (q * ((values[tokens] - f) @ residual)) @ keys[tokens]
        return (total / mpmath.sqrt(total @ total)).astype(float)


def softmax(scores):
    q = np.array([mpmath.exp(x) for x in scores - max(scores)])
    return q / q.sum()


@pytest.mark.parametrize(
    ("problem", "apart"), [(WITH_A_THIRD, 1e-14), (WITH_A_THIRD, 1e-13), (WITH_A_FOURTH, 1e-15)]
)
def test_path_follows_the_force_if_tied_keys_nearly_coincide(problem, apart):
    keys, values, sequences, labels = problem
    keys = np.array(keys, float)
    keys[1] = keys[0] + apart * np.array([3, -2, 4])
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=6)
    path = ja.dynamics.exact_flow(
        ja.theory.Scores(keys, corpus, np.array(values)), np.zeros(3), until_norm=50.0, points=30
    )
    assert path.norm[-1] > 8
    for p, chord in zip(path.p, np.diff(path.p, axis=0), strict=False):
        if np.linalg.norm(chord) > 1e-9:
            force = direction(keys, values, sequences, labels, p)
            assert force @ chord > 0.8 * np.linalg.norm(chord)


@pytest.mark.parametrize(("apart", "stop"), [(0.0, "balanced"), (1e-15, "unresolved"), (1e-12, "unresolved")])
def test_point_is_no_balance_if_tied_keys_nearly_coincide(apart, stop):
    """Values of tokens 0 and 1 differ by 1e-7, so a small force moves p along the difference of keys."""
    keys = np.array([[2.5, 0.3, 1.2], [0, 0, 0], [-0.1, -1.6, 1.3], [-1.0, 1.6, -0.1]])
    keys[1] = keys[0] + apart * np.array([-1.0, -0.8, -0.5])
    values = np.array([[2.3, 0.5, 3.0], [2.3, 0.5, 3.0], [-1.9, 0.4, -1.3], [-1.3, 0.9, -0.6]])
    values[1] += 1e-7
    values[1, 0] += 1e-7
    sequences = [[0, 1, 2, 3]] * 3 + [[0, 1, 3]] * 3
    corpus = ja.data.from_sequences(sequences, [2, 1, 1, 0, 1, 0], vocab_size=4, num_classes=3)
    path = ja.dynamics.exact_flow(
        ja.theory.Scores(keys, corpus, values), np.array([0.07, -0.05, 0.09]), until_norm=50.0
    )
    assert path.stop == stop


@pytest.mark.parametrize("apart", [(1e-12, 1e-14), (1e-9, 1e-11)])
def test_a_force_without_derivative_is_no_balance(apart):
    """Between tokens 0 and 1, which have equal scores, the force is largest, so its derivative is zero."""
    keys = np.array([[0.6, 0.6, 1.7], [0, 0, 0], [2.2, -0.9, 0.8], [0.2, 0.7, 0.1], [-1.0, -0.2, -1.6]])
    values = np.array([[-1.2, 2.4, 2], [0, 0, 0], [1, 2.5, 1], [-1.1, -0.9, 1.6], [1.7, 2.8, -1.6]])
    keys[1] = keys[0] + apart[0] * np.array([-0.4, 0.6, 1.3])
    values[1] = values[0] + apart[1] * np.array([-1.4, 0.6, -1.8])
    sequences, labels = [[0, 1, 3, 4], [0, 1, 2, 4]], [1, 2]
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=5, num_classes=3)
    start = np.array([-0.16, -0.27, -0.11])
    path = ja.dynamics.exact_flow(ja.theory.Scores(keys, corpus, values), start, until_norm=60.0, points=40)
    assert path.norm[-1] > 8
    for p, chord in zip(path.p, np.diff(path.p, axis=0), strict=False):
        if np.linalg.norm(chord) > 1e-9:
            force = direction_of_classes(keys, values, sequences, labels, p)
            assert force @ chord > 0.8 * np.linalg.norm(chord)


@pytest.mark.parametrize("apart", [1e-11, 1e-10, 1e-9])
def test_path_does_not_jump_to_a_balance_that_is_far_away(apart):
    """The forces on tokens 0 and 1 balance at a_1 - a_0 = 0.008, but their keys nearly coincide."""
    keys = np.array([[0.0, 0.0, 1.0], [apart, 0.0, 1.0], [0.0, 1.0, 0.0]])
    values = np.array([1.0, -np.exp(-0.008), -3.0])
    corpus = ja.data.from_sequences([[0, 1], [0, 1], [0, 2]], [1, -1, 1], vocab_size=3)
    path = ja.dynamics.exact_flow(ja.theory.Scores(keys, corpus, values), np.zeros(3), until_norm=50.0)
    assert path.norm[-1] < 51
