"""Tied tokens whose keys nearly coincide exert a small force that must not be neglected."""

import mpmath
import numpy as np
import pytest
from dynamics.shapes import DIM, POINTS, VOCAB, corpus_of, padded

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


def flow(keys, values, sequences, labels, start=(0, 0, 0), until_norm=50.0):
    """Compute the flow of at most six tokens in three dimensions; all two-class problems share a program."""
    values, classes = np.asarray(values, float), np.shape(values)[1:]
    scores = ja.theory.Scores(
        padded(keys, VOCAB, DIM),
        corpus_of(sequences, labels, num_classes=classes[0] if classes else 2),
        padded(values, VOCAB, *classes),
    )
    path = ja.dynamics.exact_flow(scores, padded(start, DIM), until_norm=until_norm, points=POINTS)
    np.testing.assert_array_equal(path.p[:, 3:], 0)
    return path, path.p[:, :3]


@pytest.mark.parametrize(
    ("problem", "apart"), [(WITH_A_THIRD, 1e-14), (WITH_A_THIRD, 1e-13), (WITH_A_FOURTH, 1e-15)]
)
def test_path_follows_the_force_if_tied_keys_nearly_coincide(problem, apart):
    keys, values, sequences, labels = problem
    keys = np.array(keys, float)
    keys[1] = keys[0] + apart * np.array([3, -2, 4])
    path, points = flow(keys, values, sequences, labels)
    assert path.norm[-1] > 8
    for p, chord in zip(points, np.diff(points, axis=0), strict=False):
        if np.linalg.norm(chord) > 1e-9:
            force = direction(keys, values, sequences, labels, p)
            assert force @ chord > 0.8 * np.linalg.norm(chord)


# The flow of three classes is a program of its own.
@pytest.mark.more
@pytest.mark.parametrize(("apart", "stop"), [(0.0, "balanced"), (1e-15, "unresolved"), (1e-12, "unresolved")])
def test_point_is_no_balance_if_tied_keys_nearly_coincide(apart, stop):
    """Values of tokens 0 and 1 differ by 1e-7, so a small force moves p along the difference of keys."""
    keys = np.array([[2.5, 0.3, 1.2], [0, 0, 0], [-0.1, -1.6, 1.3], [-1.0, 1.6, -0.1]])
    keys[1] = keys[0] + apart * np.array([-1.0, -0.8, -0.5])
    values = np.array([[2.3, 0.5, 3.0], [2.3, 0.5, 3.0], [-1.9, 0.4, -1.3], [-1.3, 0.9, -0.6]])
    values[1] += 1e-7
    values[1, 0] += 1e-7
    sequences = [[0, 1, 2, 3]] * 3 + [[0, 1, 3]] * 3
    path, _ = flow(keys, values, sequences, [2, 1, 1, 0, 1, 0], [0.07, -0.05, 0.09])
    assert path.stop == stop


@pytest.mark.more
@pytest.mark.parametrize("apart", [(1e-12, 1e-14), (1e-9, 1e-11)])
def test_a_force_without_derivative_is_no_balance(apart):
    """Between tokens 0 and 1, which have equal scores, the force is largest, so its derivative is zero."""
    keys = np.array([[0.6, 0.6, 1.7], [0, 0, 0], [2.2, -0.9, 0.8], [0.2, 0.7, 0.1], [-1.0, -0.2, -1.6]])
    values = np.array([[-1.2, 2.4, 2], [0, 0, 0], [1, 2.5, 1], [-1.1, -0.9, 1.6], [1.7, 2.8, -1.6]])
    keys[1] = keys[0] + apart[0] * np.array([-0.4, 0.6, 1.3])
    values[1] = values[0] + apart[1] * np.array([-1.4, 0.6, -1.8])
    sequences, labels = [[0, 1, 3, 4], [0, 1, 2, 4]], [1, 2]
    # Each sequence is there three times, which changes no mean.
    path, points = flow(keys, values, 3 * sequences, 3 * labels, [-0.16, -0.27, -0.11], until_norm=60.0)
    assert path.norm[-1] > 8
    for p, chord in zip(points, np.diff(points, axis=0), strict=False):
        if np.linalg.norm(chord) > 1e-9:
            force = direction_of_classes(keys, values, sequences, labels, p)
            assert force @ chord > 0.8 * np.linalg.norm(chord)


@pytest.mark.parametrize("apart", [1e-11, 1e-10, 1e-9])
def test_path_does_not_jump_to_a_balance_that_is_far_away(apart):
    """The forces on tokens 0 and 1 balance at a_1 - a_0 = 0.008, but their keys nearly coincide."""
    keys = np.array([[0.0, 0.0, 1.0], [apart, 0.0, 1.0], [0.0, 1.0, 0.0]])
    values = np.array([1.0, -np.exp(-0.008), -3.0])
    path, _ = flow(keys, values, [[0, 1], [0, 1], [0, 2]], [1, -1, 1])
    assert path.norm[-1] < 51
