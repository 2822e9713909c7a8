"""Trained keys and embeddings that find the one word of a sentence that determines its topic."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Corpus

TOPICS, EACH = 4, 2
WORDS = TOPICS * EACH


def sentences(key: Array, *, others: int = 5000, length: int = 20, sequences: int) -> Corpus:
    """Sample sentences of one topic word and `length` other words, with the topic as the label.

    Each of the four topics has two words, which have ids 0 to 7. All choices are uniform.
    """
    topic_key, word_key, other_key = jax.random.split(key, 3)
    topic = jax.random.randint(topic_key, (sequences,), 0, TOPICS)
    word = EACH * topic + jax.random.randint(word_key, (sequences,), 0, EACH)
    rest = jax.random.randint(other_key, (sequences, length), WORDS, WORDS + others)
    tokens = jnp.concatenate([word[:, None], rest], axis=1)
    return ja.data.from_draws(tokens, topic, vocab_size=WORDS + others, num_classes=TOPICS)


class Params(NamedTuple):
    """Parameters of the model."""

    K: Array  # (V, d) keys
    E: Array  # (V, d) embeddings
    q: Array  # (d,) query
    W: Array  # (d, C) read-out vectors


class Keys(ja.TokenModel):
    """Attention with logits Wᵀ Σ_s a_s e_s and scores k_s·q.

    Keys are initialised to 0, and embeddings to small values.
    """

    token_rows: ClassVar[tuple[str, ...]] = ("K", "E")

    dim: int = 10
    start: float = 1e-6
    query: float = 0.3

    def init(self, key: Array, like: Corpus, *, dtype: jnp.dtype) -> Params:
        """Sample the initial parameters for one seed. The diagonal entries of W are 1."""
        e_key, q_key, w_key = jax.random.split(key, 3)
        E = self.start * jax.random.normal(e_key, (like.vocab_size, self.dim), dtype)
        q = self.query * jax.random.normal(q_key, (self.dim,), dtype)
        W = jax.random.normal(w_key, (self.dim, like.num_classes or 2), dtype)
        places = jnp.arange(like.num_classes or 2)
        return Params(jnp.zeros_like(E), E, q, W.at[places, places].set(1))

    def scores_and_values(self, params: Params) -> tuple[Array, Array]:
        """Compute the scores of all words as a (V,) array, and their logits as a (V, C) array."""
        return params.K @ params.q, params.E @ params.W


def law(params: Params, data: Corpus, *, others: int = 20) -> dict[str, Array]:
    """Compare ‖e‖ · ‖q‖ for topic words with the prediction √(2 (s + (exp(s) - 1)/m)).

    Here e is the embedding and s the score of a topic word, and m = `others` is the number of other words per
    sentence.
    """
    scores, lengths = params.K @ params.q, jnp.linalg.norm(params.E, axis=1) * jnp.linalg.norm(params.q)
    s = scores[:WORDS]
    predicted = jnp.sqrt(2 * jnp.maximum(s + jnp.expm1(s) / others, 0))
    size = jnp.where(predicted > 0.05, predicted, jnp.nan)
    return {
        "topic_score": s.mean(),
        "least_topic_score": s.min(),
        "largest_other_score": scores[WORDS:].max(),
        "mean_other_score": scores[WORDS:].mean(),
        "topic_norm": lengths[:WORDS].mean(),
        "predicted_norm": predicted.mean(),
        "off_by": jnp.abs(lengths[:WORDS] / size - 1).max(),
    }
