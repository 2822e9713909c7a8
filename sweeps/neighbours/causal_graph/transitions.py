"""Transition matrices, and estimators of their rows for a known graph."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data import Sequences


def stationary(P: Array) -> Array:
    """Compute the stationary distributions of (n, S, S) transition matrices as an (n, S) array.

    The elimination does not use subtractions, so that there is no cancellation.
    """
    S = P.shape[-1]
    rows = P
    for k in range(S - 1, 0, -1):
        out = rows[:, :k, k] / jnp.maximum(rows[:, k, :k].sum(axis=1, keepdims=True), 1e-30)
        rows = rows.at[:, :k, k].set(out)
        rows = rows.at[:, :k, :k].add(out[:, :, None] * rows[:, k, None, :k])
    weights = [jnp.ones(len(P))]
    for k in range(1, S):
        weights.append(sum(weight * rows[:, i, k] for i, weight in enumerate(weights)))
    found = jnp.stack(weights, axis=1)
    return found / found.sum(axis=1, keepdims=True)


def dirichlet(key: Array, *, concentration: float, shape: tuple[int, ...]) -> Array:
    """Sample rows from a Dirichlet distribution. Entries below 1e-12 are replaced by 1e-12."""
    return jnp.maximum(jax.nn.softmax(jax.random.loggamma(key, concentration, shape), axis=-1), 1e-12)


def permutations(key: Array, *, shape: tuple[int, ...], noise: float = 0.15) -> Array:
    """Sample matrices (1 - noise) Π + noise / S, where Π are random permutation matrices."""
    order = jax.random.uniform(key, shape[:-1]).argsort(axis=-1)
    return (1 - noise) * jax.nn.one_hot(order, shape[-1]) + noise / shape[-1]


def counts(data: Sequences) -> Array:
    """Count the (parent token, child token) pairs in each sequence as an (n, S, S) array."""
    own = jax.nn.one_hot(data.ids, data.vocab_size)
    above = jnp.take_along_axis(own, jnp.maximum(data.parents, 0)[:, :, None], axis=1)
    return jnp.einsum("nta,ntb,nt->nab", above, own, data.parents >= 0)


def row_of_last(matrices: Array, data: Sequences) -> Array:
    """Return the row of each matrix that belongs to the last token of its sequence, as an (n, S) array."""
    return jnp.take_along_axis(matrices, data.ids[:, -1:, None], axis=1)[:, 0]


def counted(data: Sequences) -> Array:
    """Estimate the target distributions from transition counts as an (n, S) array.

    The estimate counts the children of tokens that equal the last token, and adds the pseudo-count c.
    """
    found = row_of_last(counts(data), data) + data.concentration[:, None]
    return found / found.sum(axis=1, keepdims=True)


def posterior_mean(key: Array, data: Sequences, *, draws: int) -> Array:
    """Estimate the posterior mean of the target distribution by importance sampling, as an (n, S) array.

    Transition matrices are sampled from their posterior given the transition counts. The importance weights
    are the probabilities of the root tokens.
    """
    is_root = (data.parents < 0)[:, :-1, None]
    roots = (jax.nn.one_hot(data.ids[:, :-1], data.vocab_size) * is_root).sum(axis=1)
    concentration = counts(data) + data.concentration[:, None, None]

    def one(key: Array) -> tuple[Array, Array]:
        P = dirichlet(key, concentration=concentration, shape=concentration.shape)
        return (roots * jnp.log(jnp.maximum(stationary(P), 1e-12))).sum(axis=1), row_of_last(P, data)

    log_weights, rows = jax.lax.map(one, jax.random.split(key, draws))
    return jnp.einsum("mn,mns->ns", jax.nn.softmax(log_weights, axis=0), rows)
