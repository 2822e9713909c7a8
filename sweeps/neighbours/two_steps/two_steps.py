"""Two steps of gradient descent on p and v from zero, for sequences of a signal token and a noise token."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors


def signal_and_noise(key: Array, *, dim: int, sequences: int, ratio: float) -> Vectors:
    """Sample sequences of a signal token μ_y and a noise token ξ, for labels y = ±1.

    μ_+ = ρ e_1 and μ_- = ρ e_2 with ρ = ratio · √d. ξ is standard normal in the space orthogonal to both.
    """
    label_key, noise_key = jax.random.split(key)
    y = jax.random.rademacher(label_key, (sequences,), jnp.int32)
    signal = ratio * dim**0.5 * jax.nn.one_hot((1 - y) // 2, dim)
    noise = jax.random.normal(noise_key, (sequences, dim)).at[:, :2].set(0)
    return Vectors(targets=y, X=jnp.stack([signal, noise], axis=1), classes=2)


class Params(NamedTuple):
    """Query p and head v."""

    p: Array  # (d,)
    v: Array  # (d,)


class Attention(ja.Model[Vectors]):
    """Attention f(X) = Σ_t q_t x_t·v with scores x_t·p, where p and v start at 0."""

    takes: ClassVar[type[Vectors]] = Vectors

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Return initial parameters that are all zero."""
        return Params(jnp.zeros(like.dim, dtype), jnp.zeros(like.dim, dtype))

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f for each sequence as an (n,) array."""
        return (jax.nn.softmax(data.dot(params.p), axis=1) * data.dot(params.v)).sum(axis=1)
