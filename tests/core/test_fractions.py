"""Fractions of counts, compared with Python's exact fractions."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.fractions import bin_numbers, fraction, reaches, share, tied

COUNTS = [(k, n) for n in (3, 20, 41, 49, 60, 97) for k in range(n + 1)]


def test_compiled_fractions_are_correctly_rounded_for_one_and_for_many_seeds():
    """XLA divides by a constant or by a broadcast array by multiplying with a rounded reciprocal."""
    for n in (41, 49, 60):
        masks = jnp.arange(n) < jnp.arange(n + 1)[:, None]
        expected = np.array([np.float32(Fraction(k, n)) for k in range(n + 1)])
        np.testing.assert_array_equal(jax.jit(jax.vmap(share))(masks), expected)
        np.testing.assert_array_equal(jax.jit(lambda x: share(x, axis=1))(masks), expected)
        assert jax.jit(share)(masks[-1]) == 1
    classes = jnp.asarray(np.random.default_rng(0).integers(1, 100, (200, 3)), float)
    got = jax.jit(lambda x: fraction(x, x.sum(axis=1, keepdims=True)))(classes)
    rows = np.asarray(classes).astype(int).tolist()
    expected = [[np.float32(Fraction(x, sum(row))) for x in row] for row in rows]
    np.testing.assert_array_equal(got, np.array(expected))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fraction_reaches_decimal_levels_exactly_if_it_is_at_least_as_large(dtype):
    values = np.array([k / n for k, n in COUNTS], dtype).astype(float)
    for percent in range(1, 100):
        expected = [Fraction(k, n) >= Fraction(percent, 100) for k, n in COUNTS]
        assert reaches(values, percent / 100, dtype=dtype).tolist() == expected


def test_infinite_levels_and_nan_are_compared_as_usual():
    x = np.array([-np.inf, 0.0, np.inf, np.nan])
    assert reaches(x, np.inf).tolist() == [False, False, True, False]
    assert reaches(x, -np.inf).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("high", "bins"), [("1", 20), ("14/15", 20), ("1/3", 20), ("1", 1000)])
def test_bins_match_exact_fractions_on_the_host_and_compiled(high, bins):
    low, high = Fraction(-1), Fraction(high)
    each = sorted({Fraction(k, n) for n in (15, 20, 41, 60, 1000) for k in range(-n, n + 1)})
    x = np.array([np.float32(f) for f in each])
    at = [(f - low) * bins / (high - low) for f in each]
    expected = [min(int(a // 1), bins - 1) if 0 <= a <= bins else -1 for a in at]
    ends = float(low), float(high)
    assert bin_numbers(x.astype(float), np.linspace(*ends, bins + 1)).tolist() == expected
    edges = ends[0] + (ends[1] - ends[0]) * jnp.arange(bins + 1, dtype=float) / bins
    assert jax.jit(bin_numbers)(jnp.asarray(x), edges).tolist() == expected


def test_sums_of_frequencies_tie_if_they_are_equal_fractions(rng):
    terms = rng.integers(-3, 4, (400, 4))
    lengths = [3, 7, 9, 11]
    exact = [abs(sum(Fraction(int(t), n) for t, n in zip(row, lengths, strict=True))) / 100 for row in terms]
    orders = rng.permuted(np.tile(np.arange(4), (400, 1)), axis=1)
    sums = np.array([sum(terms[i, j] / lengths[j] / 100 for j in orders[i]) for i in range(400)])
    sums = np.where(np.array(exact) == 0, 0, sums)
    merged = tied(sums, "float64")
    np.testing.assert_allclose(merged, sums, rtol=0, atol=1e-15)
    ranks, expected = (np.unique(z, return_inverse=True)[1] for z in (np.abs(merged), np.array(exact)))
    assert ranks.tolist() == expected.tolist()
    assert len(np.unique(np.abs(sums))) > len(set(exact))
