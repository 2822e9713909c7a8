"""Scan and snap: next-token prediction by attention from the last token to the tokens before it."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences

COMMON, DISTINCT, LENGTH = 10, 10, 128  # common tokens, distinct tokens per next token, T


class Scanned(Sequences):
    """Sequences whose last token is the query. The targets are next tokens from the same vocabulary."""

    last: int = struct.field(pytree_node=False, kw_only=True)
    per_last: int = struct.field(pytree_node=False, kw_only=True)

    def chances(self) -> np.ndarray:
        """Return the distribution P(l|n) of non-final tokens l for each next token n as an (N, V) array."""
        N = self.last * self.per_last
        own = np.kron(np.eye(N), np.linspace(0.1, 1, DISTINCT))
        P = np.hstack([np.ones((N, COMMON)), own, np.zeros((N, self.last + N))])
        return P / P.sum(axis=1, keepdims=True)


def next_tokens(key: Array, *, sequences: int, last: int, per_last: int = 2) -> Scanned:
    """Sample sequences and their next tokens n.

    n is uniform. The last token of the sequence is number n // per_last, and the tokens before it are from
    P(l|n).
    """
    asks = COMMON + last * per_last * DISTINCT  # ids are ordered: common, distinct, last, next
    V, mask = asks + last + last * per_last, jnp.ones((sequences, LENGTH), bool)
    made = Scanned(targets=None, ids=None, mask=mask, vocab_size=V, classes=V, last=last, per_last=per_last)
    next_key, token_key = jax.random.split(key)
    n = jax.random.randint(next_key, (sequences,), 0, last * per_last)
    sums = np.cumsum(made.chances(), axis=1)
    below = jnp.asarray(sums / sums[:, -1:], jnp.float32)[n, None]  # rows end at 1
    ids = (jax.random.uniform(token_key, (sequences, LENGTH, 1)) > below).sum(axis=2, dtype=jnp.int32)
    return made.replace(targets=asks + last + n, ids=ids.at[:, -1].set(asks + n // per_last))


class LastToken(ja.Model[Sequences]):
    """Attention from the last token: f(X) = Yᵀ u/‖u‖ with u = Σ_{t<T} q_t x_t and q = softmax(z_{x_T}).

    The tokens x_t are one-hot vectors. The softmax is over the tokens before the last one.
    """

    takes: ClassVar[type[Sequences]] = Sequences
    spread: float = 1.0

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the entries of the (V, V) matrices Y and Z from U(-1, 1) · spread/√V. Z has rows z_m."""
        drawn = jax.random.uniform(key, (2, V := like.vocab_size, V), dtype, -1, 1) * self.spread / V**0.5
        return {"Y": drawn[0], "Z": drawn[1]}

    def outputs(self, params: dict[str, Array], data: Sequences) -> Array:
        """Compute the logits of the next token as an (n, V) array."""
        counts = (data.ids[:, :-1, None] == jnp.arange(data.vocab_size)).sum(axis=1)
        u = jax.nn.softmax(params["Z"][data.ids[:, -1]], where=counts > 0) * counts
        return u / jnp.linalg.norm(u, axis=1, keepdims=True) @ params["Y"]


def two_rates(step_size: optax.Schedule, *, ratio: float = 1.0) -> optax.GradientTransformation:
    """Return descent with momentum 0.9, in which the step size for Y is `ratio` times that for Z."""
    faster = optax.stateless(lambda slopes, _: slopes | {"Y": ratio * slopes["Y"]})
    return optax.chain(faster, optax.sgd(step_size, momentum=0.9))


def composition(params: dict[str, Array], data: Scanned) -> dict[str, Array]:
    """Compute the entropy of c_n, the entropy of its distinct part, and its share of common tokens.

    c_n is the distribution of tokens l that is proportional to P(l|n) exp(z_l), where z is the row of Z for
    the last token. The distinct part is c_n restricted to distinct tokens. The metrics are averaged over n.
    """
    asks = data.vocab_size - data.last * (data.per_last + 1) + np.arange(data.last).repeat(data.per_last)
    c = jnp.exp(params["Z"][asks]) * data.chances()
    c = c / c.sum(axis=1, keepdims=True)
    alone = c[:, COMMON:] / c[:, COMMON:].sum(axis=1, keepdims=True)
    entropy, distinct = (jax.scipy.special.entr(x).sum(axis=1).mean() for x in (c, alone))
    return {"entropy": entropy, "distinct_entropy": distinct, "common": c[:, :COMMON].sum(axis=1).mean()}
