"""Two-layer transformers on sequences with a latent graph, and their loss."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from trees import Trees

import jaxattn as ja


def attend(scores: Array, mask: Array) -> Array:
    """Compute the softmax over the last axis, restricted to entries for which `mask` is True."""
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)


class Disentangled(ja.Model[Trees]):
    """Two-layer transformer in which each layer appends its attention output to its input."""

    takes: ClassVar[type[Trees]] = Trees

    def init(self, key: Array, like: Trees, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Return initial parameters that are all zero."""
        d, S = like.ids.shape[1] + like.vocab_size, like.vocab_size
        return {
            "A1": jnp.zeros((d, d), dtype),
            "A2": jnp.zeros((2 * d, 2 * d), dtype),
            "W": jnp.zeros((4 * d, S), dtype),
        }

    def outputs(self, params: dict[str, Array], data: Trees) -> Array:
        """Compute the log-probabilities of the next token as an (n, S) array."""
        S, T = data.vocab_size, data.ids.shape[1]
        tokens = jax.nn.one_hot(data.ids, S, dtype=params["W"].dtype)
        u = tokens @ params["A1"][:S] + params["A1"][S:]
        first = attend(jnp.einsum("nts,nls->ntl", u[..., :S], tokens) + u[..., S:], data.causal)
        places = jnp.broadcast_to(jnp.eye(T, dtype=u.dtype), first.shape)
        x = jnp.concatenate([tokens, places, first @ tokens, first], axis=-1)
        second = attend(jnp.einsum("nd,nld->nl", x[:, -1] @ params["A2"], x), data.mask)
        x = jnp.concatenate([x[:, -1], jnp.einsum("nl,nld->nd", second, x)], axis=-1)
        return jax.nn.log_softmax(x @ params["W"], axis=-1)

    def by_position(self, params: dict[str, Array]) -> Array:
        """Compute the attention of the first layer from the position-pair scores alone, as a (T, T) array."""
        S = params["W"].shape[1]
        return attend(params["A1"][S:, S:], jnp.tri(len(params["A1"]) - S, dtype=bool))


class TwoMatrices(ja.Model[Trees]):
    """Transformer with outputs log((f_s + ε) / (1 + S ε)), where f_s is the attention to token s.

    The attention f_s is from the last position. A1 contains the scores of position pairs and is initialised
    to 0. A2 contains the scores of token pairs and is initialised to β I.
    """

    takes: ClassVar[type[Trees]] = Trees

    start: float = 0.1
    epsilon: float = 1e-3

    def init(self, key: Array, like: Trees, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Return A1 = 0 and A2 = β I, where β is `start`."""
        T, S = like.ids.shape[1], like.vocab_size
        return {"A1": jnp.zeros((T, T), dtype), "A2": self.start * jnp.eye(S, dtype=dtype)}

    def outputs(self, params: dict[str, Array], data: Trees) -> Array:
        """Compute log((f + ε) / (1 + S ε)) as an (n, S) array."""
        tokens = jax.nn.one_hot(data.ids, data.vocab_size, dtype=params["A1"].dtype)
        read = jnp.einsum("tl,nls->nts", self.by_position(params), tokens)
        second = attend(jnp.einsum("nts,ns->nt", read, tokens[:, -1] @ params["A2"]), data.mask)
        f = jnp.einsum("nt,nts->ns", second, tokens) + self.epsilon
        return jnp.log(f / (1 + data.vocab_size * self.epsilon))

    def by_position(self, params: dict[str, Array]) -> Array:
        """Compute the attention of the first layer as a (T, T) array."""
        return attend(params["A1"], jnp.tri(len(params["A1"]), dtype=bool))


def cross_entropy(outputs: Array, targets: Array) -> Array:
    """Compute the cross-entropy between target distributions and predicted distributions as an (n,) array.

    `outputs` contains the logarithms of the predicted probabilities.
    """
    return -(targets * outputs).sum(axis=-1)
