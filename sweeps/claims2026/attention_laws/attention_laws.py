"""Multi-head attention with separate Q, K, V and O, and the matrices that its gradient flow conserves."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors


def regression(key: Array, *, dim: int, length: int, sequences: int) -> Vectors:
    """Sample tokens, queries and targets with standard normal entries."""
    first, second, third = jax.random.split(key, 3)
    return Vectors(
        targets=jax.random.normal(third, (sequences, dim)),
        X=jax.random.normal(first, (sequences, length, dim)),
        z=jax.random.normal(second, (sequences, dim)),
    )


def rotate(x: Array, positions: Array) -> Array:
    """Apply rotary position embeddings to an array with shape (..., T, r).

    At position t, the pair of coordinates 2k and 2k + 1 is rotated by the angle t/2^k.
    """
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    angles = positions[:, None] / 2.0 ** jnp.arange(pairs.shape[-2])
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.stack(
        [cos * pairs[..., 0] - sin * pairs[..., 1], sin * pairs[..., 0] + cos * pairs[..., 1]], axis=-1
    )
    return turned.reshape(x.shape)


class Heads(ja.Model[Vectors]):
    """Multi-head attention f(X, z) = Σ_h O_h V_hᵀ Σ_t q_ht x_t.

    The attention q_h is the softmax over t of (K_hᵀ x_t)·(Q_hᵀ z). The matrices Q, K, V and O have shape
    (heads, dim, rank). With `rotary`, queries and keys are rotated according to their positions.
    """

    takes: ClassVar[type[Vectors]] = Vectors

    heads: int = 2
    rank: int = 4
    rotary: bool = False

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample Q, K, V and O with entries from N(0, 1/dim)."""
        shape = (self.heads, like.dim, self.rank)
        keys = jax.random.split(key, 4)
        return {
            name: jax.random.normal(own, shape, dtype) / like.dim**0.5
            for name, own in zip("QKVO", keys, strict=True)
        }

    def outputs(self, params: dict[str, Array], data: Vectors) -> Array:
        """Compute f for each sequence as an (n, dim) array."""
        keys = jnp.einsum("ntd,hdr->nhtr", data.X, params["K"])
        queries = jnp.einsum("nd,hdr->nhr", data.z, params["Q"])[:, :, None]
        if self.rotary:
            length = data.X.shape[1]
            keys = rotate(keys, jnp.arange(length))
            queries = rotate(queries, jnp.full((1,), length))
        weights = jax.nn.softmax(jnp.einsum("nhtr,nhsr->nht", keys, queries), axis=-1)
        values = jnp.einsum("nht,ntd,hdr->nhr", weights, data.X, params["V"])
        return jnp.einsum("nhr,hdr->nd", values, params["O"])


def laws(params: dict[str, Array], data: Vectors) -> dict[str, Array]:
    """Compute the quantities of the conservation laws and a control, for all heads, as flat arrays.

    `query_key` is QᵀQ - KᵀK, `blocks` contains the traces of its 2 × 2 diagonal blocks, and `value_output` is
    VᵀV - OᵀO. The control is QᵀQ + KᵀK.
    """
    of = {name: jnp.einsum("hdr,hds->hrs", x, x) for name, x in params.items()}
    difference = of["Q"] - of["K"]
    diagonal = jnp.diagonal(difference, axis1=1, axis2=2)
    return {
        "query_key": difference.ravel(),
        "value_output": (of["V"] - of["O"]).ravel(),
        "blocks": diagonal.reshape(len(diagonal), -1, 2).sum(axis=2).ravel(),
        "control": (of["Q"] + of["K"]).ravel(),
    }
