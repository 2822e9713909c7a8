import numpy as np
import pytest
from scipy import stats

from jaxattn.lab.results.fits import power_law, powers


def test_power_law_matches_polyfit():
    rng = np.random.default_rng(7)
    x = np.array([64, 128, 300, 1024.0])
    y = 3 * x[:, None] ** -0.5 * np.exp(0.1 * rng.standard_normal((4, 12)))
    law = power_law(x, y)
    slope, intercept = np.polyfit(np.repeat(np.log(x), 12), np.log(y).ravel(), 1)
    assert law.slope == pytest.approx(slope, rel=1e-12)
    assert law.intercept == pytest.approx(intercept, rel=1e-12)
    assert law.low < law.slope < law.high
    assert law.seeds == 12


def test_slope_interval_is_a_student_t_interval_over_seeds():
    rng = np.random.default_rng(8)
    x = np.array([1, 2, 4, 8.0])
    y = x[:, None] ** 1.5 * np.exp(0.2 * rng.standard_normal((4, 6)))
    law = power_law(x, y)
    slopes = [np.polyfit(np.log(x), np.log(y[:, s]), 1)[0] for s in range(6)]
    expected = stats.t.interval(0.95, 5, np.mean(slopes), stats.sem(slopes))
    np.testing.assert_allclose([law.low, law.high], expected, rtol=1e-9)


def test_power_law_accepts_different_x_for_each_seed():
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 100, (9, 4))
    y = 2 * x ** rng.normal(-1, 0.1, 4) * np.exp(0.1 * rng.normal(size=x.shape))
    x[0, 2] = x[5, 3] = np.nan
    slopes = [np.polyfit(*np.log([x[:, s], y[:, s]])[:, np.isfinite(x[:, s])], 1)[0] for s in range(4)]
    law = power_law(x, y)
    np.testing.assert_allclose(law.slope, np.mean(slopes))
    assert law.seeds == 4


def test_power_law_drops_incomplete_seeds():
    x, y = np.array([1, 10.0]), np.array([[1, 1, 1, 1], [10, 100, np.nan, 0.0]])
    law = power_law(x, y)
    assert law.seeds == 2
    assert law.slope == pytest.approx(1.5)


def test_power_law_is_nan_with_too_few_points():
    single = power_law([1, 10], [[2.0], [20.0]])
    assert single.slope == pytest.approx(1)
    assert np.isnan(single.low)
    assert np.isnan(power_law([5], [[2.0, 3.0]]).slope)
    assert np.isnan(power_law([1, 2], [[np.nan], [1.0]]).slope)


def test_powers_recovers_the_exponents_of_exact_power_laws():
    x = np.array([[1.0, 10.0, 100.0], [2.0, 3.0, 5.0], [1.0, 2.0, 3.0]])
    y = 7 * x ** np.array([[-2.0], [0.5], [1.0]])
    y[0, 1] = np.nan
    y[2, 1:] = np.nan
    np.testing.assert_allclose(powers(x, y), [-2.0, 0.5, np.nan], rtol=1e-12)
