"""Benign overfitting: noise tokens fit flipped labels, and training in coordinates is exact."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core import backend

pytestmark = pytest.mark.more

PLAIN = ("blocks=null", "figures=null", "seeds=1")


def test_overfitting_is_benign(run):
    """Flipped labels are fitted and test accuracy is high; noise tokens fit the flipped labels."""
    at = run("benign_overfitting", *PLAIN)
    assert at("train_accuracy") == 1
    np.testing.assert_allclose(at("true_accuracy"), 0.8)
    assert at("test_accuracy") > 0.95
    assert at("attention_clean") > 0.9
    assert at("attention_flipped") < 0.3


def test_two_training_labels_of_each_class_are_flipped(read):
    """The signal token shows the class: e_1 for 1, e_2 for -1."""
    data = read("benign_overfitting", *PLAIN).dataset(0)
    for part, flipped in ((data.train, 2), (data.test, 0)):
        X, y = np.asarray(part.X), np.asarray(part.targets)
        true = np.where(X[:, 0, 0] > X[:, 0, 1], 1, -1)
        assert (true == 1).sum() == len(y) / 2
        assert [(y != true)[true == c].sum() for c in (1, -1)] == [flipped, flipped]


def test_noise_has_the_published_distribution(read):
    """‖noise‖² is χ² with 2,000 degrees of freedom; products of two noise tokens have variance 2,000."""
    X = np.asarray(read("benign_overfitting", *PLAIN).dataset(0).train.X)[:, 3:].reshape(100, -1)
    gram = X @ X.T
    squares, products = np.diag(gram), gram[np.triu_indices(100, 1)]
    np.testing.assert_allclose(squares.mean(), 2000, rtol=0.02)
    np.testing.assert_allclose(squares.std(), np.sqrt(2 * 2000), rtol=0.35)
    np.testing.assert_allclose(products.std(), np.sqrt(2000), rtol=0.1)


def in_numpy(X, y, W, v, steps, rate):
    """Gradient descent on W and p in R^d."""
    p = np.zeros(len(v))
    for _ in range(steps):
        scores, value = X @ W @ p, X @ v
        q = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        f = (q * value).sum(axis=1)
        g = (-y / (1 + np.exp(y * f)) / len(y))[:, None] * q * (value - f[:, None])
        pull = np.einsum("nt,ntd->d", g, X)
        W, p = W - rate * np.outer(pull, p), p - rate * W.T @ pull
    return W, p


def test_training_in_span_coordinates_matches_full_training(code):
    """Scores of training and test tokens after 40 steps, in R^60 and in 12 + 2 coordinates."""
    rng, n, T, d = np.random.default_rng(0), 4, 3, 60
    X, far = rng.normal(size=(n, T, d)), rng.normal(size=(5, T, d))
    y, v = np.array([1, -1, 1, -1]), np.eye(d)[0] - np.eye(d)[1]
    W0 = rng.normal(size=(d, d)) / np.sqrt(3 * d)
    W, p = in_numpy(X, y, W0, v, 40, 0.05)
    axes = np.linalg.qr(np.vstack([np.eye(d)[:2], X.reshape(-1, d)]).T)[0]  # (d, 14)
    queries = np.linalg.qr((axes.T @ W0).T)[0]  # (d, 14)
    names = ("Tokens", "Params", "FixedHead", "attention")
    tokens, params, model, attention = (code("benign_overfitting", name) for name in names)

    def coordinates(X, y):
        rest = X - X @ axes @ axes.T
        return tokens(
            targets=jnp.asarray(y), X=jnp.asarray(X @ axes), h=jnp.asarray(rest @ W0 @ queries), classes=2
        )

    with backend.float64():
        small = params(*(jnp.asarray(x) for x in (axes.T @ W0 @ queries, np.zeros(14), axes.T @ v)))
        data, outputs = coordinates(X, y), {"outputs": model().outputs}
        for _ in range(40):
            slopes = ja.dynamics.loss_and_gradients(small, data, ("W", "p"), **outputs)[1]
            small = small._replace(**{name: getattr(small, name) - 0.05 * x for name, x in slopes.items()})
        for tested in (X, far):
            scores = tested @ W @ p
            ours = attention(small, coordinates(tested, np.ones(len(tested), int)))
            theirs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)
