"""Data, model and probe of an item. TODO: replace all three with those of the paper."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

import jaxattn as ja
from jaxattn.data import Vectors


def tokens(key: Array, *, dim: int, length: int, sequences: int) -> Vectors:
    """Sample tokens from N(0, I) and labels y = ±1; shift the first token of each sequence by 2 y e_1."""
    label_key, token_key = jax.random.split(key)
    y = jax.random.rademacher(label_key, (sequences,), jnp.int32)
    X = jax.random.normal(token_key, (sequences, length, dim))
    return Vectors(targets=y, X=X.at[:, 0, 0].add(2 * y), classes=2)


class Params(NamedTuple):
    """Query p and output weights v."""

    p: Array  # (d,)
    v: Array  # (d,)


class Attention(ja.Model[Vectors], frozen=True):
    """Single-query attention, f(X) = Σ_t q_t x_t·v, where q is the softmax over t of x_t·p."""

    takes: ClassVar[type[Vectors]] = Vectors

    def init(self, key: Array, like: Vectors, *, dtype: DTypeLike) -> Params:
        """Return p = 0 and a random v with norm close to 1."""
        return Params(jnp.zeros(like.dim, dtype), jax.random.normal(key, (like.dim,), dtype) / like.dim**0.5)

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute the output f(X) for each sequence X, (n,)."""
        return (jax.nn.softmax(data.dot(params.p), axis=1) * data.dot(params.v)).sum(axis=1)


def first_step(v: Array, data: Vectors) -> Array:
    """Compute -∂L/∂p at p = 0, (d,): the mean over sequences of σ(-y f) y Cov_t(x_t, x_t·v)."""
    values, centred = data.dot(v), data.X - data.X.mean(axis=1, keepdims=True)
    weight = jax.nn.sigmoid(-data.targets * values.mean(axis=1)) * data.targets
    return jnp.einsum("n,ntd,nt->d", weight, centred, values) / values.size


def cosine_with_first_step(params: Params, data: Vectors) -> Array:
    """Compute the cosine between p and the closed-form first step; return 0 if p = 0."""
    g = first_step(params.v, data)
    norms = jnp.linalg.norm(params.p) * jnp.linalg.norm(g)
    return jnp.where(norms > 0, params.p @ g / jnp.where(norms > 0, norms, 1), 0)
