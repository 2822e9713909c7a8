from fractions import Fraction

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data import token_statistics


def draw(rng, classes):
    sequences = [rng.integers(0, 9, rng.integers(1, 40)).tolist() for _ in range(50)]
    classes_drawn = rng.integers(0, classes, 50)
    labels = 2 * classes_drawn - 1 if classes == 2 else classes_drawn
    corpus = ja.data.from_sequences(sequences, labels.tolist(), vocab_size=10, num_classes=classes)
    return corpus, sequences, classes_drawn


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_importance_matches_a_loop_over_sequences(rng, x64, classes):
    corpus, sequences, drawn = draw(rng, classes)
    alpha, counts = np.zeros((10, classes)), np.zeros((10, classes))
    for tokens, own in zip(sequences, drawn, strict=True):
        for token in tokens:
            counts[token, own] += 1
            for k in range(classes):
                alpha[token, k] += ((classes - 1) / classes if k == own else -1 / classes) / len(tokens) / 50
    with np.errstate(invalid="ignore"):
        posterior = counts / counts.sum(axis=1, keepdims=True)
    if classes == 2:
        alpha, difference = 2 * alpha[:, 1], posterior[:, 1] - posterior[:, 0]
    else:
        others = posterior.sum(axis=1, keepdims=True) - posterior
        difference = posterior - others / (classes - 1)
    np.testing.assert_allclose(ja.data.average_signed_frequency(corpus), alpha, atol=1e-15)
    np.testing.assert_array_equal(ja.data.class_counts(corpus), counts)
    np.testing.assert_array_equal(ja.data.token_counts(corpus), counts.sum(axis=1))
    np.testing.assert_allclose(ja.data.posterior_difference(corpus), difference, rtol=1e-14, atol=2e-16)


def test_importance_matches_a_manual_calculation():
    corpus = ja.data.from_sequences([[0, 2, 2], [1, 2]], labels=[1, -1], vocab_size=4)
    alpha = np.asarray(ja.data.average_signed_frequency(corpus))
    np.testing.assert_allclose(alpha, [1 / 6, -1 / 4, 1 / 3 - 1 / 4, 0], rtol=1e-6, atol=1e-9)
    difference = np.asarray(ja.data.posterior_difference(corpus))
    np.testing.assert_allclose(difference, [1, -1, 1 / 3, np.nan], rtol=1e-6)
    relevant = np.asarray(ja.data.completely_relevant(corpus))
    np.testing.assert_array_equal(relevant, [[False, True], [True, False], [False, False], [False, False]])


@pytest.mark.more
def test_importance_under_vmap_matches_single_calls():
    keys = jax.random.split(jax.random.key(0), 3)

    def of(key):
        corpus = ja.data.assumption1(key, vocab_size=20, relevant=4, length=6, sequences=40)
        return ja.data.average_signed_frequency(corpus)

    looped = np.stack([of(key) for key in keys])
    np.testing.assert_allclose(jax.vmap(of)(keys), looped, rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_posterior_differences_are_correctly_rounded_fractions_of_counts(rng, classes):
    sequences = rng.integers(0, 40, (120, 9)).tolist()
    drawn = rng.integers(0, classes, 120)
    labels = (2 * drawn - 1 if classes == 2 else drawn).tolist()
    corpus = ja.data.from_sequences(sequences, labels, vocab_size=40, num_classes=classes)
    counts = [
        [sum(s.count(t) for s, y in zip(sequences, drawn, strict=True) if y == k) for k in range(classes)]
        for t in range(40)
    ]
    exact = [[Fraction(classes * n - sum(row), (classes - 1) * sum(row)) for n in row] for row in counts]
    got = np.asarray(ja.data.posterior_difference(corpus)).reshape(40, -1)
    expected = np.array([[np.float32(x) for x in row] for row in exact])
    np.testing.assert_array_equal(got, expected[:, -got.shape[1] :])


@pytest.mark.parametrize("size", [0.2, 0.4, 0.6, 0.75, 0.8])
def test_token_exactly_at_the_level_is_important(size):
    # Token 0 occurs in 40 sequences, and its posterior difference is exactly `size`.
    positive = round(20 * (1 + size))
    labels = [1] * positive + [-1] * (40 - positive) + [1, -1]
    corpus = ja.data.from_sequences([[0, 1]] * 40 + [[1, 2], [1, 2]], labels, vocab_size=3)
    tokens = token_statistics(corpus)
    assert jax.jit(lambda t, x: t.important(x, 1))(tokens, size).tolist()[0]
    assert not np.asarray(tokens.important(size + 1e-5, 1))[0]


def test_average_signed_frequency_is_zero_where_fractions_cancel():
    """Token 0 has 1/3 + 1/6 - 1/2 and 3/9 - 1/3, and token 1 does not cancel."""
    sequences = [[0, 1, 1], [0, 1, 1, 1, 1, 1], [0, 1], [0] * 3 + [1] * 6, [1, 1, 0], [1] * 11]
    corpus = ja.data.from_sequences(sequences, [1, 1, -1, 1, -1, 1], vocab_size=3)
    alpha = np.asarray(ja.data.average_signed_frequency(corpus))
    signs = [1, 1, -1, 1, -1, 1]
    exact = [
        sum(y * Fraction(s.count(t), len(s)) for s, y in zip(sequences, signs, strict=True)) for t in (0, 1)
    ]
    assert exact[0] == 0
    assert alpha[0] == 0
    np.testing.assert_allclose(alpha[1], float(exact[1] / 6), rtol=1e-6)
    assert ja.data.irrelevant(corpus).tolist() == [True, False, True]
