import functools

import jax
import numpy as np
import pytest

from jaxattn.core import backend
from jaxattn.dynamics.flows.nearest_point import nearest_point

solve = jax.jit(nearest_point)


def nearest(rows):
    """Return multipliers and iterations, in float64."""
    with backend.float64():
        multipliers, iterations = solve(rows)
        return np.asarray(multipliers), int(iterations)


def gap(rows, multipliers):
    """Compute the relative duality gap from the multipliers alone."""
    assert (multipliers >= 0).all()
    w = multipliers @ rows
    lower, upper = (rows @ w).min() / np.linalg.norm(w), np.linalg.norm(w) / multipliers.sum()
    return 1 - (lower / upper) ** 2


@pytest.fixture(scope="module")
def answers():
    """Return a function that solves one of several problems in five dimensions, and returns both.

    Five have margins down to 0.03 of the longest row; one of them is repeated with every row three times; in
    five the rows surround zero.
    """
    rng = np.random.default_rng(1)
    problems = []
    for pairs, margin in ((1, 1.0), (3, 0.3), (7, 0.1), (40, 0.1), (40, 0.03)):
        rows = rng.normal(size=(pairs, 5))
        rows[:, 0] = margin * (1 + rng.exponential(size=pairs))
        problems.append(rows / np.linalg.norm(rows, axis=1).max())
    problems.append(np.vstack([problems[2]] * 3))
    problems += [rng.normal(size=(40, 5)) / 3 for _ in range(5)]
    return functools.cache(lambda number: (problems[number], nearest(problems[number])))


@pytest.mark.more
def test_multipliers_are_accurate_up_to_rounding(answers):
    for rows, (multipliers, iterations) in map(answers, range(6)):
        assert multipliers.shape == (len(rows),)
        assert gap(rows, multipliers) < 1e-12
        # Without the corrector, up to 17 iterations are needed.
        assert 1 <= iterations <= 14


@pytest.mark.more
def test_nearest_point_is_zero_if_the_hull_contains_zero(answers):
    for rows, (multipliers, _) in map(answers, range(6, 11)):
        assert (multipliers >= 0).all()
        assert np.linalg.norm(multipliers @ rows) < 1e-13 * multipliers.sum()


def test_multipliers_of_repeated_rows_add_up_to_that_of_a_single_row(answers):
    once, often = answers(2)[1][0], answers(5)[1][0].reshape(3, -1).sum(axis=0)
    np.testing.assert_allclose(often / often.sum(), once / once.sum(), atol=1e-8)


@pytest.mark.parametrize("seed", [177, 295, 438])
def test_unreliable_corrector_does_not_cycle(seed):
    """Most rows are far from the nearest point; the full corrector limits predictor steps to 0.1."""
    rows = np.random.default_rng(seed).normal(size=(6, 3)) / 3
    rows[:, 0] += 1
    rows = rows[[*range(6), *[5] * 18]] / np.linalg.norm(rows, axis=1).max()
    multipliers, iterations = nearest(rows)
    assert iterations < 20
    assert gap(rows, multipliers) < 1e-12


def test_nearest_point_on_a_segment_matches_the_closed_form(rng):
    """With two rows the solution is the nearest point of a segment; many are solved at once by vmap."""
    problems = np.abs(rng.normal(size=(70, 2, 2)))
    with backend.float64():
        found = np.asarray(jax.jit(jax.vmap(nearest_point))(problems)[0])
    for number, ((a, b), multipliers) in enumerate(zip(problems, found, strict=True)):
        share = np.clip(b @ (b - a) / ((a - b) @ (a - b)), 0, 1)
        got = multipliers / multipliers.sum()
        np.testing.assert_allclose(got, [share, 1 - share], atol=1e-10, err_msg=str(number))
