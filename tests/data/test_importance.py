import jax
import numpy as np
import pytest

import jaxattn as ja


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


def test_importance_under_vmap_matches_single_calls():
    keys = jax.random.split(jax.random.key(0), 3)

    def of(key):
        corpus = ja.data.assumption1(key, vocab_size=20, relevant=4, length=6, sequences=40)
        return ja.data.average_signed_frequency(corpus)

    looped = np.stack([of(key) for key in keys])
    np.testing.assert_allclose(jax.vmap(of)(keys), looped, rtol=1e-6)
