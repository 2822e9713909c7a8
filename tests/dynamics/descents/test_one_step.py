import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja


@pytest.fixture
def problem():
    corpus = ja.data.assumption1(jax.random.key(0), vocab_size=30, relevant=6, length=8, sequences=60)
    return ja.models.one_layer.init(jax.random.key(1), vocab_size=30, dim=2048), corpus


def test_one_step_moves_E_alone_along_the_gradient(problem):
    params, corpus = problem
    moved = ja.dynamics.one_step(params, corpus, step_size=10.0)
    gradient = jax.grad(ja.dynamics.loss)(params, corpus)
    np.testing.assert_allclose(moved.E, params.E - 10.0 * gradient.E, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(moved.p, params.p)
    np.testing.assert_array_equal(moved.v, params.v)


def test_one_step_writes_half_the_importance_into_the_values(problem):
    params, corpus = problem
    moved = ja.dynamics.one_step(params, corpus, step_size=2e3)
    alpha = ja.data.average_signed_frequency(corpus)
    important = jnp.abs(alpha) > 0
    ratio = (moved.E @ params.v)[important] / (2e3 * alpha[important] / 2)
    np.testing.assert_allclose(ratio, 1, atol=0.1)


def test_other_parameters_move_when_asked(problem):
    params, corpus = problem
    moved = ja.dynamics.one_step(params, corpus, step_size=1.0, train=("p", "v"))
    assert (moved.E == params.E).all()
    assert (moved.p != params.p).any()
    assert (moved.v != params.v).any()


def test_the_loss_may_be_another_one(problem):
    params, corpus = problem
    exponential = ja.losses.Exponential()
    f = ja.models.one_layer.outputs(params, corpus)
    got, gradients = ja.dynamics.loss_and_gradients(params, corpus, ("p",), per_sequence=exponential)
    np.testing.assert_allclose(got, np.exp(-corpus.targets * np.asarray(f)).mean(), rtol=1e-6)
    moved = ja.dynamics.one_step(params, corpus, step_size=2.0, train=("p",), per_sequence=exponential)
    np.testing.assert_allclose(moved.p, params.p - 2 * gradients["p"], rtol=1e-5, atol=1e-7)

    def by_position(p):
        ids, mask = ja.models.reference.padded_sequences(corpus)
        return jnp.exp(-corpus.targets * ja.models.reference.outputs(params.replace(p=p), ids, mask)).mean()

    np.testing.assert_allclose(gradients["p"], jax.grad(by_position)(params.p), rtol=1e-3, atol=1e-7)


def test_parameters_may_be_a_dict(problem):
    params, corpus = problem
    logits = lambda own, corpus: ja.models.one_layer.outputs(ja.models.one_layer.Params(**own), corpus)  # noqa: E731
    moved = ja.dynamics.one_step(vars(params), corpus, step_size=3.0, outputs=logits)
    expected = ja.dynamics.one_step(params, corpus, step_size=3.0)
    np.testing.assert_allclose(moved["E"], expected.E, rtol=1e-6, atol=1e-7)
