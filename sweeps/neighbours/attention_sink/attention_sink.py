"""Logits and value of an attention sink, in a task that needs no attention because bigrams are known."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja


class Contexts(ja.Dataset):
    """Current tokens and the token counts of their contexts. The targets are next-token probabilities."""

    current: Array  # (n,)
    counts: Array  # (n, V)


def bigrams(key: Array, task_key: Array, *, sequences: int, vocab: int = 32, length: int = 64) -> Contexts:
    """Sample contexts from a stationary Markov chain, whose transition rows are from Dirichlet(1, ..., 1)."""
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
    """Trainable logits and value of the attention sink."""

    logits: Array  # (V,) attention logit of the sink for each current token
    value: Array  # (V,) value of the sink


class Sink(ja.Model[Contexts]):
    """Attention output (exp(a_v) b + size · counts)/(exp(a_v) + N) for the current token v.

    The head attends to the sink, with logit a_v and value b. It also attends to the N tokens of the context,
    with logits 0 and values `size` times one-hot vectors. The logits of the next token are log P_v plus this
    output, as if an MLP had learned the bigrams. The model returns the output alone, because a small output
    would be lost to rounding in the sum with log P_v.
    """

    takes: ClassVar[type[Contexts]] = Contexts

    size: float = 5.0  # size of the values of all other tokens
    start: float = 1.0

    def init(self, key: Array, like: Contexts, *, dtype: jnp.dtype) -> Params:
        """Return logits 0, and sample a value with entries from N(0, start²)."""
        vocab = like.counts.shape[1]
        return Params(jnp.zeros(vocab, dtype), self.start * jax.random.normal(key, (vocab,), dtype))

    def outputs(self, params: Params, data: Contexts) -> Array:
        """Compute the output of the head as an (n, V) array."""
        sink = jnp.exp(params.logits[data.current])[:, None]
        counts = data.counts.astype(sink.dtype)
        return (sink * params.value + self.size * counts) / (sink + counts.sum(axis=1, keepdims=True))


@jax.custom_jvp
def exponential_remainder(x: Array) -> Array:
    """Compute exp(x) - 1 - x, with a derivative exp(x) - 1 that is accurate for small x."""
    return jnp.expm1(x) - x


@exponential_remainder.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return exponential_remainder(*primals), jnp.expm1(*primals) * tangents[0]


def divergence(outputs: Array, targets: Array) -> Array:
    """Compute KL(P‖softmax(log P + outputs)) for targets P, as an (n,) array.

    With x = outputs - E_P[outputs], it equals log(1 + E_P[exp(x) - 1 - x]), a form whose gradient has no
    cancellation.
    """
    x = outputs - (targets * outputs).sum(axis=1, keepdims=True)
    return jnp.log1p((targets * exponential_remainder(x)).sum(axis=1))


def sink(params: Params, data: Contexts) -> dict[str, Array]:
    """Compute the mean and spread of the logits of the sink, its mean attention, and the spread of its value.

    Logits and attention are averaged over the current tokens that occur. Spreads are standard deviations.
    """
    weight, occurs = jnp.exp(params.logits), jnp.zeros(params.logits.shape, bool).at[data.current].set(True)
    return {
        "sink_logit": params.logits.mean(where=occurs),
        "sink_logit_spread": params.logits.std(where=occurs),
        "sink_attention": (weight / (weight + data.counts[0].sum())).mean(where=occurs),
        "sink_value": params.value.std(),
    }
