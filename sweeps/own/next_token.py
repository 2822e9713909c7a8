"""Next-token prediction on a Markov chain by causal attention, with fresh sequences at each step."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences


def chain(
    key: Array,
    task_key: Array,
    *,
    vocab_size: int,
    length: int,
    sequences: int,
    sharpness: float = 2.0,
    lag: int = 1,
) -> Sequences:
    """Sample sequences in which each token depends on the token `lag` positions earlier.

    The targets are the next tokens.
    """
    # For each seed, training data, test data and all fresh batches come from the same chain.
    table = sharpness * jax.random.normal(task_key, (vocab_size, vocab_size))

    def follow(recent: Array, key: Array) -> tuple[Array, Array]:
        token = jax.random.categorical(key, table[recent[0]])
        return jnp.append(recent[1:], token), token

    def draw(key: Array) -> Array:
        first, rest = jax.random.split(key)
        recent = jax.random.randint(first, (lag,), 0, vocab_size)
        return jax.lax.scan(follow, recent, jax.random.split(rest, length + 1))[1]

    tokens = jax.vmap(draw)(jax.random.split(key, sequences)).astype(jnp.int32)
    mask = jnp.ones((sequences, length), bool)
    return Sequences(targets=tokens[:, 1:], ids=tokens[:, :-1], mask=mask, vocab_size=vocab_size)


class Params(NamedTuple):
    """Parameters of the model."""

    E: Array  # (V, d) embeddings
    P: Array  # (T, d) positional embeddings
    W: Array  # (d, d) key-query matrix
    U: Array  # (d, V) output weights


class Causal(ja.Model[Sequences]):
    """Causal attention layer over x_t = E_{s_t} + P_t, with next-token logits at each position."""

    takes: ClassVar[type[Sequences]] = Sequences

    dim: int

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> Params:
        """Sample the initial parameters for one seed."""
        shapes = (like.vocab_size, self.dim), (like.ids.shape[1], self.dim), (self.dim, like.vocab_size)
        E, P, U = (
            jax.random.normal(k, shape, dtype) / self.dim**0.5
            for k, shape in zip(jax.random.split(key, 3), shapes, strict=True)
        )
        return Params(E, P, jnp.zeros((self.dim, self.dim), dtype), U)

    def tokens(self, params: Params, data: Sequences) -> Array:
        """Compute the tokens x as an (n, T, d) array."""
        return params.E[data.ids] + params.P

    def attention(self, params: Params, data: Sequences) -> Array:
        """Compute the attention from each position to itself and all earlier ones as an (n, T, T) array."""
        x = self.tokens(params, data)
        scores = jnp.einsum("nsd,de,nte->nts", x, params.W, x)
        return jax.nn.softmax(jnp.where(data.causal, scores, -jnp.inf), axis=-1)

    def outputs(self, params: Params, data: Sequences) -> Array:
        """Compute the logits of the next token as an (n, T, V) array."""
        x = self.tokens(params, data)
        return (x + self.attention(params, data) @ x) @ params.U


class NextToken(ja.Loss):
    """Cross-entropy of the next token, averaged over positions."""

    def skip_reason(self, outputs: Array, data: ja.Dataset) -> str | None:
        """Return a reason to reject targets that are not one token per output position, else None."""
        fits = outputs.shape[:-1] == data.targets.shape and jnp.issubdtype(data.targets.dtype, jnp.integer)
        return None if fits else f"it requires targets that are tokens, of shape {outputs.shape[:-1]}"

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """Compute the loss for each sequence as an (n,) array."""
        own = jnp.take_along_axis(outputs, targets[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(outputs, axis=-1) - own).mean(axis=-1)


def share_right(params: Params, data: Sequences) -> Array:
    """Compute the fraction of next tokens that the model predicts correctly."""
    return (Causal(dim=params.E.shape[1]).outputs(params, data).argmax(-1) == data.targets).mean()
