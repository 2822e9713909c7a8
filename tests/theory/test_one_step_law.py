import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja

SIZES = {"vocab_size": 50, "relevant": 12, "length": 10, "sequences": 120}


@pytest.mark.parametrize("classes", [2, 3])
def test_the_law_holds_up_to_an_error_that_falls_like_the_root_of_d(classes):
    corpus = ja.data.independent(jax.random.key(0), **SIZES, num_classes=classes)
    dims = (64, 1024, 16384)
    errors = []
    for dim in dims:

        def one(key, dim=dim):
            params = ja.models.one_layer.init(key, vocab_size=50, dim=dim, num_classes=classes)
            moved = ja.dynamics.one_step(params, corpus, step_size=1e3)
            return ja.theory.one_step_error((moved.E - params.E) @ params.v, corpus, 1e3)

        errors.append(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 16)).mean())
    slope = np.polyfit(np.log(dims), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.05


def test_error_is_the_largest_deviation_per_unit_step():
    corpus = ja.data.from_sequences([[0, 1], [2]], labels=[1, -1], vocab_size=3)
    alpha = np.array([0.25, 0.25, -0.5])
    np.testing.assert_allclose(ja.theory.predicted_values(corpus, 8.0), 4 * alpha, rtol=1e-6)
    change = jnp.asarray(4 * alpha) + jnp.array([0.0, -0.4, 0.2])
    np.testing.assert_allclose(ja.theory.one_step_error(change, corpus, 8.0), 0.05, rtol=1e-5)
