import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.attention import gram


@pytest.mark.parametrize("size", [1, 7, 8, 16, 50])
@pytest.mark.parametrize("limit", [1, 100])
def test_parts_make_the_whole_product_and_its_derivative(rng, x64, monkeypatch, size, limit):
    monkeypatch.setattr(gram, "LARGE", limit)
    E, weight = jnp.asarray(rng.normal(size=(size, 5))), jnp.asarray(rng.normal(size=(size, size)))
    np.testing.assert_allclose(gram.gram_matrix(E), E @ E.T, rtol=1e-13, atol=1e-13)
    mine = jax.grad(lambda x: (weight * gram.gram_matrix(x)).sum())(E)
    np.testing.assert_allclose(mine, (weight + weight.T) @ E, rtol=1e-12, atol=1e-12)
