"""Prompts for in-context linear regression, reduced to cubic features that preserve mean squared errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

import jaxattn as ja

CONTEXT = 31  # pairs (x, y) before the query


class Rows(ja.Dataset):
    """Cubic features on which linear attention has the same mean squared error as on the sequences."""

    features: Array
    dim: int = struct.field(pytree_node=False, kw_only=True)
    white: bool = struct.field(pytree_node=False, kw_only=True)


def spectrum(dim: int, white: bool) -> np.ndarray:
    """Return the eigenvalues of the covariance of x, whose sum is 1.

    They are equal if `white` is True, and otherwise proportional to 1, ..., D.
    """
    values = np.ones(dim) if white else 1.0 + np.arange(dim)
    return values / values.sum()


def saddles(dim: int, white: bool) -> np.ndarray:
    """Return the loss after the m largest components have been learned, for m = 0, ..., D."""
    values = spectrum(dim, white)[::-1]
    return 1 - np.cumsum([0, *values / (1 + (1 + 1 / values) / CONTEXT)])


def cubic(X: Array) -> Array:
    """Compute the features S_ab x_c with a ≤ b from tokens X with shape (n, N + 1, D + 1).

    S is the sum of the outer products of the tokens, and x is the query. The result has one row per sequence.
    """
    S = jnp.einsum("nta,ntb->nab", X, X)
    upper = S[:, *jnp.triu_indices(X.shape[2])]
    return jnp.einsum("np,nc->npc", upper, X[:, -1, :-1]).reshape(len(X), -1)


def prompts(key: Array, w: Array, white: bool) -> tuple[Array, Array]:
    """Sample tokens (x, y) with y = w·x, and return them with the answers to the queries.

    The last token of each sequence is the query (x, 0), and its answer is w·x.
    """
    scale = jnp.sqrt(spectrum(w.shape[1], white))
    x = scale * jax.random.normal(key, (len(w), CONTEXT + 1, w.shape[1]))
    y = jnp.einsum("ntd,nd->nt", x, w)
    return jnp.concatenate([x, y.at[:, -1].set(0)[:, :, None]], axis=2), y[:, -1]


def contexts(key: Array, *, sequences: int, dim: int, white: bool = False) -> Rows:
    """Sample sequences, each with its own w, and reduce them to a square root of their second moments.

    The second moments are those of the cubic features and the answer.
    """
    task_key, token_key = jax.random.split(key)
    w = jax.random.normal(task_key, (sequences, dim))
    w = w - w.mean(axis=0)
    w = (
        w @ jnp.linalg.inv(jnp.linalg.cholesky(w.T @ w / sequences)).T
    )  # covariance I, as in the published code
    chunk = math.gcd(sequences, 1000)
    size = dim * (dim + 1) * (dim + 2) // 2

    def more(moments: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
        X, y = prompts(*given, white)
        rows = jnp.concatenate([cubic(X), y[:, None]], axis=1)
        return moments + rows.T @ rows / sequences, None

    keys = jax.random.split(token_key, sequences // chunk)
    moments, _ = jax.lax.scan(more, jnp.zeros((size + 1, size + 1)), (keys, w.reshape(-1, chunk, dim)))
    values, vectors = jnp.linalg.eigh(moments)
    factor = jnp.sqrt((size + 1) * jnp.maximum(values, 0))[:, None] * vectors.T
    return Rows(features=factor[:, :-1], targets=factor[:, -1], dim=dim, white=white)
