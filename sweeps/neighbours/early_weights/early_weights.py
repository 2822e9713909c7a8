"""Attention-only transformer with full matrices, trained from zero initialisation."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences


class AttentionOnly(ja.Model[Sequences]):
    """Attention layers with a residual stream, whose outputs are next-word logits.

        h ← h + softmax(h W hᵀ + P) h V   in each layer,   logits = h O

    All trained weights are initialised to zero. Words are one-hot vectors if `dim` is 0, and otherwise fixed
    normal vectors with variance 1/dim.
    """

    takes: ClassVar[type[Sequences]] = Sequences

    layers: int
    dim: int = 0

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Return the word vectors, and zeros for all other parameters."""
        words, L, d = like.vocab_size, self.layers, self.dim or like.vocab_size
        vectors = (
            jax.random.normal(key, (words, d), dtype) / d**0.5 if self.dim else jnp.eye(words, dtype=dtype)
        )
        shapes = {"W": (L, d, d), "V": (L, d, d), "P": (L, like.ids.shape[1]), "O": (d, words)}
        return {"E": vectors} | {name: jnp.zeros(shape, dtype) for name, shape in shapes.items()}

    def outputs(self, params: dict[str, Array], data: Sequences) -> Array:
        """Compute the logits of the next word at each position as an (n, T, words) array."""
        h, order = params["E"][data.ids], jnp.arange(data.ids.shape[1])
        distance = jnp.maximum(order[:, None] - order, 0)
        for W, V, P in zip(params["W"], params["V"], params["P"], strict=True):
            scores = jnp.einsum("ntd,nsd->nts", h @ W, h) + P[distance]
            h = h + jax.nn.softmax(jnp.where(data.causal, scores, -jnp.inf), axis=-1) @ h @ V
        return h @ params["O"]
