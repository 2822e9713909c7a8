"""Factual recall: which answer goes with a subject and a relation, from sequences of both among noise."""

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
    """Draw subject, relation and noise at random places, an end at the last; the answer is int(s/2) + 8 r."""

    def draw(key: Array) -> tuple[Array, Array]:
        subject_key, relation_key, place_key, noise_key = jax.random.split(key, 4)
        subject = jax.random.randint(subject_key, (), 0, SUBJECTS)
        relation = jax.random.randint(relation_key, (), 0, RELATIONS)
        places = jax.random.permutation(place_key, length - 1)[:2]
        ids = jax.random.randint(noise_key, (length,), SUBJECTS + RELATIONS, EOS).at[-1].set(EOS)
        ids = ids.at[places].set(jnp.array([subject, SUBJECTS + relation]))
        return ids.astype(jnp.int32), subject * ANSWERS // SUBJECTS + relation * ANSWERS

    ids, answers = jax.vmap(draw)(jax.random.split(key, sequences))
    mask, query = jnp.ones_like(ids, bool), jnp.full(sequences, length - 1, jnp.int32)
    classes = {"vocab_size": VOCAB, "classes": RELATIONS * ANSWERS}
    return Sequences(targets=answers.astype(jnp.int32), ids=ids, mask=mask, query=query, **classes)


class Params(NamedTuple):
    """Parameters of the model."""

    a: Array  # (V,) scores of tokens under the end token: its column of A, as tokens are one-hot
    U: Array  # (V, K) logits of the answers


class LinearAttention(ja.Model[Sequences]):
    """f(X) = Σ_t a_{s_t} U_{s_t}, attention without a softmax, or with one; all starts alike."""

    takes: ClassVar[type[Sequences]] = Sequences

    softmax: bool = False
    start: float = 1e-5

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> Params:
        """Make the parameters that each seed starts with."""
        shapes = (like.vocab_size,), (like.vocab_size, like.classes)
        return Params(*(jnp.full(shape, self.start, dtype) for shape in shapes))

    def outputs(self, params: Params, data: Sequences) -> Array:
        """Compute the logits of the answers, (n, K)."""
        weight = params.a[data.ids]
        weight = jax.nn.softmax(weight, axis=1) if self.softmax else weight
        shares = jax.vmap(lambda ids, w: jnp.zeros(data.vocab_size, w.dtype).at[ids].add(w))(data.ids, weight)
        return shares @ params.U


class Known(ja.Probe):
    """Shares of sequences whose likeliest answer is one of the relation, and one of the subject."""

    def measure(self, seen: ja.probes.ProbeContext) -> dict[str, Array]:
        """Measure one seed on its test data."""
        data = seen.data.test
        answer = seen.outputs(data).argmax(axis=1)
        right = {"relation": answer // ANSWERS == data.targets // ANSWERS}
        right["subject"] = answer % ANSWERS == data.targets % ANSWERS
        return {f"{name}_known": share.mean() for name, share in right.items()}
