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
        assert_allclose(found, np.log(data.targets[n]) + weights @ values, rtol=1e-5)


def test_loss_is_zero_without_an_error(module):
    targets = jnp.array([[0.2, 0.3, 0.5]])
    assert_allclose(module.divergence(jnp.log(targets) + 7.0, targets), 0.0, atol=1e-6)
    assert_allclose(
        module.divergence(jnp.zeros((1, 3)), targets), (targets * jnp.log(3 * targets)).sum(), rtol=1e-5
    )


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
