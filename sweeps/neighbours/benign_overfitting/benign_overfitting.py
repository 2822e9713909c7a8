"""Benign overfitting of the token that attention selects: W and p move, labels are noisy."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors
from jaxattn.data.splits import Splits


class Signals(ja.DrawnData, kw_only=True):
    """x_1 = μ_c + noise, x_2 and x_3 with a weak μ_c and μ_-c, and noise; μ_± = signal · e_1, e_2.

    The first half of the sequences is of class 1. Of each class a share of the training labels is flipped.
    """

    dim: int
    length: int = 8
    sequences: int = 20
    test_sequences: int = 1000
    signal: float = 20.0
    weak: float = 0.1
    flipped: ja.Static[float] = 0.2

    @property
    def gives(self) -> type[Vectors]:
        """The kind of data."""
        return Vectors

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Draw the data of one seed."""
        train, test = map(self.clean, jax.random.split(key), (self.sequences, self.test_sequences))
        noisy = is_flipped(self.sequences, self.flipped)
        train = train.replace(targets=jnp.where(noisy, -train.targets, train.targets))
        return Splits(train=train, tokens=None, test=test, validation=None)

    def clean(self, key: Array, n: int) -> Vectors:
        """Draw sequences whose labels are right."""
        y = classes(n)
        mu = self.signal * jnp.eye(2, self.dim)
        own, other = mu[(1 - y) // 2], mu[(1 + y) // 2]
        X = jax.random.normal(key, (n, self.length, self.dim))
        X = X.at[:, 0].add(own).at[:, 1].add(self.weak * own).at[:, 2].add(self.weak * other)
        return Vectors(targets=y, X=X, classes=2)


def classes(n: int) -> Array:
    """List the classes of n sequences."""
    return jnp.where(jnp.arange(n) < n // 2, 1, -1).astype(jnp.int32)


def is_flipped(n: int, share: float) -> Array:
    """Mark those whose labels are flipped: the first of each class."""
    return jnp.arange(n) % (n // 2) < round(share * n / 2)


class Params(NamedTuple):
    """Parameters of the model."""

    W: Array  # (d, d) keys
    p: Array  # (d,) query
    v: Array  # (d,) head


class FixedHead(ja.Model[Vectors]):
    """f(X) = Σ_t q_t x_t·v with q = softmax over t of x_t·W p; v = (μ_+ - μ_-) / (‖μ_+ - μ_-‖ signal)."""

    takes: ClassVar[type[Vectors]] = Vectors

    signal: float = 20.0

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Draw W uniform in ±1/√d; p starts at 0."""
        d = like.dim
        W = jax.random.uniform(key, (d, d), dtype, -1, 1) / d**0.5
        v = jnp.zeros(d, dtype).at[:2].set(jnp.array([1.0, -1.0], dtype)) / (2**0.5 * self.signal)
        return Params(W, jnp.zeros(d, dtype), v)

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f of each sequence, (n,)."""
        return (attention(params, data) * data.dot(params.v)).sum(axis=1)


def attention(params: Params, data: Vectors) -> Array:
    """Compute the attention of each sequence, (n, T)."""
    return jax.nn.softmax(data.dot(params.W @ params.p), axis=1)


def relevant(params: Params, data: Vectors) -> dict[str, Array]:
    """Attention on the relevant token where labels are right, and flipped; accuracy by the true classes."""
    n, mass = data.num_examples, attention(params, data)
    flipped = data.targets != classes(n)
    parts = {"clean": ~flipped, "flipped": flipped}
    found = {f"attention_{name}": jnp.where(x, mass[:, 0], 0).sum() / x.sum() for name, x in parts.items()}
    outputs = (mass * data.dot(params.v)).sum(axis=1)
    return found | {"true_accuracy": (outputs * classes(n) > 0).mean(dtype=mass.dtype)}
