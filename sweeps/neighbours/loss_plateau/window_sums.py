"""Numbers followed by sums of adjacent numbers, and a probe for outputs, hidden states and attention."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences


class WindowSums(Sequences):
    """Numbers x_1 to x_n, a separator, and outputs y_1 to y_(n-1). The targets are the tokens x_2 to y_n."""

    @property
    def numbers(self) -> int:
        """Number n of input numbers, which equals the number of outputs and the position of the separator."""
        return self.ids.shape[1] // 2

    @property
    def relevant(self) -> Array:
        """(2n, 2n) mask that is True where the output at a query depends on the attended number."""
        n = self.numbers
        query, key = jnp.arange(2 * n)[:, None] - n, jnp.arange(2 * n)
        return (query >= 0) & (key <= query) & (key >= query - 1)


def window_sums(key: Array, *, sequences: int, numbers: int = 16, modulus: int = 17) -> WindowSums:
    """Sample x_i uniformly from 1 to `modulus` - 1. The outputs are sums of adjacent x_i.

    y_1 = x_1, and y_i = x_(i-1) + x_i modulo `modulus` for i > 1.
    """
    x = jax.random.randint(key, (sequences, numbers), 1, modulus, jnp.int32)
    y = x.at[:, 1:].add(x[:, :-1]) % modulus
    tokens = jnp.concatenate([x, jnp.full((sequences, 1), modulus, jnp.int32), y], axis=1)
    ids, mask = tokens[:, :-1], jnp.ones((sequences, 2 * numbers), bool)
    return WindowSums(targets=tokens[:, 1:], ids=ids, mask=mask, vocab_size=modulus + 1)


def next_token(outputs: Array, targets: Array) -> Array:
    """Compute the cross-entropy of the next token, averaged over all positions, as an (n,) array."""
    own = jnp.take_along_axis(outputs, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(outputs, axis=-1) - own).mean(axis=-1)


def generate(context: ja.probes.ProbeContext, data: WindowSums) -> Array:
    """Generate the outputs y_1 to y_n of all N sequences greedily, token by token, as an (N, n) array."""
    n = data.numbers

    def append(i: Array, tokens: Array) -> Array:
        logits = context.model.outputs(context.params, data.replace(ids=tokens[:, :-1]))
        return tokens.at[:, n + 1 + i].set(logits[:, n + i].argmax(axis=-1).astype(tokens.dtype))

    start = jnp.concatenate([data.ids, data.ids[:, :1]], axis=1).at[:, n + 1 :].set(0)
    return jax.lax.fori_loop(0, n, append, start)[:, n + 1 :]


class Plateau(ja.Probe):
    """Accuracy and repetitions of generated outputs, similarity of hidden states, and relevant attention."""

    labels: ClassVar = {
        "first_output": "accuracy of the first output",
        "other_outputs": "accuracy of other outputs",
        "repetitions": "share of repeated outputs",
        "cosine": "cosine of hidden states",
        "relevant_attention": "share of attention to relevant numbers",
    }
    scales: ClassVar = {name: ja.probes.Scale(low=0, high=1) for name in labels} | {
        "cosine": ja.probes.Scale(low=-1, high=1)
    }

    def measure(self, context: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed on its test data."""
        data = context.data.test
        n = data.numbers
        made = generate(context, data)
        right = made == data.targets[:, n:]
        states, attention = context.model.states(context.params, data)
        states = states[:, n + 1 :] / jnp.linalg.norm(states[:, n + 1 :], axis=-1, keepdims=True)
        squares = (states.sum(axis=1) ** 2).sum(axis=1).mean()  # Σ_ij cos_ij over outputs 2 to n
        size = jnp.abs(attention[:, n:])
        return {
            "first_output": right[:, 0].mean(),
            "other_outputs": right[:, 1:].mean(),
            "repetitions": (made[:, 1:] == made[:, :-1]).mean(),
            "cosine": (squares - (n - 1)) / ((n - 1) * (n - 2)),
            "relevant_attention": ((size * data.relevant[n:]).sum((1, 2)) / size.sum((1, 2))).mean(),
        }
