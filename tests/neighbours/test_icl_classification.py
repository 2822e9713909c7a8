"""Classification in context: prompts, attention, and the step of gradient descent."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.more
NAME = "icl_classification"


@pytest.fixture
def module(code):
    return sys.modules[code(NAME, "InContext").__module__]


@pytest.fixture
def data(module):
    return module.prompts(jax.random.key(0), sequences=5, dim=3, length=6)


@pytest.mark.parametrize("kind", ["linear", "exponential", "softmax"])
def test_outputs_match_a_loop_over_points(module, data, kind):
    model = module.InContext(weighting=kind)
    params = model.init(jax.random.key(1), data, dtype=jnp.float32)
    A, u = (np.asarray(params[name], float) for name in "Au")
    for n, ours in enumerate(model.outputs(params, data)):
        query = np.append(np.asarray(data.query[n], float), 0)
        tokens = [np.append(x, y) for x, y in zip(np.asarray(data.X[n]), np.asarray(data.y[n]), strict=True)]
        scores = np.array([query @ A @ token for token in tokens])
        shares = {"linear": scores / 6, "exponential": np.exp(scores) / 6}
        shares["softmax"] = np.exp(scores) / np.exp(scores).sum()
        assert_allclose(ours, sum(a * (u @ t) for a, t in zip(shares[kind], tokens, strict=True)), rtol=1e-4)


def test_linear_attention_is_a_step_of_gradient_descent_on_the_logistic_loss(module, data):
    """From w = 0 a step of size η gives the logit η/(2 N) Σ y_i x_i·x."""
    eta = 0.7
    params = {"A": jnp.eye(4).at[3, 3].set(0.0), "u": jnp.array([0.0, 0.0, 0.0, eta / 2])}
    ours = module.InContext(weighting="linear").outputs(params, data)

    def step(X, y, query):
        loss = lambda w: module.logistic(X @ w, y).mean()  # noqa: E731
        return -eta * jax.grad(loss)(jnp.zeros(3)) @ query

    assert_allclose(ours, jax.vmap(step)(data.X, data.y, data.query), rtol=1e-5, atol=1e-6)


def test_points_are_on_the_sphere_and_labels_are_linear(module):
    for spread in (None, 0.3):
        data = module.prompts(jax.random.key(2), sequences=200, dim=3, length=40, spread=spread)
        assert_allclose(np.linalg.norm(data.X, axis=-1), 1, rtol=1e-5)
        # A least-squares classifier of the context agrees with most labels, and the classes are balanced.
        w = np.array([np.linalg.lstsq(X, y, rcond=None)[0] for X, y in zip(data.X, data.y, strict=True)])
        assert (np.sign((np.asarray(data.query) * w).sum(axis=1)) == data.targets).mean() > 0.85
        assert abs(np.asarray(data.targets).mean()) < 0.25
    gram = np.einsum("ntd,nsd->nts", data.X, data.X)
    assert gram.mean() > 0.3


def test_trained_weights_approach_the_step(run):
    at = run(NAME, "blocks=null", "figures=null", "seeds=2", "phases.train.steps=600", "probes.every=600")
    assert at("identity", 600).min() > 0.95
    assert at("step_correlation", 600).min() > 0.95
    assert at("test_loss", 600).max() < 0.55
