import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxattn.probes import correlations
from jaxattn.results.binning import bin_means, bin_numbers, quantile_edges


def test_bins_equal_scipy_and_have_the_published_centers():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1.2, 1.2, 500), rng.standard_normal(500)
    means = bin_means(x, y, high=14 / 15)
    edges = np.linspace(-1, 14 / 15, 21)
    inside = (x >= -1) & (x <= 14 / 15)
    for name, statistic in (("mean", "mean"), ("sd", "std"), ("n", "count")):
        expected = scipy.stats.binned_statistic(x[inside], y[inside], statistic, bins=edges).statistic
        np.testing.assert_allclose(means[name], expected, rtol=1e-9)
    assert means["center"].iloc[[0, -1]].tolist() == pytest.approx([-0.9517, 0.885], abs=1e-4)


def test_bins_keep_their_ends_and_leave_out_the_rest():
    means = bin_means([-1, np.float32(14 / 15), 0.95, -1.01, np.nan], [1, 2, 3, 4, 5], high=14 / 15)
    assert means["n"].sum() == 2
    assert (means["mean"].iloc[0], means["mean"].iloc[-1]) == (1, 2)
    assert means["mean"].iloc[1:-1].isna().all()


def test_equal_bins_hold_both_ends_and_nothing_outside():
    x = np.array([-1.1, -1, -0.01, 0, 0.99, 1, np.float32(1) + 1e-7, 1.2, np.nan])
    assert bin_numbers(x, np.linspace(-1, 1, 5)).tolist() == [-1, 0, 1, 2, 3, 3, 3, -1, -1]


def test_equal_counts_share_points_evenly_and_keep_ties_together(rng):
    x = rng.normal(size=100)
    assert np.bincount(bin_numbers(x, quantile_edges(x, 5))).tolist() == [20] * 5
    x = np.array([0.0] * 50 + list(range(1, 11)))
    tied = bin_numbers(x, quantile_edges(x, 5))
    assert len(set(tied[:50])) == 1
    assert (tied >= 0).all()


def test_ratios_of_counts_on_an_edge_begin_the_next_bin_in_either_precision():
    """Of tokens with 20 occurrences every posterior difference k/10 is an edge of the bins."""
    tenths = np.arange(-10, 11)
    expected = np.minimum(tenths + 10, 19)
    for x in (
        tenths / 10,
        (tenths / 10).astype(np.float32),
        (tenths.astype(np.float32) - 1) / 10 + np.float32(0.1),
    ):
        assert bin_numbers(x, np.linspace(-1, 1, 21)).tolist() == expected.tolist()
        inside = correlations.bin_means(jnp.asarray(tenths, float), jnp.asarray(x), 20, -1.0, 1.0)
        assert inside.tolist() == [*range(-10, 9), 9.5]
    # Bins of α are as narrow as α is small.
    assert bin_numbers([1e-7, 2e-7, 3e-7], [-np.inf, 1.5e-7, 2.5e-7, np.inf]).tolist() == [0, 1, 2]
