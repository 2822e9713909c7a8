"""Transformer layer with linear attention, in which the attention to relevant numbers can be scaled."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from window_sums import WindowSums

import jaxattn as ja


def normalised(x: Array, scale: Array, shift: Array) -> Array:
    """Apply layer normalisation to the last axis."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


class Transformer(ja.Model[WindowSums]):
    """One-head linear attention and an MLP, which predict the next token at every position."""

    takes: ClassVar[type[WindowSums]] = WindowSums

    dim: int
    attention_scale: float = 1.0  # factor on the attention from outputs 2 to n to their two numbers

    def init(self, key: Array, like: WindowSums, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample normal weights with standard deviation 0.02, or 0.02/√2 for both output matrices."""
        d, V, T = self.dim, like.vocab_size, like.ids.shape[1]
        shapes = dict.fromkeys("QKVO", (d, d)) | {"up": (d, 4 * d), "down": (4 * d, d)}
        biases = {f"{name}_bias": jnp.zeros(shape[1], dtype) for name, shape in shapes.items()}
        shapes |= {"E": (V, d), "P": (T, d), "head": (d, V)}
        std = dict.fromkeys(shapes, 0.02) | dict.fromkeys(("O", "down"), 0.02 / 2**0.5)
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        weights = {n: std[n] * jax.random.normal(keys[n], shapes[n], dtype) for n in shapes}
        norms = {"scale": jnp.ones((3, d), dtype), "shift": jnp.zeros((3, d), dtype)}
        return weights | biases | norms

    def outputs(self, params: dict[str, Array], data: WindowSums) -> Array:
        """Compute the logits as an (n, T, V) array."""
        return self.states(params, data)[0] @ params["head"]

    def attention(self, params: dict[str, Array], data: WindowSums) -> Array:
        """Compute the attention from each position as an (n, T, T) array."""
        return self.states(params, data)[1]

    def states(self, params: dict[str, Array], data: WindowSums) -> tuple[Array, Array]:
        """Compute the hidden states before the head as an (n, T, d) array, and the (n, T, T) attention."""

        def linear(x: Array, name: str) -> Array:
            return x @ params[name] + params[f"{name}_bias"]

        norms = list(zip(params["scale"], params["shift"], strict=True))
        x = params["E"][data.ids] + params["P"]
        y = normalised(x, *norms[0])
        q, k, v = (linear(y, name) for name in "QKV")
        attention = jnp.einsum("ntd,nsd->nts", q, k) / self.dim**0.5
        outputs = jnp.arange(x.shape[1]) > data.numbers
        scaled = data.relevant & outputs[:, None]
        attention = jnp.where(data.causal, attention, 0) * jnp.where(scaled, self.attention_scale, 1)
        attention = ja.models.activation("attention", attention)
        x = x + linear(attention @ v, "O")
        x = x + linear(jax.nn.gelu(linear(normalised(x, *norms[1]), "up")), "down")
        return normalised(x, *norms[2]), attention
