"""Benign overfitting of the token that attention selects: W and p move, labels are noisy."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors


def signals(
    key: Array, *, dim: int, length: int = 8, sequences: int = 20, signal: float = 20.0, weak: float = 0.1
) -> Vectors:
    """Draw x_1 = μ_c + noise, x_2 and x_3 with a weak μ_c and μ_-c, and noise; μ_± = signal · e_1, e_2."""
    y = jnp.where(jnp.arange(sequences) < sequences // 2, 1, -1).astype(jnp.int32)
    mu = signal * jnp.eye(2, dim)
    own, other = mu[(1 - y) // 2], mu[(1 + y) // 2]
    X = jax.random.normal(key, (sequences, length, dim))
    X = X.at[:, 0].add(own).at[:, 1].add(weak * own).at[:, 2].add(weak * other)
    return Vectors(targets=y, X=X, classes=2)


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


class Relevant(ja.Probe):
    """Attention on the relevant token, where the label says its class and where it was flipped."""

    def measure(self, seen: ja.probes.ProbeContext) -> dict[str, Array]:
        """Measure one seed on its training data, whose first half is of class 1 before labels flip."""
        data = seen.data.train
        mass, half = attention(seen.params, data)[:, 0], data.num_examples // 2
        clean = (data.targets > 0) == (jnp.arange(data.num_examples) < half)
        parts = {"clean": clean, "flipped": ~clean}
        return {f"attention_{name}": jnp.where(x, mass, 0).sum() / x.sum() for name, x in parts.items()}
