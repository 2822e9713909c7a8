"""Softmax attention on L Gaussian tokens, compared with its limit on infinite prompts."""

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors


def prompts(key: Array, *, length: int, sequences: int) -> Vectors:
    """Sample L tokens and a query z from N(0, 1) for each prompt.

    The target is z, the limit of the attention output on infinite prompts if u = 1.
    """
    first, second = jax.random.split(key)
    z = jax.random.normal(second, (sequences, 1))
    return Vectors(targets=z, X=jax.random.normal(first, (sequences, length, 1)), z=z)


class Attention(ja.Model[Vectors]):
    """Attention f(X, z) = Σ_t q_t x_t, where q is the softmax over t of u x_t z."""

    strength: float

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Return the initial parameter u = `strength`."""
        return {"u": jnp.asarray(self.strength, dtype)}

    def outputs(self, params: dict[str, Array], data: Vectors) -> Array:
        """Compute f for each prompt as an (n, 1) array."""
        weights = jax.nn.softmax(params["u"] * data.X[:, :, 0] * data.z, axis=1)
        return jnp.einsum("nt,ntd->nd", weights, data.X)


def error(params: dict[str, Array], data: Vectors) -> Array:
    """Return the mean squared distance between f and its limit u z."""
    return jnp.mean((Attention(strength=0.0).outputs(params, data) - params["u"] * data.z) ** 2)
