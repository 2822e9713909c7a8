"""JAX options of the environment change neither the numbers nor the programs of a study."""

from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import backend

HOSTILE = {
    "default_prng_impl": "rbg",
    "threefry_partitionable": False,
    "numpy_dtype_promotion": "strict",
    "numpy_rank_promotion": "raise",
    "legacy_prng_key": "error",
    "debug_nans": True,
    "transfer_guard": "disallow",
    "softmax_custom_jvp": True,
}


@pytest.fixture
def hostile():
    """JAX options that change random numbers, or that raise errors in correct programs."""
    before = jax.config.jax_random_seed_offset
    with ExitStack() as stack:
        for name, value in HOSTILE.items():
            stack.enter_context(getattr(jax, name)(value))
        jax.config.update("jax_random_seed_offset", 7)
        yield
        jax.config.update("jax_random_seed_offset", before)


def numbers():
    key = jax.random.fold_in(jax.random.key(3), 1)
    drawn = jax.random.normal(key, (5,)) + jax.random.gumbel(key, (2, 5))
    return np.asarray(drawn * jnp.arange(5) / jnp.zeros(()))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_user_jax_options_do_not_change_results(dtype, hostile):
    with ExitStack() as stack:
        for name in HOSTILE:
            stack.enter_context(getattr(jax, name)(backend.PINNED[f"jax_{name}"]))
        jax.config.update("jax_random_seed_offset", 0)
        stack.enter_context(jax.enable_x64(dtype == "float64"))
        expected = numbers()
    jax.config.update("jax_random_seed_offset", 7)
    with backend.precision(dtype):
        np.testing.assert_array_equal(numbers(), expected)
    assert expected.dtype == dtype


def test_user_jax_options_are_restored(hostile):
    with backend.pinned():
        assert jax.config.jax_default_prng_impl == "threefry2x32"
    assert jax.config.jax_default_prng_impl == "rbg"
    assert jax.config.jax_random_seed_offset == 7


def test_every_pinned_option_exists_in_jax():
    assert set(backend.PINNED) <= set(jax.config.values)
