"""Powers of two, compared with math.frexp."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.arithmetic import power_of_two

TINY, HUGE = 2.0**-1022, 2.0**1022
NUMBERS = [1.0, -3.0, 0.1, 2.0**200, -(2.0**-200), math.nextafter(4, 0), TINY, HUGE, 5e-324, 1.7e308]


def by_frexp(x):
    if x == 0 or not math.isfinite(x):
        return 1.0
    return min(max(math.ldexp(0.5, math.frexp(x)[1]), TINY), HUGE)


@pytest.mark.parametrize("way", ["numpy", "jax", "jit", "vmap"])
def test_powers_match_frexp(way):
    x = np.array([*NUMBERS, 0.0, -0.0, math.inf, -math.inf, math.nan])
    ways = {
        "numpy": power_of_two,
        "jax": lambda x: power_of_two(jnp.asarray(x)),
        "jit": jax.jit(power_of_two),
        "vmap": jax.vmap(power_of_two),
    }
    with jax.enable_x64(True):
        found = ways[way](jnp.asarray(x) if way == "vmap" else x)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(np.asarray(found), [by_frexp(each) for each in x])
        assert np.isfinite(1 / np.asarray(found)).all()


def test_precision_and_kind_of_the_input_are_kept():
    single = power_of_two(np.array([3e-38, 6.0, 3e38], np.float32))
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, np.float32([2.0**-125, 4, 2.0**126]))
    assert power_of_two(5) == 4.0
    assert isinstance(power_of_two(jnp.ones(3)), jax.Array)


def test_the_derivative_of_the_scale_is_zero():
    """x / power · power is x, so its derivative is 1 although the power depends on x."""

    def same(x):
        return x / power_of_two(x) * power_of_two(x)

    assert jax.grad(same)(3.0) == 1.0
