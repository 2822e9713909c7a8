import numpy as np
import pytest

from jaxattn.theory.least_distance import least_distance


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
