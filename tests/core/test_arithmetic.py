import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.core.arithmetic import nonzero, sum_of_outer_products


def test_sum_of_outer_products_matches_numpy(rng):
    left, right = rng.normal(size=(3, 7, 4)), rng.normal(size=(3, 7, 5))
    wanted = np.stack(
        [sum(np.outer(x, y) for x, y in zip(*each, strict=True)) for each in zip(left, right, strict=True)]
    )
    with jax.enable_x64(True):
        lifted = jax.jit(jax.vmap(sum_of_outer_products))(left, right)
        alone = sum_of_outer_products(left[0], right[0])
    np.testing.assert_allclose(lifted, wanted, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(alone, wanted[0], rtol=1e-12, atol=1e-14)


def test_nonzero_replaces_only_zeros():
    np.testing.assert_array_equal(nonzero(jnp.array([0.0, -0.0, 2.0, -3.0])), [1.0, 1.0, 2.0, -3.0])
