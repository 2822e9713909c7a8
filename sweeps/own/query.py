"""Gaussian tokens with one query per sequence, scores x_t·W z, and a max-margin certificate for W."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.attention.scores import from_query
from jaxattn.data import Vectors
from jaxattn.theory import Scores


def signal(key: Array, *, dim: int, length: int, sequences: int, strength: float = 3.0) -> Vectors:
    """Sample x_t ~ N(0, I/d), add y e_1 to the first token, and set the query to z = x_1 + noise."""
    label_key, token_key, query_key = jax.random.split(key, 3)
    y = jax.random.rademacher(label_key, (sequences,), jnp.int32)
    X = jax.random.normal(token_key, (sequences, length, dim)) / jnp.sqrt(dim)
    X = X.at[:, 0, 0].add(strength * y)
    z = X[:, 0] + jax.random.normal(query_key, (sequences, dim)) / jnp.sqrt(dim)
    return Vectors(targets=y, X=X, z=z, classes=2)


class Params(NamedTuple):
    """Parameters of the model."""

    W: Array  # (d, d) key-query matrix
    v: Array  # (d,) read-out vector


class Bilinear(ja.Model[Vectors]):
    """Attention f(X, z) = Σ_t q_t x_t·v with scores x_t·W z and v = e_1. W is initialised to small values."""

    takes: ClassVar[type[Vectors]] = Vectors
    linear_in: ClassVar[str] = "W"

    scale: float = 0.01

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Sample the initial parameters for one seed."""
        W = self.scale * jax.random.normal(key, (like.dim, like.dim), dtype)
        return Params(W, jnp.zeros(like.dim, dtype).at[0].set(1))

    def attention(self, params: Params, data: Vectors) -> Array:
        """Compute the attention for each query as an (n, T) array."""
        scores = jnp.einsum("ntd,de,ne->nt", data.X, params.W, data.z)
        return jax.nn.softmax(data.masked(scores), axis=1)

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f for each sequence as an (n,) array."""
        return jnp.einsum("nt,ntd,d->n", self.attention(params, data), data.X, params.v)

    def scores(self, params: Params, data: Vectors) -> Scores:
        """Return the scores as a linear function Φ vec W with Φ = x ⊗ z, and the values x·v.

        The exact flow and certificates use this form.
        """
        return from_query(data.X, data.z, data.targets, values=data.X @ params.v, mask=data.mask)


def attention_on_signal(params: Params, data: Vectors) -> Array:
    """Compute the attention on the first token, averaged over sequences."""
    return Bilinear().attention(params, data)[:, 0].mean()
