"""Weighted correlations equal scipy's on points written out as often as they count."""

import numpy as np
import pytest
from scipy import stats

from jaxattn.results.binning import bin_numbers, quantile_edges
from jaxattn.results.correlations import Binned, correlations, pearson, spearman, weighted_ranks
from jaxattn.results.intervals import resamples


def equal_bins(x, low, high, bins):
    return Binned(x, bin_numbers(x, np.linspace(low, high, bins + 1)))


def equal_counts(x, bins):
    return Binned(x, bin_numbers(x, quantile_edges(x, bins)))


def written_out(x, weights):
    return np.repeat(x, weights.astype(int))


@pytest.fixture
def points(rng):
    """Points with ties, and weights that leave some out."""
    x = np.round(rng.normal(size=60), 1)
    y = np.round(x + rng.normal(size=60), 1)
    return x, y, resamples(60, 7, rng)


def test_correlations_of_tokens_equal_scipy(points):
    x, y, weights = points
    found = correlations(equal_bins(x, -1.0, 1.0, 6), y, weights)
    for k, w in enumerate(weights):
        copies = written_out(x, w), written_out(y, w)
        assert found[0, k] == pytest.approx(stats.pearsonr(*copies).statistic, abs=1e-13)
        assert found[1, k] == pytest.approx(stats.spearmanr(*copies).statistic, abs=1e-13)


def test_correlations_of_bins_equal_a_loop(points):
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


def test_ranks_are_those_of_the_copies(points):
    x, _, weights = points
    ranks = weighted_ranks(x, weights)
    for row, w in zip(ranks, weights, strict=True):
        np.testing.assert_allclose(written_out(row, w), stats.rankdata(written_out(x, w)), rtol=0, atol=1e-12)


def test_spearman_is_scipys_and_leaves_empty_bins_out(rng):
    rows, reference = rng.normal(size=(4, 20)), rng.normal(size=20)
    rows[1, 3] = np.nan
    expected = [stats.spearmanr(row, reference, nan_policy="omit").statistic for row in rows]
    np.testing.assert_allclose(spearman(rows, reference), expected, rtol=1e-12)
    assert np.isnan(spearman(np.ones((1, 20)), reference)).all()
    assert np.isnan(spearman(rows[:1, :2], reference[:2])).all()
    assert abs(spearman(rows[:1, :2], reference[:2], fewest=2)[0]) == pytest.approx(1)


def test_a_constant_side_has_no_correlation():
    assert np.isnan(pearson(np.full(9, 0.1), np.arange(9.0), np.ones((1, 9)))).all()
    assert np.isnan(
        correlations(equal_bins(np.full(9, 0.1), 0.0, 1.0, 3), np.arange(9.0), np.ones((1, 9)))
    ).all()


def test_the_spread_over_resamples_falls_with_the_root_of_the_number_of_points(rng):
    spread = []
    for size in (50, 800):
        x = rng.normal(size=size)
        y = x + rng.normal(size=size)
        spread.append(correlations(equal_counts(x, 5), y, resamples(size, 400, rng))[0].std())
    assert 2.5 < spread[0] / spread[1] < 6.5
