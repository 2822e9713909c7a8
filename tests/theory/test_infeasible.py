"""Proofs of infeasibility: sums that are exactly zero are distinguished from small ones."""

from fractions import Fraction

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import Status
from jaxattn.theory.infeasible import _solve_integers, proves_infeasible

NO_TIES = np.zeros((0, 2), int), np.zeros(0)


def solve(rows):
    """Build the max-margin problem p·row ≥ 1 for all rows: every row is a token, and one token is 0."""
    n = len(rows)
    corpus = ja.data.from_sequences([[k, n] for k in range(n)], [1] * n, vocab_size=n + 1)
    E = np.concatenate([rows, np.zeros((1, rows.shape[1]))])
    return ja.theory.max_margin(
        ja.theory.Scores(E, corpus), ja.theory.selection_from_tokens(np.arange(n + 1) < n, corpus)
    )


@pytest.mark.parametrize("tilt", [1e-15, 1e-17, 1e-30, 1e-100])
@pytest.mark.parametrize("dim", [2, 5])
def test_barely_separable_problem_is_not_infeasible(tilt, dim):
    """Opposite rows with a common component `tilt`, which p = (0, 1/tilt, 0 ...) separates."""
    rows = np.zeros((2, dim))
    rows[:, 0], rows[:, 1] = [3, -3], tilt
    assert [Fraction(x) / Fraction(tilt) for x in rows[:, 1]] == [1, 1]
    assert not solve(rows).infeasible


@pytest.mark.parametrize("dim", [2, 5, 40])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_rows_whose_convex_hull_contains_zero_are_infeasible(rng, dim, scale):
    rows = scale * rng.normal(size=(3 * dim + 2, dim))
    rows = np.concatenate([rows, -rows.sum(axis=0, keepdims=True)])
    assert solve(rows).status == Status.INFEASIBLE


def test_opposite_rows_of_any_norm_are_infeasible(rng):
    row = rng.normal(size=7)
    solution = solve(np.stack([row, -0.25 * row, rng.normal(size=7)]))
    assert solution.status == Status.INFEASIBLE


def test_keys_whose_squares_overflow_or_underflow_are_invalid():
    for scale in (1e200, 1e-200):
        solution = solve(scale * np.eye(3))
        assert solution.status == Status.INVALID
        assert "rescale" in solution.reason


def test_multipliers_with_the_wrong_sign_do_not_prove_infeasibility():
    """Two equal rows have (1, -1) as the only multipliers with a sum of zero."""
    E, pairs = np.array([[1.0, 2], [1, 2], [0, 0]]), np.array([[0, 2], [1, 2]])
    assert not proves_infeasible(E, pairs, NO_TIES[0], np.array([1.0, 1.0]), NO_TIES[1])
    assert proves_infeasible(E, pairs[:1], np.array([[1, 2]]), np.array([1.0]), np.array([-1.0]))


def test_linear_systems_are_solved_exactly(rng):
    for size in (1, 2, 5, 12):
        a = [[Fraction(float(x)) for x in row] for row in rng.normal(size=(size, size))]
        x = [Fraction(int(n), 7) for n in rng.integers(-9, 9, size=size)]
        b = [sum(p * q for p, q in zip(row, x, strict=True)) for row in a]
        assert _solve_integers([[*row, right] for row, right in zip(a, b, strict=True)]) == x
    # A system whose first pivot is zero, and a singular one.
    one, zero = Fraction(1), Fraction(0)
    assert _solve_integers([[zero, one, one], [one, zero, zero]]) == [zero, one]
    assert _solve_integers([[one, one, one], [one, one, zero]]) is None
