"""Advice on the size of one step, compared with manual calculations and training in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data import token_statistics
from jaxattn.theory.one_step_law import advise

SIZES = {"vocab_size": 50, "relevant": 12, "length": 10, "sequences": 120}


@pytest.mark.more
@pytest.mark.parametrize("classes", [2, 3])
def test_error_of_the_law_decays_like_one_over_sqrt_d(classes):
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


def test_one_step_error_is_the_largest_deviation_divided_by_step_size():
    corpus = ja.data.from_sequences([[0, 1], [2]], labels=[1, -1], vocab_size=3)
    alpha = np.array([0.25, 0.25, -0.5])
    np.testing.assert_allclose(ja.theory.predicted_values(corpus, 8.0), 4 * alpha, rtol=1e-6)
    change = jnp.asarray(4 * alpha) + jnp.array([0.0, -0.4, 0.2])
    np.testing.assert_allclose(ja.theory.one_step_error(change, corpus, 8.0), 0.05, rtol=1e-5)


@functools.cache
def under_assumption1():
    return ja.data.assumption1(jax.random.key(0), vocab_size=50, relevant=20, length=8, sequences=20_000)


def advised(corpus, dim, min_count=1):
    tokens = token_statistics(corpus)
    return advise(corpus, tokens.alpha[:, 0], tokens.important(0.5, min_count), tokens.count > 0, dim)


@pytest.mark.parametrize(("dim", "expected"), [(256.0, 200.0), (1024.0, 100.0), (4096.0, 50.0)])
def test_recommended_step_size_under_assumption_1_matches_the_phase_diagram(dim, expected):
    """α = 1 / (T · relevant) of relevant tokens and 0 of all others: η0 = 10 · 2 · 160 / √d."""
    found = advised(under_assumption1(), dim)
    assert found.step_size == pytest.approx(expected, rel=0.02)
    assert found.is_enough
    assert found.ratio(found.step_size) == pytest.approx(10)
    assert found.others == 0


def test_recommended_step_size_is_limited_by_the_logits_at_infinite_d():
    found = advised(under_assumption1(), np.inf)
    assert found.step_size * found.logits == pytest.approx(0.1)


def with_stop_words(delta, n=1000, length=24):
    """80 words with posterior differences up to 0.9, 20 stop words with half of the mass, 200 others."""
    rng = np.random.default_rng(0)
    difference = np.concatenate([np.linspace(-0.9, 0.9, 80), delta * (-1.0) ** np.arange(20), np.zeros(200)])
    mass = np.concatenate([np.full(80, 0.1 / 80), np.full(20, 0.5 / 20), np.full(200, 0.4 / 200)])
    labels = np.where(rng.random(n) < 0.5, 1, -1)
    likely = mass * (1 + labels[:, None] * difference)
    counts = np.stack([rng.multinomial(length, x / x.sum()) for x in likely])
    sequences = [np.repeat(np.arange(300), row).tolist() for row in counts]
    return ja.data.from_sequences(sequences, labels.tolist(), vocab_size=300), counts.astype(float), labels


def trained(counts, labels, step_size, dim, steps=150):
    """Take one step by its law, then train p by Adam; return the attention on every occurrence."""
    rng = np.random.default_rng(1)
    alpha = (labels[:, None] * counts / counts.sum(1, keepdims=True)).mean(0)
    E, p, v = rng.normal(size=(300, dim)) / dim**0.5, rng.normal(size=dim) / dim**0.5, rng.normal(size=dim)
    v /= np.linalg.norm(v)
    E += step_size / 2 * np.outer(alpha, v)
    first, second = np.zeros(dim), np.zeros(dim)
    for t in range(1, steps + 1):
        weights = counts * np.exp(E @ p - (E @ p).max())
        weights /= weights.sum(1, keepdims=True)
        logits = weights @ (E @ v)
        slope = -labels / (1 + np.exp(labels * logits)) / len(labels)
        gradient = E.T @ ((E @ v) * (weights.T @ slope) - weights.T @ (slope * logits))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        p = p - 0.02 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return weights


@pytest.mark.more
def test_stop_words_can_make_one_step_insufficient():
    """From a difference of 0.1 the stop words have the largest α."""
    gained = {}
    for delta in (0.0, 0.4):
        corpus, counts, labels = with_stop_words(delta)
        found = advised(corpus, 256.0, min_count=15)
        tokens = token_statistics(corpus)
        important = np.asarray(tokens.important(0.5, 15))
        assert found.is_enough == (delta == 0)
        assert found.step_size * found.logits <= 1 + 1e-6
        weights = trained(counts, labels, found.step_size, 256)
        before = (counts[:, important].sum(1) / counts.sum(1)).mean()
        gained[delta] = weights[:, important].sum(1).mean() / before
    # Attention concentrates on important words only if the advice predicts it.
    assert gained[0.0] > 2
    assert gained[0.4] < 1
