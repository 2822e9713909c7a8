"""Two-layer attention-only transformer with relative positions, and its optimiser."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from chains import LENGTH, Chains
from jax import Array

import jaxattn as ja

LAYERS = 2
DECAYED = ("K", "O", "Q", "V", "head")


def normalised(x: Array, scale: Array, shift: Array) -> Array:
    """Apply layer normalisation to the last axis."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + shift


def by_distance(products: Array) -> Array:
    """Return an array with products[n, t, t - s] at [n, t, s]. Entries with s > t are arbitrary."""
    n, T, _ = products.shape
    padded = jnp.pad(products[:, :, ::-1], ((0, 0), (0, 0), (1, 0)))
    return padded.reshape(n, T + 1, T)[:, 1:]


class Transformer(ja.Model[Chains]):
    """Two attention layers with a residual stream, which predict the next token at every position."""

    takes: ClassVar[type[Chains]] = Chains

    dim: int

    def init(self, key: Array, like: Chains, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample normal weights with standard deviation 0.02, or 0.01 for the output matrices O."""
        k, d, L = like.vocab_size, self.dim, LAYERS
        shapes = dict.fromkeys("KOQV", (L, d, d)) | {"E": (k, d), "R": (L, LENGTH, d), "head": (d, k)}
        params = {}
        for name, one in zip(shapes, jax.random.split(key, len(shapes)), strict=True):
            params[name] = (0.01 if name == "O" else 0.02) * jax.random.normal(one, shapes[name], dtype)
        ones, zeros = jnp.ones((L + 1, d), dtype), jnp.zeros((L + 1, d), dtype)
        return params | {"scale": ones, "shift": zeros}

    def outputs(self, params: dict[str, Array], data: Chains) -> Array:
        """Compute the logits as an (n, T, k) array."""
        x, _ = self.layers(params, data)
        return normalised(x, params["scale"][-1], params["shift"][-1]) @ params["head"]

    def attention(self, params: dict[str, Array], data: Chains) -> Array:
        """Compute the attention of both layers as an (n, 2, T, T) array."""
        return jnp.stack(self.layers(params, data)[1], axis=1)

    def layers(self, params: dict[str, Array], data: Chains) -> tuple[Array, list[Array]]:
        """Compute the final residual stream as an (n, T, d) array, and the attention of each layer."""
        x, found = params["E"][data.ids], []
        for layer in range(LAYERS):
            y = normalised(x, params["scale"][layer], params["shift"][layer])
            q, k, v = (y @ params[name][layer] for name in "QKV")
            scores = jnp.einsum("ntd,nsd->nts", q, k) + by_distance(q @ params["R"][layer].T)
            found.append(jax.nn.softmax(jnp.where(data.causal, scores / self.dim**0.5, -jnp.inf), axis=-1))
            x = x + found[-1] @ v @ params["O"][layer]
        return x, found


def adamw(step_size: optax.Schedule) -> optax.GradientTransformation:
    """Return AdamW as in minGPT, with weight decay 0.1 for the matrices of linear layers only."""
    return optax.adamw(
        step_size, b2=0.95, weight_decay=0.1, mask=lambda params: {name: name in DECAYED for name in params}
    )
