import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.attention import bands


def exactly(x):
    """Convert floats exactly to integers, in a unit that divides every float32 of these tests."""
    return [int(float(value) * 2**80) for value in np.ravel(x)]


@pytest.mark.parametrize(
    "scores",
    [
        [3.3, -6400.0001, 0.1, -61, -60.7],
        [0.5, 2.0**31, 100.5, -(2.0**40), 1e6],
        [1e30, -1e30, 64, 1e-3, 0],
        [-7.123e5, -7.2e5, -7.1244e5],
        [0.0, -64, -128, -192.0001],
        [-1e-10, 0, 1e-12, -1e-9],
    ],
)
def test_each_ceiling_is_less_than_one_band_width_above_its_score(scores):
    scores = jnp.asarray(scores, jnp.float32)
    ceiling, below = map(np.asarray, jax.jit(bands.split)(scores))
    w, first = 64 * 2**80, exactly(bands.first_ceiling(scores))[0]
    for a, h in zip(exactly(scores), exactly(ceiling), strict=True):
        assert 0 <= h - a < w
        assert (first - h) % w == 0
    exact = np.exp(np.asarray(scores, np.float64) - ceiling)
    np.testing.assert_allclose(below, exact, rtol=3e-6)


@pytest.mark.parametrize("spread", [1.0, 100.0, 1e4, 1e7])
def test_ceilings_of_random_scores_match_the_definition(rng, spread):
    scores = jnp.asarray(spread * rng.normal(size=5_000), jnp.float32)
    ceiling, _ = jax.jit(bands.split)(scores)
    offset = {h % (64 * 2**80) for h in exactly(ceiling)}
    assert len(offset) == 1
    assert ceiling.max() == bands.first_ceiling(scores) >= scores.max()
    distance = np.asarray(ceiling, np.float64) - np.asarray(scores, np.float64)
    assert (distance >= 0).all()
    assert (distance < 64).all()


def test_factor_is_zero_beyond_the_second_band(x64):
    ceiling = jnp.asarray([7.0, 7 - 512, 7 - 1024])
    np.testing.assert_allclose(bands.factor(ceiling, jnp.asarray(7.0)), [1, np.exp(-512.0), 0], rtol=1e-15)


def test_band_count_is_capped_and_nan_counts_as_one_band(x64):
    scores = jnp.asarray([[0.0, 511], [0, 512], [0, 1023], [0, 1024], [0, 1e9], [0, jnp.nan]])
    np.testing.assert_array_equal(bands.count(scores, 2), [1, 2, 2, 3, 3, 1])


def test_division_is_differentiable_even_if_the_squared_divisor_underflows():
    small = jnp.float32(1e-27)
    value, slope = jax.jvp(bands.divide, (3 * small, small), (small, small))
    np.testing.assert_allclose([value, slope], [3, 1 - 3], rtol=1e-6)
