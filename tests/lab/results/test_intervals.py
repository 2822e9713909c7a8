"""Intervals compared with SciPy and closed forms, and their coverage."""

import numpy as np
import pytest
from scipy import stats

from jaxattn.lab.results.intervals import (
    bca,
    clopper_pearson,
    geometric,
    jackknife,
    resamples,
    student_t,
)


def coverage(bounds, truth):
    return ((bounds[0] <= truth) & (truth <= bounds[1])).mean()


@pytest.mark.parametrize("n", range(3, 21))
def test_student_t_covers_normal_and_lognormal_means(rng, n):
    # The standard deviation over 20,000 repetitions is 0.0015.
    samples = rng.normal(1.5, 2.0, (20_000, n))
    assert coverage(student_t(samples), 1.5) == pytest.approx(0.95, abs=0.008)
    assert coverage(geometric(np.exp(samples)), np.exp(1.5)) == pytest.approx(0.95, abs=0.008)


@pytest.mark.parametrize("n", range(3, 21))
def test_clopper_pearson_covers_any_probability(n):
    bounds = clopper_pearson(np.arange(n + 1), n)
    for p in np.linspace(0.01, 0.99, 99):
        inside = (bounds[0] <= p) & (p <= bounds[1])
        assert stats.binom.pmf(np.arange(n + 1), n, p)[inside].sum() >= 0.95


@pytest.mark.parametrize("n", [1, 4, 64])
def test_clopper_pearson_matches_the_closed_form_for_all_or_no_hits(n):
    edge = 1 - 0.025 ** (1 / n)
    np.testing.assert_allclose(clopper_pearson(0, n), (0, edge), atol=1e-12)
    np.testing.assert_allclose(clopper_pearson(n, n), (1 - edge, 1), atol=1e-12)


@pytest.mark.parametrize(("k", "n"), [(1, 2), (3, 10), (63, 64)])
def test_clopper_pearson_matches_beta_quantiles(k, n):
    expected = stats.beta.ppf(0.025, k, n - k + 1), stats.beta.ppf(0.975, k + 1, n - k)
    np.testing.assert_allclose(clopper_pearson(k, n), expected, rtol=1e-10)


@pytest.mark.parametrize("unit", [1e-170, 1e-300, 1e160])
def test_student_t_does_not_underflow_or_overflow(unit):
    low, high = student_t(unit * np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(np.divide([low, high], unit), student_t([1.0, 2.0, 3.0]), rtol=1e-12)


def test_student_t_matches_scipy(rng):
    samples = rng.normal(size=9)
    expected = stats.t.interval(0.95, 8, samples.mean(), stats.sem(samples))
    np.testing.assert_allclose(student_t(samples), expected, rtol=1e-12)
    expected = stats.t.interval(0.8, 8, samples.mean(), stats.sem(samples))
    np.testing.assert_allclose(student_t(samples, confidence=0.8), expected, rtol=1e-12)


@pytest.mark.parametrize("samples", [[], [2.0], [1.0, 2.0, np.nan], [1.0, 1.0, 1.0], [0.1] * 7])
def test_interval_is_nan_if_the_error_cannot_be_estimated(samples):
    assert np.isnan(student_t(np.array(samples))).all()


def test_jackknife_interval_of_a_mean_is_the_student_t_interval(rng):
    samples = rng.exponential(size=7)
    left_out = [np.delete(samples, i).mean() for i in range(7)]
    np.testing.assert_allclose(jackknife(samples.mean(), left_out), student_t(samples), rtol=1e-12)
    assert np.isnan(jackknife(1.0, [1.0, 1.0, 1.0])).all()
    assert np.isnan(jackknife(1.0, [np.nan])).all()


@pytest.mark.parametrize("n", [3, 5, 10])
def test_jackknife_covers_the_true_value(rng, n):
    """The statistic is the Spearman correlation of seed means, and the truth its expectation for n seeds."""
    curves = np.linspace(0, 2, 12) + rng.normal(0, 1, (4000, n, 12))

    def rank(means):
        ranks = means.argsort(axis=-1).argsort(axis=-1) - 5.5
        return (ranks * (np.arange(12) - 5.5)).sum(axis=-1) / 143

    value = rank(curves.mean(axis=1))
    left_out = np.stack([rank(np.delete(curves, i, axis=1).mean(axis=1)) for i in range(n)])
    assert coverage(jackknife(value, left_out), value.mean()) >= 0.93


def test_accelerated_bootstrap_matches_scipy(rng):
    samples = rng.exponential(size=25)
    found = stats.bootstrap((samples,), np.mean, method="BCa", n_resamples=999, rng=np.random.default_rng(3))
    left_out = [np.delete(samples, i).mean() for i in range(25)]
    own = bca(samples.mean(), found.bootstrap_distribution, left_out)
    np.testing.assert_allclose(own, found.confidence_interval, rtol=1e-12)


def test_accelerated_bootstrap_contains_the_value_or_is_nan(rng):
    draws = rng.uniform(size=(500, 4))
    value = np.array([0.5, 0.98, 1.5, np.nan])
    low, high = bca(value, draws, rng.normal(size=(30, 4)))
    assert (low[:2] <= value[:2]).all()
    assert (value[:2] <= high[:2]).all()
    assert np.isnan([low[2:], high[2:]]).all()


def test_resamples_have_the_original_size(rng):
    weights = resamples(40, 500, rng)
    assert (weights.sum(axis=1) == 40).all()
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=5 / np.sqrt(500))
