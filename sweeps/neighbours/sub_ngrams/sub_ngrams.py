"""Simplified two-layer transformer of the paper, its k-gram constructions and its optimiser."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from gram_tables import Grams
from jax import Array

import jaxattn as ja


class Simplified(ja.Model[Grams]):
    """Positional attention with `heads` heads, then content-based attention at the last position.

    Attributes:
        heads: number of heads H of the first layer. An n-gram task requires n - 1 heads.
        start: √d times the standard deviation of the entries of Q and K.
        grams: 0 for random weights; k for the weights that implement the k-gram estimator.
        scale: scale c of the construction. Each score in the second layer is c times the number of matching
            tokens.
    """

    takes: ClassVar[type[Grams]] = Grams

    heads: int
    start: float = 1.0
    grams: int = 0
    scale: float = 1.0

    def init(self, key: Array, like: Grams, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample V, Q and K with A = 0, or return the construction for a k-gram estimator."""
        S, H, T = like.vocab_size, self.heads, like.ids.shape[1]
        d = S * (H + 1)
        keys = jax.random.split(key, 3)
        A = jnp.zeros((H, T, T), dtype)
        if not self.grams:
            V = jax.random.normal(keys[0], (H, S, S), dtype) / S**0.5
            Q, K = (self.start * jax.random.normal(k, (d, d), dtype) / d**0.5 for k in keys[1:])
            return {"A": A, "V": V, "Q": Q, "K": K}
        used = self.grams - 1
        for lag in range(1, used + 1):
            A = A.at[lag - 1].set(self.scale * jnp.eye(T, k=-lag, dtype=dtype))
        size = jnp.sqrt(jnp.asarray(self.scale, dtype))
        Q = size * jnp.diag(jnp.arange(d) < used * S).astype(dtype)
        K = jnp.roll(Q, S, axis=0)
        V = jnp.broadcast_to(jnp.eye(S, dtype=dtype), (H, S, S))
        return {"A": A, "V": V, "Q": Q, "K": K}

    def attention(self, params: dict[str, Array], data: Grams) -> tuple[Array, Array]:
        """Compute the (H, T, T) attention of the first layer, and the (n, T) attention of the second layer.

        The second layer attends from the last position only.
        """
        x = jax.nn.one_hot(data.ids, data.vocab_size, dtype=params["A"].dtype)
        n, T, S = x.shape
        first = jax.nn.softmax(jnp.where(jnp.tri(T, dtype=bool), params["A"], -jnp.inf), axis=-1)
        flat = x.swapaxes(0, 1).reshape(T, n * S)
        moved = (first.reshape(-1, T) @ flat).reshape(-1, T, n, S)
        streams = jnp.concatenate([x[None], jnp.einsum("htns,hsr->hntr", moved, params["V"])])
        y = streams.transpose(1, 2, 0, 3).reshape(n, T, -1)
        query = y[:, -1] @ params["Q"] @ params["K"].T
        return first, jax.nn.softmax((y @ query[:, :, None])[:, :, 0], axis=-1)

    def outputs(self, params: dict[str, Array], data: Grams) -> Array:
        """Compute the probabilities of the next token after the last position as an (n, V) array."""
        _, second = self.attention(params, data)
        return (second[:, None] @ jax.nn.one_hot(data.ids, data.vocab_size, dtype=second.dtype))[:, 0]


def adamw(step_size: optax.Schedule) -> optax.GradientTransformation:
    """Return AdamW with the settings of the authors: no momentum, and weight decay 1e-4."""
    return optax.adamw(step_size, b1=0.0, weight_decay=1e-4)
