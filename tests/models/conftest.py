"""Fixtures of the tests of models."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data import from_draws

# Tests import `models.params`.
sys.path.append(str(Path(__file__).parents[1]))

draw = jax.jit(from_draws, static_argnames=("vocab_size", "num_classes"))


@pytest.fixture(params=["ragged", "short draws", "long draws"])
def corpus(request, rng, ragged):
    """Bags of one or several rows; or sampled sequences, with unused rows."""
    if request.param == "ragged":
        return ragged(2)
    length = {"short draws": 9, "long draws": 70}[request.param]
    tokens, labels = rng.integers(0, 60, (5, length)), rng.choice([-1, 1], 5)
    return draw(jnp.asarray(tokens), jnp.asarray(labels), vocab_size=62, num_classes=2)


@pytest.fixture
def assert_vmap_matches_loop(rng):
    """Compare vmapped and single gradients of three seeds, with shared and separate corpora."""

    def compare(init, logits):
        keys = jax.random.split(jax.random.key(0), 3)
        params = jax.vmap(lambda key: init(key, vocab_size=50, dim=6, dtype=jnp.float64))(keys)
        tokens, labels = jnp.asarray(rng.integers(0, 50, (3, 4, 40))), jnp.array([1, -1, 1, -1])

        def gradient(params, tokens):
            corpus = from_draws(tokens, labels, vocab_size=50, num_classes=2)
            return jax.grad(lambda x: ja.losses.classification(logits(x, corpus), labels).mean())(params)

        one = jax.jit(gradient)
        for axes, data in (((0, 0), tokens), ((0, None), tokens[0])):
            vmapped = jax.jit(jax.vmap(gradient, axes))(params, data)
            for seed in range(3):
                own = jax.tree.map(lambda x, seed=seed: x[seed], params)
                looped = one(own, tokens[seed] if axes[1] == 0 else tokens[0])
                for mine, theirs in zip(jax.tree.leaves(vmapped), jax.tree.leaves(looped), strict=True):
                    np.testing.assert_allclose(mine[seed], theirs, rtol=1e-10, atol=1e-13)

    return compare
