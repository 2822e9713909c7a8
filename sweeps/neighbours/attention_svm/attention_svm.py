"""Attention as an SVM: with scores x_t·W z, normalised descent drives W to a hard-margin direction."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.attention.scores import from_query
from jaxattn.data import Vectors
from jaxattn.theory import Scores


def unit_tokens(key: Array, *, dim: int = 10, length: int = 8, sequences: int = 6) -> Vectors:
    """Sample tokens and queries uniformly on the unit sphere, and labels ±1 with equal probability."""
    tokens, queries, labels = jax.random.split(key, 3)
    X = jax.random.normal(tokens, (sequences, length, dim))
    z = jax.random.normal(queries, (sequences, dim))
    X, z = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (X, z))
    return Vectors(targets=jax.random.rademacher(labels, (sequences,), jnp.int32), X=X, z=z, classes=2)


class Params(NamedTuple):
    """Key-query matrix W and head v."""

    W: Array
    v: Array


class Attention(ja.Model[Vectors]):
    """Attention f(X, z) = Σ_t q_t γ_t with values γ_t = x_t·v and scores x_t·W z, for a fixed unit vector v.

    With `all_digits`, f is computed as γ_top + Σ_t q_t (γ_t - γ_top) for the top token, so that gradients
    keep their precision. In the plain form, gradients consist of rounding errors once the attention on all
    other tokens is below 1e-16.
    """

    takes: ClassVar[type[Vectors]] = Vectors
    linear_in: ClassVar[str] = "W"

    scale: float = 0.1
    all_digits: bool = False

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Sample W and the head for one seed."""
        matrix, head = jax.random.split(key)
        v = jax.random.normal(head, (like.dim,), dtype)
        W = self.scale * jax.random.normal(matrix, (like.dim, like.dim), dtype)
        return Params(W, v / jnp.linalg.norm(v))

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f for each sequence as an (n,) array."""
        q, values = attention(params, data), data.dot(params.v)
        top = jnp.take_along_axis(values, q.argmax(axis=1)[:, None], axis=1) * self.all_digits
        return top[:, 0] + (q * (values - top)).sum(axis=1)

    def scores(self, params: Params, data: Vectors) -> Scores:
        """Return the scores as a linear function Φ vec W with Φ = x ⊗ z, and the values x·v."""
        return from_query(data.X, data.z, data.targets, values=data.dot(params.v))


def attention(params: Params, data: Vectors) -> Array:
    """Compute the attention for each sequence as an (n, T) array."""
    return jax.nn.softmax(data.dot(data.z @ params.W.T), axis=1)


def largest_attention(params: Params, data: Vectors) -> Array:
    """Compute the largest attention in each sequence, averaged over sequences."""
    return attention(params, data).max(axis=1).mean()
