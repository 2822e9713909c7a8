"""Random multi-head attention layers of finite and infinite width, and the moments of their outputs."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors

TOKENS = 4


def tokens(key: Array, *, sequences: int, dim: int) -> Vectors:
    """Sample four tokens x_i = W_i h with h ~ N(0, I) and matrices W_i with entries from N(0, 1/dim)."""
    h_key, X_key = jax.random.split(key)
    size = jnp.linalg.norm(jax.random.normal(h_key, (sequences, dim)), axis=1) / dim**0.5
    X = size[:, None, None] * jax.random.normal(X_key, (sequences, TOKENS, dim))
    return Vectors(targets=jnp.zeros(sequences), X=X)


class RandomLayer(ja.Model[Vectors]):
    """Random attention layer H^(-1/2) Σ_h softmax(x Q_h K_hᵀ Xᵀ / √n) X V_h O_h with H heads of width n.

    The query x is the first token of X. The model returns the first coordinate of the output.
    """

    takes: ClassVar[type[Vectors]] = Vectors

    heads: int = 2

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample all entries of Q, K, V and O from N(0, 1/n)."""
        keys, n = jax.random.split(key, 4), like.dim
        shape = (self.heads, n, n)
        return {
            name: jax.random.normal(k, shape, dtype) / n**0.5 for name, k in zip("QKVO", keys, strict=True)
        }

    def outputs(self, params: dict[str, Array], data: Vectors) -> Array:
        """Compute the first output coordinate at the first token of each sequence as an (N,) array."""
        X, n = data.X, data.dim
        q, k, v = (jnp.einsum("Ntd,hde->hNte", X, params[name]) for name in "QKV")
        attention = jax.nn.softmax(jnp.einsum("hNe,hNse->hNs", q[:, :, 0], k) / n**0.5, axis=-1)
        return jnp.einsum("hNs,hNse,he->N", attention, v, params["O"][:, :, 0]) / self.heads**0.5


def finite_layer(key: Array, n: int, heads: int) -> tuple[Array, Array]:
    """Sample a layer of width n. Return the variance of its output, and the scores of its first head.

    The variance is conditional on X, Q, K and V. Given these, the output is normal with variance
    Σ_h ‖a_h X V_h‖² / (n · H). Given X, the columns of X Q are normal with covariance X Xᵀ / n. Therefore, no
    n × n matrix is needed.
    """
    X_key, head_key = jax.random.split(key)
    X = tokens(X_key, sequences=1, dim=n).X[0]
    root = jnp.linalg.cholesky(X @ X.T / n)

    def head(key: Array) -> tuple[Array, Array]:
        q_key, k_key, v_key = jax.random.split(key, 3)
        q = root[0, 0] * jax.random.normal(q_key, (n,))
        scores = root @ jax.random.normal(k_key, (TOKENS, n)) @ q / n**0.5
        attended = jax.nn.softmax(scores) @ root @ jax.random.normal(v_key, (TOKENS, n))
        return (attended**2).mean(), scores

    variances, scores = jax.lax.map(head, jax.random.split(head_key, heads))
    return variances.mean(), scores[0]


def limit_layer(key: Array, heads: int) -> Array:
    """Sample scores from N(0, 1), and return the variance Σ_h ‖a_h‖² / H of the output given these scores."""
    attention = jax.nn.softmax(jax.random.normal(key, (heads, TOKENS)), axis=1)
    return (attention**2).sum(axis=1).mean()
