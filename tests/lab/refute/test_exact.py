"""Rational programs, compared with clarabel, NumPy and closed forms."""

from fractions import Fraction

import numpy as np
import pytest

from jaxattn.lab.refute import exact, flows


@pytest.mark.parametrize("seed", range(12))
def test_shortest_matches_clarabel(shortest, seed):
    rng = np.random.default_rng(seed)
    A = rng.integers(-4, 5, (5, 3)) + (seed % 3 != 0) * np.array([3, 0, 0])
    b = rng.integers(-1, 3, 5)
    found, expected = exact.shortest(exact.matrix(A), exact.vector(b)), shortest(A, b)
    assert (found is None) == (expected is None)
    batch = flows.shortest_batch(A[None], b[None])[0]
    if found is None:
        assert np.isnan(batch).all()
        return
    x, weights = np.array(found.x, float), np.array(found.multipliers, float)
    np.testing.assert_allclose(x, expected, atol=1e-6)
    np.testing.assert_allclose(batch, x, atol=1e-9)
    # The conditions of optimality hold exactly.
    assert exact.combine(found.multipliers, exact.matrix(A)) == found.x
    assert (weights >= 0).all()
    slack = exact.minus(exact.times(exact.matrix(A), found.x), exact.vector(b))
    assert min(slack) >= 0
    assert exact.dot(slack, found.multipliers) == 0


def test_infeasible_program_has_no_solution():
    rows = exact.matrix([[1, 2], [-1, -2]])
    assert exact.shortest(rows, exact.vector([1, 0])) is None
    assert np.isnan(flows.shortest_batch(np.array([[[1, 2], [-1, -2]]]), np.array([[1, 0]]))).all()


def test_solution_of_a_system_and_determinant_match_numpy(rng):
    A = rng.integers(-4, 5, (4, 4))
    b = rng.integers(-4, 5, 4)
    assert float(exact.determinant(exact.matrix(A))) == pytest.approx(np.linalg.det(A))
    found = exact.solve(exact.matrix(A), exact.vector(b))
    np.testing.assert_allclose(np.array(found, float), np.linalg.solve(A, b))
    assert exact.solve(exact.matrix([[1, 2], [2, 4]]), exact.vector([1, 2])) is None


@pytest.mark.parametrize("seed", range(8))
def test_semidefinite_matches_eigenvalues(seed):
    rng = np.random.default_rng(seed)
    R = rng.integers(-2, 3, (3, 2 if seed % 2 else 3))
    A = R @ R.T - (seed % 4 == 2) * np.eye(3, dtype=int)
    expected = np.linalg.eigvalsh(A).min() > -1e-9
    assert exact.is_positive_semidefinite(exact.matrix(A)) == expected


def test_hull_weights_reproduce_the_point_or_a_direction_separates_it():
    square = exact.matrix([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    for x in ([0, 0], [1, 0], [1, 1]):
        weights = exact.hull_weights(square, exact.vector(x))
        assert sum(weights) == 1
        assert min(weights) >= 0
        assert exact.combine(weights, square) == x
    assert exact.hull_weights(square, [Fraction(5, 4), Fraction(0)]) is None


def test_joint_directions_match_a_case_solved_by_hand():
    """For (1, 0)+ and (-2, 1)-, v_mm = (1, 0) has margin 2 on the second, and p_relax is orthogonal to it."""
    E = exact.matrix([[0, 0], [1, 0], [-2, 1]])
    head, hard, relaxed = exact.joint_directions(E, [[0, 1], [0, 2]], [1, -1], [1, 2])
    assert (head.x, hard.x, relaxed.x) == ([1, 0], [1, 3], [1, 2])
    assert exact.sine_squared(hard.x, relaxed.x) == Fraction(1, 50)
