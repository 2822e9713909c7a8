"""In-context linear regression by one linear attention layer, and its global minimum in closed form."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

import jaxattn as ja

SPECTRUM = np.array([1, 1, 1 / 4, 1 / 16, 1])  # eigenvalues λ of the covariance Σ of x


class Prompts(ja.Dataset):
    """Prompts of n pairs (x, w·x) and a query (x, 0). The target is w·x for the query."""

    Z: Array  # (m, n + 1, d + 1)
    U: Array  # (m, d, d) eigenvectors of Σ in columns, the same for all prompts
    inverse: bool = struct.field(pytree_node=False, kw_only=True)


def prompts(key: Array, task_key: Array, *, sequences: int, length: int, inverse: bool = False) -> Prompts:
    """Sample x ~ N(0, Σ), and one w per prompt from N(0, I), or from N(0, Σ^-1) if `inverse` is True.

    The eigenvectors of Σ are random.
    """
    d, std = len(SPECTRUM), jnp.sqrt(SPECTRUM)
    U = jax.random.orthogonal(task_key, d)
    x_key, w_key = jax.random.split(key)
    x = jax.random.normal(x_key, (sequences, length + 1, d)) * std @ U.T
    w = jax.random.normal(w_key, (sequences, d)) / (std if inverse else 1) @ U.T
    y = jnp.einsum("mtd,md->mt", x, w)
    Z = jnp.concatenate([x, y.at[:, -1].set(0)[:, :, None]], axis=2)
    return Prompts(targets=y[:, -1], Z=Z, U=jnp.broadcast_to(U, (sequences, d, d)), inverse=inverse)


def step_sizes(length: int, inverse: bool) -> np.ndarray:
    """Compute the eigenvalues ω_i / ((1 + 1/n) λ_i ω_i + (1/n) Σ_j λ_j ω_j) of the optimal A.

    λ and ω are the eigenvalues of the covariances of x and w.
    """
    omega = 1 / SPECTRUM if inverse else np.ones_like(SPECTRUM)
    return omega / ((1 + 1 / length) * SPECTRUM * omega + (SPECTRUM * omega).sum() / length)


def least_loss(length: int, inverse: bool) -> float:
    """Compute the loss Σ_i λ_i ω_i (1 - λ_i a_i) of the optimal A, whose eigenvalues are a_i."""
    omega = 1 / SPECTRUM if inverse else np.ones_like(SPECTRUM)
    return float((SPECTRUM * omega * (1 - SPECTRUM * step_sizes(length, inverse))).sum())


class Params(NamedTuple):
    """Value matrix P and merged key-query matrix Q."""

    P: Array  # (d + 1, d + 1)
    Q: Array  # (d + 1, d + 1)


class LinearAttention(ja.Model[Prompts]):
    """Linear attention layer Z + P Z M (Zᵀ Q Z)/n, where the mask M omits the query.

    The output is minus the last entry of the query token.
    """

    takes: ClassVar[type[Prompts]] = Prompts

    start: float = 0.1

    def init(self, key: Array, like: Prompts, *, dtype: jnp.dtype) -> Params:
        """Sample normal entries with standard deviation `start`."""
        size = like.Z.shape[2]
        return Params(*(self.start * jax.random.normal(key, (2, size, size), dtype)))

    def outputs(self, params: Params, data: Prompts) -> Array:
        """Predict w·x for each query as an (m,) array. Only the last row of P has an effect."""
        context, query = data.Z[:, :-1], data.Z[:, -1]
        scores = jnp.einsum("mta,ma->mt", context, query @ params.Q.T)
        return -(context @ params.P[-1] * scores).mean(axis=1)


def squares(outputs: Array, targets: Array) -> Array:
    """Compute the squared error (f - y)² for each prompt as an (m,) array."""
    return (outputs - targets) ** 2


def minimum(data: Prompts) -> Params:
    """Return the global minimum in closed form.

    The last entry of P is 1, and the upper-left block of Q is -A. All other entries are 0.
    """
    size, U = data.Z.shape[2], data.U[0]
    A = U * step_sizes(data.Z.shape[1] - 1, data.inverse) @ U.T
    zero = jnp.zeros((size, size), data.Z.dtype)
    return Params(zero.at[-1, -1].set(1), zero.at[:-1, :-1].set(-A))
