import jax
import jax.numpy as jnp
import numpy as np

import jaxattn as ja
from jaxattn import models
from jaxattn.probes import Alignments
from jaxattn.probes.alignments import cosine


def angle(x, y):
    x, y = np.ravel(x), np.ravel(y)
    return x @ y / (np.linalg.norm(x) * np.linalg.norm(y))


def test_cosines_between_parameters_and_with_the_descent_direction(x64, corpus, show, draw):
    corpus, model = corpus(), models.OneLayer(dim=12)  # E is as large as a matrix (d, d) would be
    params = draw(model, corpus)
    found = Alignments().measure(show(model, params, corpus, train=("E", "p")))
    assert set(found) == {"cos_p_v", "cos_E_descent", "cos_p_descent"}
    np.testing.assert_allclose(found["cos_p_v"], angle(params.p, params.v), rtol=1e-12)
    gradient = jax.grad(ja.dynamics.loss)(params, corpus)
    np.testing.assert_allclose(found["cos_E_descent"], -angle(params.E, gradient.E), rtol=1e-10)
    np.testing.assert_allclose(found["cos_p_descent"], -angle(params.p, gradient.p), rtol=1e-10)


def test_matrices_of_one_shape_are_compared_entry_by_entry(x64, corpus, show, draw):
    corpus, model = corpus(3), models.TwoLayerWeights(dim=5)
    params = draw(model, corpus)
    params = params.replace(W2=2 * params.W1 + params.W2)
    found = Alignments().measure(show(model, params, corpus, train=("v",)))
    assert set(found) == {"cos_W1_W2", "cos_v_descent"}
    np.testing.assert_allclose(found["cos_W1_W2"], angle(params.W1, params.W2), rtol=1e-12)


def test_cosines_of_tiny_vectors_are_exact_and_of_zero_undefined():
    x, y = jnp.array([3e-30, 4e-30]), jnp.array([1e25, 0.0])
    np.testing.assert_allclose(cosine(x, y), 0.6, rtol=1e-6)
    assert jnp.isnan(cosine(x, jnp.zeros(2)))
