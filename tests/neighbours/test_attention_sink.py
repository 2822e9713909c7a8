"""Attention sinks: the reduced model and its closed forms."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.more
NAME = "attention_sink"


@pytest.fixture
def module(code):
    return sys.modules[code(NAME, "Sink").__module__]


def test_outputs_match_attention_over_the_sink_and_the_context(module):
    data = module.bigrams(jax.random.key(0), jax.random.key(1), sequences=3, vocab=4, length=6)
    model = module.Sink(size=2.0)
    params = module.Params(jnp.array([0.1, 1.0, -2.0, 3.0]), jnp.array([1.0, -1.0, 0.5, 0.2]))
    for n, found in enumerate(model.outputs(params, data)):
        counts = np.asarray(data.counts[n], float)
        keys = np.repeat(np.arange(4), counts.astype(int))
        scores = np.r_[params.logits[data.current[n]], np.zeros(6)]
        weights = np.exp(scores) / np.exp(scores).sum()
        values = np.vstack([params.value, 2.0 * np.eye(4)[keys]])
        assert_allclose(found, weights @ values, rtol=1e-5)


def test_loss_is_the_divergence_of_the_two_softmax_distributions(module):
    P = np.random.default_rng(0).dirichlet(np.ones(4), 3)
    outputs = np.random.default_rng(1).normal(size=(3, 4))
    logits = np.log(P) + outputs
    expected = (P * (np.log(P) - logits + np.log(np.exp(logits).sum(axis=1, keepdims=True)))).sum(axis=1)
    assert_allclose(module.divergence(jnp.asarray(outputs), jnp.asarray(P)), expected, rtol=1e-5)
    assert_allclose(module.divergence(jnp.full((3, 4), 7.0), jnp.asarray(P)), 0.0, atol=1e-12)


def test_gradient_of_a_tiny_loss_is_exact(module):
    """To leading order the gradient is P (x - E_P[x]); a softmax minus P would be lost to rounding."""
    with jax.enable_x64(True):
        P = np.random.default_rng(0).dirichlet(np.ones(4))
        x = 1e-12 * np.random.default_rng(1).normal(size=4)
        gradient = jax.grad(lambda x: module.divergence(x[None], P[None])[0])(jnp.asarray(x))
        assert_allclose(gradient, P * (x - P @ x), rtol=1e-10)


def test_loss_for_a_large_sink_logit_matches_its_closed_form(module):
    with jax.enable_x64(True):
        data = module.bigrams(jax.random.key(0), jax.random.key(1), sequences=50, vocab=5, length=20)
        a = 12.0
        params = module.Params(jnp.full(5, a), jnp.zeros(5))
        loss = module.divergence(module.Sink().outputs(params, data), data.targets)
        P, c = np.asarray(data.targets), np.asarray(data.counts)
        variance = (P * c**2).sum(axis=1) - (P * c).sum(axis=1) ** 2
        assert_allclose(loss, 0.5 * 25 * np.exp(-2 * a) * variance, rtol=2e-3)


def test_tokens_of_the_context_follow_their_bigrams(module):
    data = module.bigrams(jax.random.key(0), jax.random.key(1), sequences=2000, vocab=3, length=2)
    P = np.asarray(jax.random.dirichlet(jax.random.key(1), jnp.ones(3), (3,)))
    assert_allclose(data.targets, P[np.asarray(data.current)], rtol=1e-6)
    stationary = np.linalg.matrix_power(P, 64)[0]
    assert_allclose(np.asarray(data.counts).sum(axis=0) / 4000, stationary, atol=0.03)
