import numpy as np
import pytest
from scipy import stats

from jaxattn.results.intervals import clopper_pearson, percentile, resamples, student_t


@pytest.mark.parametrize("n", [1, 4, 64])
def test_clopper_pearson_for_none_and_for_all_in_closed_form(n):
    edge = 1 - 0.025 ** (1 / n)
    np.testing.assert_allclose(clopper_pearson(0, n), (0, edge), atol=1e-12)
    np.testing.assert_allclose(clopper_pearson(n, n), (1 - edge, 1), atol=1e-12)


@pytest.mark.parametrize(("k", "n"), [(1, 2), (3, 10), (63, 64)])
def test_clopper_pearson_is_made_of_beta_quantiles(k, n):
    expected = stats.beta.ppf(0.025, k, n - k + 1), stats.beta.ppf(0.975, k + 1, n - k)
    np.testing.assert_allclose(clopper_pearson(k, n), expected, rtol=1e-10)


def test_clopper_pearson_covers_whatever_the_probability():
    intervals = np.array([clopper_pearson(k, 20) for k in range(21)])
    for p in np.linspace(0.01, 0.99, 25):
        inside = (intervals[:, 0] <= p) & (p <= intervals[:, 1])
        assert stats.binom.pmf(np.arange(21), 20, p)[inside].sum() >= 0.95


def test_resamples_draw_as_many_points_as_there_are(rng):
    weights = resamples(40, 500, rng)
    assert (weights.sum(axis=1) == 40).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=5 / np.sqrt(500))


def test_student_t_is_scipys(rng):
    samples = rng.normal(size=9)
    expected = stats.t.interval(0.95, 8, samples.mean(), stats.sem(samples))
    np.testing.assert_allclose(student_t(samples), expected, rtol=1e-12)
    assert np.isnan(student_t(samples[:1])).all()
    assert np.isnan(student_t([1.0, 2.0, np.nan])).all()


def test_percentiles_are_those_of_the_finite_draws(rng):
    draws = rng.normal(size=(400, 3))
    draws[::7, 1] = np.inf
    draws[:, 2] = np.nan
    low, high = percentile(draws)
    np.testing.assert_allclose([low[0], high[0]], np.quantile(draws[:, 0], [0.025, 0.975]))
    finite = draws[np.isfinite(draws[:, 1]), 1]
    np.testing.assert_allclose([low[1], high[1]], np.quantile(finite, [0.025, 0.975]))
    assert np.isnan([low[2], high[2]]).all()
    np.testing.assert_allclose(percentile(draws[:, 0]), (low[0], high[0]))
