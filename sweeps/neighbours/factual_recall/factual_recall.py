"""Factual recall of the answer to a subject and a relation, from sequences that also contain noise."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences

SUBJECTS, RELATIONS, ANSWERS, NOISE = 16, 4, 8, 20
VOCAB = SUBJECTS + RELATIONS + NOISE + 1
EOS = VOCAB - 1


def facts(key: Array, *, sequences: int, length: int = 32) -> Sequences:
    """Sample sequences of a subject s, a relation r, noise tokens and an end token.

    The answer is ⌊s/2⌋ + 8 r. The order of these four parts is fixed, because the model ignores it.
    """
    subject_key, relation_key, noise_key = jax.random.split(key, 3)
    subject = jax.random.randint(subject_key, (sequences,), 0, SUBJECTS)
    relation = jax.random.randint(relation_key, (sequences,), 0, RELATIONS)
    ids = jax.random.randint(noise_key, (sequences, length), SUBJECTS + RELATIONS, EOS)
    ids = ids.at[:, 0].set(subject).at[:, 1].set(SUBJECTS + relation).at[:, -1].set(EOS).astype(jnp.int32)
    answers = (subject * ANSWERS // SUBJECTS + relation * ANSWERS).astype(jnp.int32)
    mask, query = jnp.ones_like(ids, bool), jnp.full(sequences, length - 1, jnp.int32)
    classes = {"vocab_size": VOCAB, "classes": RELATIONS * ANSWERS}
    return Sequences(targets=answers, ids=ids, mask=mask, query=query, **classes)


class Params(NamedTuple):
    """Attention score and answer logits of each token."""

    a: Array  # (V,) token scores for the end token as query: its column of A, since tokens are one-hot
    U: Array  # (V, K) logits of the answers


class LinearAttention(ja.Model[Sequences]):
    """Linear attention f(X) = Σ_t a_{s_t} U_{s_t}, or softmax attention with scores a_{s_t}.

    Attention is a softmax if `softmax` is True. All parameters are initialised to `start`.
    """

    takes: ClassVar[type[Sequences]] = Sequences

    softmax: bool = False
    start: float = 1e-5

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> Params:
        """Return the initial parameters, which are the same for all seeds."""
        shapes = (like.vocab_size,), (like.vocab_size, like.classes)
        return Params(*(jnp.full(shape, self.start, dtype) for shape in shapes))

    def outputs(self, params: Params, data: Sequences) -> Array:
        """Compute the logits of the answers from token counts as an (n, K) array."""
        counts = (data.ids[:, :, None] == jnp.arange(data.vocab_size)).sum(axis=1, dtype=params.a.dtype)
        if not self.softmax:
            return (counts * params.a) @ params.U
        weight = counts * jnp.exp(params.a - params.a.max())
        return weight / weight.sum(axis=1, keepdims=True) @ params.U


class Known(ja.Probe):
    """Fraction of sequences whose most likely answer fits the relation, and fraction for the subject."""

    def measure(self, seen: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed on its test data."""
        data = seen.data.test
        answer = seen.outputs(data).argmax(axis=1)
        right = {"relation": answer // ANSWERS == data.targets // ANSWERS}
        right["subject"] = answer % ANSWERS == data.targets % ANSWERS
        return {f"{name}_known": share.mean() for name, share in right.items()}
