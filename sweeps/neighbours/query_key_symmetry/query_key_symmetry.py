"""Small BERT as encoder or decoder, and the symmetry and directionality of its query-key matrices."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences


def symmetry(M: Array) -> Array:
    """Compute the symmetry tr(M M)/‖M‖² of matrices in the last two axes.

    It is 1 for symmetric matrices and -1 for antisymmetric matrices.
    """
    return jnp.einsum("...ij,...ji->...", M, M) / (M**2).sum(axis=(-2, -1))


def directionality(M: Array) -> Array:
    """Compute the directionality (c - r)/(c + r) of matrices in the last two axes, or 0 if c + r = 0.

    c is the sum over columns of the amount by which the norm of the column exceeds the mean norm plus two
    standard deviations. r is the same sum for rows.
    """

    def excess(norms: Array) -> Array:
        limit = norms.mean(axis=-1) + 2 * norms.std(axis=-1, ddof=1)
        return jax.nn.relu(norms - limit[..., None]).sum(axis=-1)

    columns, rows = (excess(jnp.sqrt((M**2).sum(axis=axis))) for axis in (-2, -1))
    return jnp.where(
        columns + rows > 0, (columns - rows) / jnp.where(columns + rows > 0, columns + rows, 1), 0
    )


def normalised(x: Array, scale: Array, shift: Array) -> Array:
    """Apply layer normalisation to the last axis."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12) * scale + shift


class SmallBert(ja.Model[Sequences]):
    """BERT with tied word embeddings, one-head attention, and layer normalisation after each sublayer."""

    takes: ClassVar[type[Sequences]] = Sequences

    dim: int
    layers: int = 2
    causal: bool = False

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample normal weights with standard deviation 0.02."""
        d, L, V = self.dim, self.layers, like.vocab_size
        shapes = dict.fromkeys("QKVO", (L, d, d)) | {"up": (L, d, 4 * d), "down": (L, 4 * d, d)}
        shapes |= {"E": (V, d), "P": (like.ids.shape[1], d)}
        keys = jax.random.split(key, len(shapes))
        params = {n: 0.02 * jax.random.normal(k, shapes[n], dtype) for n, k in zip(shapes, keys, strict=True)}
        norms = {"scale": jnp.ones((2 * L + 1, d), dtype), "shift": jnp.zeros((2 * L + 1, d), dtype)}
        return params | norms | {"bias": jnp.zeros(V, dtype)}

    def outputs(self, params: dict[str, Array], data: Sequences) -> Array:
        """Compute the logits of all words at each position as an (n, T, V) array."""
        norms = list(zip(params["scale"], params["shift"], strict=True))
        x = normalised(params["E"][data.ids] + params["P"], *norms[-1])
        seen = data.causal if self.causal else jnp.ones((1, 1, 1), bool)
        for layer in range(self.layers):
            q, k, v = (x @ params[name][layer] for name in "QKV")
            scores = jnp.einsum("ntd,nsd->nts", q, k) / self.dim**0.5
            attention = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
            x = normalised(x + attention @ v @ params["O"][layer], *norms[2 * layer])
            hidden = jax.nn.gelu(x @ params["up"][layer])
            x = normalised(x + hidden @ params["down"][layer], *norms[2 * layer + 1])
        return x @ params["E"].T + params["bias"]


def structure(params: dict[str, Array], data: Sequences) -> dict[str, Array]:
    """Compute the symmetry and the directionality of W_qk = Q Kᵀ, averaged over layers."""
    M = params["Q"] @ params["K"].swapaxes(1, 2)
    return {"symmetry": symmetry(M).mean(), "directionality": directionality(M).mean()}
