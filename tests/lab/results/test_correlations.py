"""Weighted correlations equal SciPy's on repeated points."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy import stats

from jaxattn.core.fractions import bin_numbers
from jaxattn.lab.probes import importance as compiled
from jaxattn.lab.results.correlations import (
    Binned,
    bin_means,
    correlations,
    pearson,
    quantile_bins,
    quantile_edges,
    spearman,
    weighted_ranks,
)
from jaxattn.lab.results.intervals import resamples


def test_bin_means_match_scipy_and_published_centres():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1.2, 1.2, 500), rng.standard_normal(500)
    means = bin_means(x, y, high=14 / 15)
    edges = np.linspace(-1, 14 / 15, 21)
    inside = (x >= -1) & (x <= 14 / 15)
    for name, statistic in (("mean", "mean"), ("sd", "std"), ("n", "count")):
        expected = scipy.stats.binned_statistic(x[inside], y[inside], statistic, bins=edges).statistic
        np.testing.assert_allclose(means[name], expected, rtol=1e-9)
    assert means["center"].iloc[[0, -1]].tolist() == pytest.approx([-0.9517, 0.885], abs=1e-4)


def test_bins_include_both_ends_and_drop_points_out_of_range():
    means = bin_means([-1, np.float32(14 / 15), 0.95, -1.01, np.nan], [1, 2, 3, 4, 5], high=14 / 15)
    assert means["n"].sum() == 2
    assert (means["mean"].iloc[0], means["mean"].iloc[-1]) == (1, 2)
    assert means["mean"].iloc[1:-1].isna().all()


def test_points_outside_the_bin_range_have_no_bin():
    x = np.array([-1.1, -1, -0.01, 0, 0.99, 1, np.float32(1) + 1e-7, 1.2, np.nan])
    assert bin_numbers(x, np.linspace(-1, 1, 5)).tolist() == [-1, 0, 1, 2, 3, 3, 3, -1, -1]


def test_quantile_bins_have_equal_counts_and_do_not_split_ties(rng):
    x = rng.normal(size=100)
    assert np.bincount(quantile_bins(x, quantile_edges(x, 5))).tolist() == [20] * 5
    x = np.array([0.0] * 50 + list(range(1, 11)))
    tied = quantile_bins(x, quantile_edges(x, 5))
    assert len(set(tied[:50])) == 1
    assert (tied >= 0).all()


def test_point_on_an_edge_is_in_the_upper_bin_in_both_precisions():
    """For tokens with 20 occurrences every posterior difference k/10 is a bin edge."""
    tenths = np.arange(-10, 11)
    expected = np.minimum(tenths + 10, 19)
    for x in (
        tenths / 10,
        (tenths / 10).astype(np.float32),
        (tenths.astype(np.float32) - 1) / 10 + np.float32(0.1),
    ):
        assert bin_numbers(x, np.linspace(-1, 1, 21)).tolist() == expected.tolist()
        inside = compiled.bin_means_array(jnp.asarray(tenths, float), jnp.asarray(x), 20, -1.0, 1.0)
        assert inside.tolist() == [*range(-10, 9), 9.5]
    # The width of bins of α scales with α.
    edges = np.array([-np.inf, 1.5e-7, 2.5e-7, 1.0, np.inf])
    assert quantile_bins(np.array([1e-7, 2e-7, 3e-7]), edges).tolist() == [0, 1, 2]


def equal_bins(x, low, high, bins):
    return Binned(x, bin_numbers(x, np.linspace(low, high, bins + 1)))


def equal_counts(x, bins):
    return Binned(x, quantile_bins(x, quantile_edges(x, bins)))


def written_out(x, weights):
    return np.repeat(x, weights.astype(int))


@pytest.fixture
def points(rng):
    """Sample points with ties, and weights that may be zero."""
    x = np.round(rng.normal(size=60), 1)
    y = np.round(x + rng.normal(size=60), 1)
    return x, y, resamples(60, 7, rng)


def test_token_correlations_match_scipy(points):
    x, y, weights = points
    found = correlations(equal_bins(x, -1.0, 1.0, 6), y, weights)
    for k, w in enumerate(weights):
        copies = written_out(x, w), written_out(y, w)
        assert found[0, k] == pytest.approx(stats.pearsonr(*copies).statistic, abs=1e-13)
        assert found[1, k] == pytest.approx(stats.spearmanr(*copies).statistic, abs=1e-13)


def test_bin_correlations_match_a_loop(points):
    x, y, weights = points
    axis = equal_bins(x, -1.0, 1.0, 25)
    found = correlations(axis, y, weights)
    empty = [w[axis.bins == b].sum() == 0 for w in weights for b in range(25)]
    assert any(empty)
    for k, w in enumerate(weights):
        bins = [b for b in range(25) if w[axis.bins == b].sum()]
        means = [[np.average(z[axis.bins == b], weights=w[axis.bins == b]) for b in bins] for z in (x, y)]
        assert found[2, k] == pytest.approx(stats.pearsonr(*means).statistic, abs=1e-12)
        assert found[3, k] == pytest.approx(stats.spearmanr(*means).statistic, abs=1e-12)


def test_weighted_ranks_match_the_ranks_of_repeated_points(points):
    x, _, weights = points
    ranks = weighted_ranks(x, weights)
    for row, w in zip(ranks, weights, strict=True):
        np.testing.assert_allclose(written_out(row, w), stats.rankdata(written_out(x, w)), rtol=0, atol=1e-12)


def test_spearman_matches_scipy_and_omits_empty_bins(rng):
    rows, reference = rng.normal(size=(4, 20)), rng.normal(size=20)
    rows[1, 3] = np.nan
    expected = [stats.spearmanr(row, reference, nan_policy="omit").statistic for row in rows]
    np.testing.assert_allclose(spearman(rows, reference), expected, rtol=1e-12)
    assert np.isnan(spearman(np.ones((1, 20)), reference)).all()
    assert np.isnan(spearman(rows[:1, :2], reference[:2])).all()
    assert abs(spearman(rows[:1, :2], reference[:2], fewest=2)[0]) == pytest.approx(1)


def test_constant_variable_has_no_correlation():
    assert np.isnan(pearson(np.full(9, 0.1), np.arange(9.0), np.ones((1, 9)))).all()
    assert np.isnan(
        correlations(equal_bins(np.full(9, 0.1), 0.0, 1.0, 3), np.arange(9.0), np.ones((1, 9)))
    ).all()


def test_bootstrap_spread_scales_like_inverse_square_root_of_points(rng):
    spread = []
    for size in (50, 800):
        x = rng.normal(size=size)
        y = x + rng.normal(size=size)
        spread.append(correlations(equal_counts(x, 5), y, resamples(size, 400, rng))[0].std())
    assert 2.5 < spread[0] / spread[1] < 6.5
