"""Contrastive loss over minibatches, in which a view matches only the other view of the same sequence."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja


class Pairs(ja.Dataset):
    """n pairs of views, each with T tokens in R^d. The target is the signal that both views share."""

    left: Array  # (n, T, d)
    right: Array  # (n, T, d)


def views(key: Array, *, dim: int, length: int, sequences: int, noise: float = 0.5) -> Pairs:
    """Sample pairs of views whose first tokens share a signal u ~ N(0, I). All other tokens are noise."""
    signal_key, *keys = jax.random.split(key, 3)
    u = jax.random.normal(signal_key, (sequences, dim))
    left, right = (noise * jax.random.normal(k, (sequences, length, dim)) for k in keys)
    return Pairs(targets=u, left=left.at[:, 0].add(u), right=right.at[:, 0].add(u))


class Encoder(ja.Model[Pairs]):
    """Encoder g(X) = Aᵀ Σ_t q_t x_t with scores s ‖x_t‖², so that attention depends on token norms."""

    takes: ClassVar[type[Pairs]] = Pairs

    features: int

    def init(self, key: Array, like: Pairs, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the initial parameters for one seed."""
        dim = like.left.shape[-1]
        A = jax.random.normal(key, (dim, self.features), dtype) / dim**0.5
        return {"A": A, "s": jnp.zeros((), dtype)}

    def outputs(self, params: dict[str, Array], data: Pairs) -> Array:
        """Compute features with norm 1 for both views as an (n, 2, features) array."""
        x = jnp.stack([data.left, data.right], axis=1)
        attention = jax.nn.softmax(params["s"] * (x**2).sum(-1), axis=-1)
        g = jnp.einsum("nvt,nvtd,df->nvf", attention, x, params["A"])
        return g / jnp.linalg.norm(g, axis=-1, keepdims=True)


class InfoNCE(ja.Loss):
    """InfoNCE loss -log softmax_j(g_i·g'_j / τ) at j = i, averaged over the pairs i of a batch."""

    coupled: ClassVar[bool] = True

    temperature: float = 0.2

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """Compute the loss of a whole batch as a scalar."""
        similar = outputs[:, 0] @ outputs[:, 1].T / self.temperature
        return (jax.nn.logsumexp(similar, axis=1) - jnp.diagonal(similar)).mean()


def matched(params: dict[str, Array], data: Pairs) -> Array:
    """Compute the fraction of left views whose nearest right view belongs to the same pair."""
    g = Encoder(features=params["A"].shape[1]).outputs(params, data)
    return ((g[:, 0] @ g[:, 1].T).argmax(axis=1) == jnp.arange(data.num_examples)).mean()
