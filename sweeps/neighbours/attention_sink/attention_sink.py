"""Attention sink for tokens that need no attention: its logits and its value, with the bigrams known."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja


class Contexts(ja.Dataset):
    """Current tokens with the counts of the tokens in their context; targets are next-token probabilities."""

    current: Array  # (n,)
    counts: Array  # (n, V)


def bigrams(key: Array, task_key: Array, *, sequences: int, vocab: int = 32, length: int = 64) -> Contexts:
    """Sample contexts from a stationary Markov chain with rows from Dirichlet(1, ..., 1)."""
    P = jax.random.dirichlet(task_key, jnp.ones(vocab), (vocab,))
    first_key, step_key = jax.random.split(key)
    stationary = jnp.linalg.matrix_power(P, 64).mean(axis=0)
    first = jax.random.categorical(first_key, jnp.log(stationary), shape=(sequences,))

    def follow(token: Array, key: Array) -> tuple[Array, Array]:
        after = jax.random.categorical(key, jnp.log(P)[token])
        return after, token

    current, context = jax.lax.scan(follow, first, jax.random.split(step_key, length))
    counts = (context[:, :, None] == jnp.arange(vocab)).sum(axis=0)
    return Contexts(targets=P[current], current=current, counts=counts)


class Params(NamedTuple):
    """Parameters of the sink."""

    logits: Array  # (V,) attention logit of the sink for each current token
    value: Array  # (V,) value of the sink


class Sink(ja.Model[Contexts]):
    """Logits of the next token, log P_v + (exp(a_v) b + size · counts)/(exp(a_v) + N), for current token v.

    The first term represents an MLP that has learned the bigrams. The second is an attention head over the
    sink, with logit a_v and value b, and the N tokens of the context, with logits 0 and one-hot values.
    """

    takes: ClassVar[type[Contexts]] = Contexts

    size: float = 5.0  # of the values of all other tokens
    start: float = 1.0

    def init(self, key: Array, like: Contexts, *, dtype: jnp.dtype) -> Params:
        """Return logits of 0 and a normal value."""
        vocab = like.counts.shape[1]
        return Params(jnp.zeros(vocab, dtype), self.start * jax.random.normal(key, (vocab,), dtype))

    def outputs(self, params: Params, data: Contexts) -> Array:
        """Compute the logits of the next token, (n, V)."""
        sink = jnp.exp(params.logits[data.current])[:, None]
        counts = data.counts.astype(sink.dtype)
        attended = (sink * params.value + self.size * counts) / (sink + counts.sum(axis=1, keepdims=True))
        return jnp.log(data.targets) + attended


def divergence(outputs: Array, targets: Array) -> Array:
    """Compute KL(target‖prediction), (n,)."""
    return (targets * (jnp.log(targets) - jax.nn.log_softmax(outputs, axis=1))).sum(axis=1)


def sink(params: Params, data: Contexts) -> dict[str, Array]:
    """Measure the sink's logit, its spread over tokens, its attention, and the spread of its value."""
    weight = jnp.exp(params.logits)
    return {
        "sink_logit": params.logits.mean(),
        "sink_logit_spread": params.logits.std(),
        "sink_attention": (weight / (weight + data.counts[0].sum())).mean(),
        "sink_value": params.value.std(),
    }
