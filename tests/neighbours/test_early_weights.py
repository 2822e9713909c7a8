"""Early weights of an attention-only transformer: model, corpus statistics and closed forms."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from jaxattn.data import Sequences

pytestmark = pytest.mark.more
NAME = "early_weights"


@pytest.fixture
def module(code):
    return sys.modules[code(NAME, "AttentionOnly").__module__]


@pytest.fixture
def corpus(code):
    return sys.modules[code(NAME, "statistics", "corpus_statistics").__module__]


@pytest.fixture
def data():
    rows = jax.random.randint(jax.random.key(0), (6, 6), 0, 4) % jnp.array([2, 4, 4, 3, 4, 4])
    return Sequences(targets=rows[:, 1:], ids=rows[:, :-1], mask=jnp.ones((6, 5), bool), vocab_size=4)


def loop_outputs(params, ids):
    """Compute the logits of one sequence by a loop over layers and positions."""
    h = np.asarray(params["E"], float)[ids]
    for W, V, P in zip(*(np.asarray(params[name], float) for name in "WVP"), strict=True):
        new = h.copy()
        for t in range(len(h)):
            scores = np.array([h[t] @ W @ h[s] + P[t - s] for s in range(t + 1)])
            weights = np.exp(scores - scores.max())
            new[t] = h[t] + weights @ h[: t + 1] @ V / weights.sum()
        h = new
    return h @ np.asarray(params["O"], float)


def test_outputs_match_a_loop_over_positions(module, data):
    model = module.AttentionOnly(layers=2, dim=3)
    params = model.init(jax.random.key(1), data, dtype=jnp.float32)
    rng = np.random.default_rng(0)
    params |= {name: jnp.asarray(rng.normal(size=params[name].shape), jnp.float32) for name in "WVPO"}
    for ids, ours in zip(np.asarray(data.ids), model.outputs(params, data), strict=True):
        assert_allclose(ours, loop_outputs(params, ids), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dim", [0, 3])
def test_closed_forms_are_the_leading_terms_of_training(module, corpus, code, data, dim):
    """Weights after six small steps of gradient descent by optax, without the package's own descent."""
    next_word, powers = code(NAME, "next_word", "review_windows"), code(NAME, "powers", "check")
    model, eta = module.AttentionOnly(layers=2, dim=dim), 1e-3
    with jax.enable_x64(True):
        start = model.init(jax.random.key(1), data, dtype=jnp.float64)
        trained = {name: x for name, x in start.items() if name != "E"}

        def loss(x):
            return next_word(model.outputs({"E": start["E"], **x}, data), data.targets).mean()

        for _ in range(6):
            trained = optax.apply_updates(trained, jax.tree.map(lambda g: -eta * g, jax.grad(loss)(trained)))
        terms = corpus.statistics(data, start["E"])
        found = corpus.between_words({"E": start["E"], **trained})
        for name, factor in powers(6, eta).items():
            for ours in found[name]:
                assert_allclose(
                    ours, factor * terms[name], atol=5e-3 * factor * float(jnp.abs(terms[name]).max())
                )
                assert corpus.cosine(ours, terms[name]) > 0.9999


def test_distance_from_infinite_width_matches_its_closed_form(corpus):
    """E ‖(E Eᵀ - I) B‖² = (V + 1)/d ‖B‖² for normal E with variance 1/d."""
    rng = np.random.default_rng(0)
    B = rng.normal(size=(10, 10))
    found = []
    for _ in range(2000):
        E = rng.normal(size=(10, 40)) / 40**0.5
        found.append((((E @ E.T - np.eye(10)) @ B) ** 2).sum() / (B**2).sum())
    assert_allclose(np.mean(found), 11 / 40, rtol=0.03)
    assert_allclose(corpus.width_law(10, 40) ** 2, 11 / 40)


def test_component_along_frequencies_is_removed(corpus, data):
    x, r = (np.eye(4)[np.asarray(ids)].mean(axis=(0, 1)) for ids in (data.ids, data.targets))
    part = np.outer(x, r - 0.25)
    assert_allclose(corpus.without_frequencies(jnp.asarray(part, jnp.float32), data), 0, atol=1e-7)
    matrix = np.random.default_rng(0).normal(size=(4, 4))
    left = corpus.without_frequencies(jnp.asarray(matrix, jnp.float32), data)
    assert abs((np.asarray(left) * part).sum()) < 1e-6
