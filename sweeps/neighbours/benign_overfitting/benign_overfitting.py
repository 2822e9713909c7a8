"""Benign overfitting in token selection, with W and p trained on noisy labels."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Splits, Vectors


class Tokens(Vectors):
    """Tokens in R^d, in their m + 2 coordinates along the two signal axes and the axes of training noise."""

    h: Array | None = None  # (n, T, m + 2) initial W applied to the part of each token outside these axes


def triangle(key: Array, rows: int, dim: int) -> Array:
    """Sample Gaussian vectors in R^dim in an orthonormal basis of their span, by the Bartlett decomposition.

    The result is a lower-triangular matrix with one row per vector.
    """
    off, diagonal = jax.random.split(key)
    squares = 2 * jax.random.gamma(diagonal, (dim - jnp.arange(rows)) / 2)
    return jnp.tril(jax.random.normal(off, (rows, rows)), -1) + jnp.diag(jnp.sqrt(squares))


class Signals(ja.DrawnData, kw_only=True):
    """Sequences of one relevant token, two tokens with weak signals, and noise tokens.

    For class c, the tokens are μ_c + ξ, weak · μ_c + ξ, weak · μ_-c + ξ, and then noise ξ alone. Here
    ξ ~ N(0, I), μ_+ = signal · e_1 and μ_- = signal · e_2.
    """

    dim: int = 2000
    length: int = 8
    sequences: int = 20
    test_sequences: int = 1000
    signal: float = 20.0
    weak: float = 0.1
    flipped: ja.Static[float] = 0.2

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Sample the data for one seed.

        The part of a test token outside of the training axes has a χ²-distributed squared length.
        """
        keys, m = jax.random.split(key, 4), self.sequences * self.length
        on_signals, own = jax.random.normal(keys[0], (m, 2)), triangle(keys[1], m, self.dim - 2)
        train = self.clean(jnp.hstack([on_signals, own]), jnp.zeros((m, m + 2)))
        noise, h = jax.random.normal(keys[2], (2, self.test_sequences * self.length, m + 2))
        rest = 2 * jax.random.gamma(keys[3], (self.dim - 2 - m) / 2, (len(h), 1))
        test = self.clean(noise, jnp.sqrt(rest / (3 * self.dim)) * h)
        noisy = jnp.arange(self.sequences) % (self.sequences // 2) < round(self.flipped * self.sequences / 2)
        train = train.replace(targets=jnp.where(noisy, -train.targets, train.targets))
        return Splits(train=train, tokens=None, test=test, validation=None)

    def clean(self, noise: Array, h: Array) -> Tokens:
        """Add the signals to the noise, and return the tokens with correct labels."""
        X, h = (x.reshape(-1, self.length, x.shape[1]) for x in (noise, h))
        y = classes(len(X))
        own, other = self.signal * jnp.eye(2, X.shape[2])[jnp.stack([(1 - y) // 2, (1 + y) // 2])]
        added = jnp.stack([own, self.weak * own, self.weak * other], axis=1)
        return Tokens(targets=y, X=X.at[:, :3].add(added), h=h, classes=2)


def classes(n: int) -> Array:
    """Return the true classes of n sequences: 1 in the first half and -1 in the second half."""
    return jnp.where(jnp.arange(n) < n // 2, 1, -1).astype(jnp.int32)


class Params(NamedTuple):
    """Key matrix W, query p and head v."""

    W: Array
    p: Array
    v: Array


class FixedHead(ja.Model[Tokens]):
    """Attention f(X) = Σ_t q_t x_t·v with scores x_t·W p and v = (μ_+ - μ_-) / (‖μ_+ - μ_-‖ · signal)."""

    dim: int = 2000
    signal: float = 20.0

    def init(self, key: Array, like: Tokens, *, dtype: jnp.dtype) -> Params:
        """Sample entries of W from N(0, 1/(3d)), with the variance of U(-1/√d, 1/√d), and set p to 0."""
        W = triangle(key, like.dim, self.dim).astype(dtype) / (3 * self.dim) ** 0.5
        v = jnp.zeros(like.dim, dtype).at[:2].set([1, -1]) / (2**0.5 * self.signal)
        return Params(W, jnp.zeros_like(v), v)

    def outputs(self, params: Params, data: Tokens) -> Array:
        """Compute f for each sequence as an (n,) array."""
        return (attention(params, data) * data.dot(params.v)).sum(axis=1)


def attention(params: Params, data: Tokens) -> Array:
    """Compute the attention for each sequence as an (n, T) array."""
    return jax.nn.softmax(data.dot(params.W @ params.p) + data.h @ params.p, axis=1)


def relevant(params: Params, data: Tokens) -> dict[str, Array]:
    """Compute the mean attention on the relevant token and the true accuracy.

    The attention is averaged separately over sequences with correct and with flipped labels. The true
    accuracy compares predictions with the true classes.
    """
    mass, y = attention(params, data), classes(data.num_examples)
    parts = {"clean": data.targets == y, "flipped": data.targets != y}
    found = {f"attention_{name}": (x * mass[:, 0]).sum() / x.sum() for name, x in parts.items()}
    right = (mass * data.dot(params.v)).sum(axis=1) * y > 0
    return found | {"true_accuracy": right.mean(dtype=mass.dtype)}
