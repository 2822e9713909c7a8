"""Markov chains with one transition matrix per sequence, and strategies for in-context prediction."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences

LENGTH = 100


class Chains(Sequences):
    """Sequences whose targets are the next tokens, with the true probabilities of the next token."""

    truth: Array = None  # (n, T, k)


def markov(key: Array, *, sequences: int, states: int, doubly: bool = False) -> Chains:
    """Sample chains with transition rows from Dirichlet(1, ..., 1).

    If `doubly` is True, there are two states, and the transition matrices are symmetric.
    """
    table_key, first_key, step_key = jax.random.split(key, 3)
    P = jax.random.dirichlet(table_key, jnp.ones(states), (sequences, states))
    if doubly:
        P = P.at[:, 1].set(P[:, 0, ::-1])
    stationary = jnp.linalg.matrix_power(P, 64).mean(axis=1)
    first = jax.random.categorical(first_key, jnp.log(stationary))

    def follow(token: Array, key: Array) -> tuple[Array, Array]:
        below = jnp.cumsum(jnp.take_along_axis(P, token[:, None, None], axis=1)[:, 0], axis=1)[:, :-1]
        after = (jax.random.uniform(key, (sequences, 1)) > below).sum(axis=1)
        return after, after

    _, rest = jax.lax.scan(follow, first, jax.random.split(step_key, LENGTH))
    tokens = jnp.concatenate([first[None], rest]).T.astype(jnp.int32)
    ids, truth = tokens[:, :-1], jnp.take_along_axis(P, tokens[:, :-1, None], axis=1)
    mask = jnp.ones(ids.shape, bool)
    return Chains(targets=tokens[:, 1:], ids=ids, mask=mask, truth=truth, vocab_size=states)


def next_token(outputs: Array, targets: Array) -> Array:
    """Compute the cross-entropy of the next token, averaged over positions, as an (n,) array."""
    own = jnp.take_along_axis(outputs, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(outputs, axis=-1) - own).mean(axis=-1)


def predictions(data: Chains) -> dict[str, Array]:
    """Return the (n, k) distribution of the token after the last one that each strategy predicts.

    The uniform, unigram and bigram strategies add one to all counts.
    """
    states = jnp.arange(data.vocab_size)
    is_state = data.ids[:, :, None] == states
    last = data.ids[:, -1:]
    followed = is_state[:, 1:] & (data.ids[:, :-1] == last)[:, :, None]
    counts = {"uniform": 0 * is_state[:, 0], "unigram": is_state.sum(axis=1), "bigram": followed.sum(axis=1)}
    return {name: (x + 1) / (x + 1).sum(axis=1, keepdims=True) for name, x in counts.items()}


def divergence(p: Array, log_q: Array) -> Array:
    """Compute KL(p‖q), averaged over sequences."""
    return (jax.scipy.special.xlogy(p, p) - p * log_q).sum(axis=1).mean()


class Phases(ja.Probe):
    """Divergences of the last prediction from the truth and each strategy, and attention in both layers."""

    labels: ClassVar = {
        "kl_truth": "divergence from the truth",
        "previous": "first layer: previous token",
        "after_same": "second layer: after the same token",
    }
    scales: ClassVar = {name: ja.probes.Scale(low=0, high=1) for name in ("previous", "after_same")} | {
        "kl_truth": ja.probes.Scale(low=0)
    }

    def measure(self, context: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed on its test data."""
        data = context.data.test
        log_q = jax.nn.log_softmax(context.outputs(data)[:, -1])
        truth, strategies = data.truth[:, -1], predictions(data)
        found = {"kl_truth": divergence(truth, log_q)}
        for name, p in strategies.items():
            found |= {f"kl_{name}": divergence(p, log_q), f"{name}_loss": divergence(truth, jnp.log(p))}
        first, second = context.model.attention(context.params, data).swapaxes(0, 1)
        after = data.ids[:, None, :-1] == data.ids[:, :, None]  # [n, t, s]: token s equals token t
        order = jnp.arange(LENGTH)
        earlier = after & (order[None, 1:] <= order[:, None])
        found["previous"] = jnp.diagonal(first, -1, axis1=1, axis2=2)[:, 10:].mean()
        found["after_same"] = (second[:, :, 1:] * earlier).sum(axis=2)[:, 10:].mean()
        found["after_same_by_chance"] = (earlier.sum(axis=2) / (order + 1))[:, 10:].mean()
        return found
