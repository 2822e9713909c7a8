"""Random attention layers: samples without weights, and moments of the limit."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.more
NAME = "infinite_width"


@pytest.fixture
def module(code):
    return sys.modules[code(NAME, "RandomLayer").__module__]


@pytest.fixture
def layers(code):
    return sys.modules[code(NAME, "SampledLayers", "random_layers").__module__]


def test_outputs_match_a_loop_over_heads(module):
    data = module.tokens(jax.random.key(0), sequences=3, dim=5)
    model = module.RandomLayer(heads=2)
    params = model.init(jax.random.key(1), data, dtype=jnp.float32)
    Q, K, V, O = (np.asarray(params[name], float) for name in "QKVO")
    for X, ours in zip(np.asarray(data.X, float), model.outputs(params, data), strict=True):
        total = 0.0
        for h in range(2):
            scores = X[0] @ Q[h] @ (X @ K[h]).T / np.sqrt(5)
            weights = np.exp(scores) / np.exp(scores).sum()
            total += weights @ X @ V[h] @ O[h, :, 0] / np.sqrt(2)
        assert_allclose(ours, total, rtol=1e-4)


def test_moments_of_samples_match_layers_with_all_weights(module, layers):
    """Sampling rows of X Q, X K and X V gives the distribution that sampled matrices give."""
    n, heads, count = 6, 2, 40_000
    model = module.RandomLayer(heads=heads)

    def whole(key):
        data_key, key = jax.random.split(key)
        data = module.tokens(data_key, sequences=1, dim=n)
        return model.outputs(model.init(key, data, dtype=jnp.float32), data)[0]

    y = np.asarray(jax.vmap(whole)(jax.random.split(jax.random.key(0), count)), float)
    keys = jax.random.split(jax.random.key(1), count)
    v = np.asarray(jax.vmap(lambda key: layers.finite_layer(key, n, heads)[0])(keys), float)
    assert_allclose((y**2).mean(), v.mean(), rtol=0.06)
    assert_allclose((np.abs(y) < 0.3).mean(), np.mean([_below(0.3, x) for x in v[:20_000]]), atol=0.01)


def _below(limit, variance):
    """Return P(|y| < limit) for y ~ N(0, variance)."""
    from math import erf, sqrt

    return erf(limit / sqrt(2 * variance))


def test_variances_of_scores_match_their_closed_forms(layers):
    n = 8
    keys = jax.random.split(jax.random.key(0), 100_000)
    scores = np.asarray(jax.vmap(lambda key: layers.finite_layer(key, n, 1)[1])(keys), float)
    assert_allclose((scores[:, 0] ** 2).mean(), (1 + 2 / n) ** 2, rtol=0.05)
    assert_allclose((scores[:, 1:] ** 2).mean(), 1 + 2 / n, rtol=0.03)


def test_quadrature_of_the_limit_matches_samples(code):
    moments = code(NAME, "limit_moments", "check")
    scores = np.random.default_rng(0).normal(size=(400_000, 4))
    attention = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    y = (attention * np.random.default_rng(1).normal(size=(400_000, 4))).sum(axis=1)
    variance, kurtosis = moments(1)
    assert_allclose((y**2).mean(), variance, rtol=0.01)
    assert_allclose((y**4).mean() / (y**2).mean() ** 2 - 3, kurtosis, atol=0.05)
    assert_allclose(moments(8)[1], kurtosis / 8)


def test_divergence_of_normal_densities_matches_its_closed_form(layers):
    p, q = layers.normal_density(1.0), layers.normal_density(0.8)
    assert_allclose(layers.divergence(p, q), 0.5 * (1 / 0.8 - 1 + np.log(0.8)), rtol=1e-3)
