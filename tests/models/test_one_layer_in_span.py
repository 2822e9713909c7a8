import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.models import OneLayer, OneLayerInSpan
from jaxattn.models.one_layer import Params
from jaxattn.models.one_layer_in_span import in_span


def products(params):
    rows = np.concatenate([params.E, params.p[None], np.atleast_2d(params.v.T)])
    return rows @ rows.T


@pytest.mark.parametrize(("dim", "classes"), [(5, 2), (14, 3), (40, 2), (40, 3)])
@pytest.mark.usefixtures("x64")
def test_coordinates_of_the_span_keep_all_inner_products(dim, classes, rng):
    heads = (dim,) if classes == 2 else (dim, classes)
    params = Params(*(jnp.asarray(rng.normal(size=shape)) for shape in ((12, dim), (dim,), heads)))
    short = in_span(params)
    np.testing.assert_allclose(products(short), products(params), rtol=1e-12, atol=1e-12)
    assert short.v.ndim == params.v.ndim


@pytest.mark.usefixtures("x64")
def test_a_seed_means_the_same_parameters_as_in_the_full_space():
    sizes = {"vocab_size": 6, "num_classes": 2, "dtype": jnp.float64}
    short, full = (kind(dim=100).init(jax.random.key(3), **sizes) for kind in (OneLayerInSpan, OneLayer))
    assert short.E.shape == (6, 8)
    np.testing.assert_allclose(products(short), products(full), rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_a_larger_vocabulary_leaves_the_inner_products_of_a_smaller_one_unchanged():
    model, sizes = OneLayerInSpan(dim=100), {"num_classes": 2, "dtype": jnp.float64}
    small, large = (model.init(jax.random.key(3), vocab_size=size, **sizes) for size in (6, 9))
    large = large.replace(E=large.E[:6])
    np.testing.assert_allclose(products(small), products(large), rtol=1e-12, atol=1e-14)
