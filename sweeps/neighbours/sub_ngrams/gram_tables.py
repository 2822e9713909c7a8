"""In-context n-grams with one table of next-token probabilities per sequence, and k-gram estimators."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences

EPSILON = 1e-8


class Grams(Sequences):
    """Sequences whose targets are the true probabilities of the token after the last, an (n, V) array."""


def grams(
    key: Array, *, sequences: int, states: int, length: int, order: int = 2, alpha: float = 1.0
) -> Grams:
    """Sample Markov chains of order `order`. Transition rows are from Dirichlet(alpha, ..., alpha)."""
    table_key, first_key, step_key = jax.random.split(key, 3)
    contexts = states**order
    table = jax.random.dirichlet(table_key, jnp.full(states, alpha), (sequences, contexts))
    below = jnp.cumsum(table, axis=2)[:, :, :-1]
    first = jax.random.randint(first_key, (order, sequences), 0, states)
    context = sum(token * states**place for place, token in enumerate(first[::-1]))

    def follow(context: Array, at: Array) -> tuple[Array, Array]:
        limits = jnp.take_along_axis(below, context[:, None, None], axis=1)[:, 0]
        token = (at[:, None] > limits).sum(axis=1)
        return (context * states + token) % contexts, token

    at = jax.random.uniform(step_key, (length - order, sequences))
    context, rest = jax.lax.scan(follow, context, at)
    ids = jnp.concatenate([first, rest]).T.astype(jnp.int32)
    truth = jnp.take_along_axis(table, context[:, None, None], axis=1)[:, 0]
    return Grams(targets=truth, ids=ids, mask=jnp.ones(ids.shape, bool), vocab_size=states)


def cross_entropy(p: Array, truth: Array) -> Array:
    """Compute -Σ_v y_v log(p_v + ε) for the true next-token probabilities y as an (n,) array."""
    return -(truth * jnp.log(p + EPSILON)).sum(axis=-1)


def estimate(data: Grams, k: int, alpha: float = 1.0) -> Array:
    """Estimate the next-token probabilities by k-grams as an (n, V) array.

    The estimate counts which tokens follow earlier occurrences of the last k - 1 tokens, and adds the
    pseudo-count `alpha`.
    """
    T = data.ids.shape[1]
    same = jnp.ones((len(data.ids), T - k + 1), bool)
    for lag in range(1, k):
        same &= data.ids[:, k - 1 - lag : T - lag] == data.ids[:, T - lag : T - lag + 1]
    is_state = data.ids[:, k - 1 :, None] == jnp.arange(data.vocab_size)
    counts = (same[:, :, None] & is_state).sum(axis=1) + alpha
    return counts / counts.sum(axis=1, keepdims=True)


class Stages(ja.Probe):
    """Losses of k-gram estimators, divergences of the model from them, gradient norm, and attention.

    Attributes:
        most: largest k.
        alpha: pseudo-count of the estimators.
    """

    labels: ClassVar = {"lag_1": "first layer: previous token", "lag_2": "first layer: token before it"}
    scales: ClassVar = {name: ja.probes.Scale(low=0, high=1) for name in ("lag_1", "lag_2")}

    most: int = 3
    alpha: float = 0.5

    def measure(self, context: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed.

        `squared_gradient` is an estimate of ‖∇L‖² for the population loss L.
        """
        data, params = context.data.test, context.params
        p = context.outputs(data)
        found = {}
        for k in range(1, self.most + 1):
            q = estimate(data, k, self.alpha)
            found[f"loss_{k}"] = cross_entropy(q, data.targets).mean()
            found[f"divergence_{k}"] = (cross_entropy(p, q) - cross_entropy(q, q)).mean()
        uniform = jnp.full_like(p, 1 / data.vocab_size)
        found["divergence_0"] = (cross_entropy(p, uniform) - cross_entropy(uniform, uniform)).mean()

        def loss(params: dict[str, Array], data: Grams) -> Array:
            return cross_entropy(context.model.outputs(params, data), data.targets).mean()

        one, other = (jax.grad(loss)(params, x) for x in (context.data.train, data))
        found["squared_gradient"] = sum((one[name] * other[name]).sum() for name in params)
        first, _ = context.model.attention(params, data)
        for lag in (1, 2):
            along = jnp.diagonal(first, -lag, axis1=1, axis2=2)[:, 2:].mean(axis=1)
            found[f"lag_{lag}"] = along.max()
        return found
