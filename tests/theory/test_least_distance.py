import numpy as np
import pytest

from jaxattn.theory.certificate import bounds
from jaxattn.theory.least_distance import least_distance, polish


def random_rows(rng, margin):
    rows = rng.normal(size=(60, 6))
    rows[:, 0] = margin * (1 + rng.exponential(size=60))
    return rows / np.linalg.norm(rows, axis=1).max()


@pytest.mark.parametrize("margin", [1.0, 1e-2, 1e-4])
def test_the_conditions_of_optimality_hold_to_rounding(rng, margin):
    """p = Aᵀ λ, λ ≥ 0, A p ≥ 1 with equality where λ > 0, up to the rounding of Aᵀ λ: ε Σ λ = ε / margin²."""
    rows = random_rows(rng, margin)
    multipliers, support = least_distance(rows)
    assert (multipliers >= 0).all()
    assert support == (multipliers > 0).sum() <= 6
    w = multipliers @ rows
    products = rows @ w / (w @ w / multipliers.sum())
    rounding = 1e-14 / margin**2
    assert products.min() > 1 - rounding
    np.testing.assert_allclose(products[multipliers > 0], 1, rtol=rounding)


def test_rows_that_nothing_separates_sum_to_zero_with_the_multipliers(rng):
    rows = random_rows(rng, 0.0)
    multipliers, _ = least_distance(rows)
    assert (multipliers >= 0).all()
    assert np.linalg.norm(multipliers @ rows) < 1e-14 * multipliers.sum()


def test_a_difference_of_zero_is_the_whole_proof(rng):
    rows = random_rows(rng, 1.0)
    rows[17] = 0
    np.testing.assert_array_equal(least_distance(rows).multipliers, np.arange(60) == 17)


def test_one_row():
    multipliers, support = least_distance(np.array([[0.6, 0.8]]))
    assert multipliers[0] > 0
    assert support == 1


def gap(rows, multipliers):
    lower, upper = bounds(rows, multipliers)
    return 1 - (lower / upper) ** 2 if lower > 0 else 1.0


@pytest.fixture
def problem(rng):
    """Differences with a margin, and their exact multipliers."""
    rows = rng.normal(size=(30, 5))
    rows[:, 0] = 0.3 * (1 + rng.exponential(size=30))
    rows /= np.linalg.norm(rows, axis=1).max()
    return rows, least_distance(rows).multipliers


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_approximate_multipliers_become_exact_once_the_support_is_known(problem, rng, scale):
    rows, exact = problem
    rough = scale * exact * (1 + 0.01 * rng.normal(size=30))
    assert gap(rows, rough) > 1e-7
    polished = polish(rows, rough, exact > 0)
    assert gap(rows, polished) < 1e-13
    np.testing.assert_allclose(polished / polished.sum(), exact / exact.sum(), atol=1e-13)
    # The scale is that of the shortest p with A p = 1 on the support.
    np.testing.assert_allclose((rows @ (polished @ rows))[exact > 0], 1, rtol=1e-12)


def test_where_multipliers_are_not_unique_it_keeps_to_those_it_was_given():
    """Four rows are tight at p = (1, 0, 0), and a rectangle has its centre in more than one way."""
    rows = np.array([[1.0, y, z] for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
    given = np.array([0.4, 0.1, 0.1, 0.4])
    np.testing.assert_allclose(polish(rows, given, np.ones(4, bool)), given, atol=1e-15)
    given = np.array([0.4, 0.12, 0.1, 0.4])
    polished = polish(rows, given, np.ones(4, bool))
    np.testing.assert_allclose(polished @ rows, [1, 0, 0], atol=1e-15)
    np.testing.assert_allclose(polished, given, atol=0.02)
    np.testing.assert_allclose(polish(rows, 1e-3 * given, np.ones(4, bool)), polished, atol=1e-15)


def test_a_wrong_support_never_makes_it_worse(problem, rng):
    rows, exact = problem
    rough = exact * (1 + 1e-4 * rng.normal(size=30))
    before = gap(rows, rough)
    assert 0 < before < 1
    for _ in range(50):
        polished = polish(rows, rough, rng.uniform(size=30) < 0.2)
        assert (polished >= 0).all()
        assert gap(rows, polished) <= before


def test_nothing_tight_or_tight_rows_of_zero_leave_the_multipliers_as_they_are(problem):
    rows, exact = problem
    assert polish(rows, exact, np.zeros(30, bool)) is exact
    rows = np.where(np.arange(30)[:, None] == 3, 0.0, rows)
    assert polish(rows, exact, np.arange(30) == 3) is exact
