"""Random multi-head attention layers of finite and infinite width, and moments of their outputs."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors

TOKENS = 4


def tokens(key: Array, *, sequences: int, dim: int) -> Vectors:
    """Sample x_i = W_i h for i = 1, ..., 4 with h ~ N(0, I) and entries of W_i ~ N(0, 1/dim)."""
    h_key, X_key = jax.random.split(key)
    size = jnp.linalg.norm(jax.random.normal(h_key, (sequences, dim)), axis=1) / dim**0.5
    X = size[:, None, None] * jax.random.normal(X_key, (sequences, TOKENS, dim))
    return Vectors(targets=jnp.zeros(sequences), X=X)


class RandomLayer(ja.Model[Vectors]):
    """First coordinate of the first token's output, H^(-1/2) Σ_h softmax(x Q_h K_hᵀ Xᵀ/√n) X V_h O_h."""

    takes: ClassVar[type[Vectors]] = Vectors

    heads: int = 2

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample all weights from N(0, 1/n)."""
        keys, n = jax.random.split(key, 4), like.dim
        shape = (self.heads, n, n)
        return {
            name: jax.random.normal(k, shape, dtype) / n**0.5 for name, k in zip("QKVO", keys, strict=True)
        }

    def outputs(self, params: dict[str, Array], data: Vectors) -> Array:
        """Compute the coordinate of each sequence, (N,)."""
        X, n = data.X, data.dim
        q, k, v = (jnp.einsum("Ntd,hde->hNte", X, params[name]) for name in "QKV")
        attention = jax.nn.softmax(jnp.einsum("hNe,hNse->hNs", q[:, :, 0], k) / n**0.5, axis=-1)
        return jnp.einsum("hNs,hNse,he->N", attention, v, params["O"][:, :, 0]) / self.heads**0.5
