"""Classification of sentences by whether they contain both of two words or, in a second task, exactly one."""

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Sequences

TYPES = ("both", "first", "second", "neither")


def kinds(sequences: int) -> Array:
    """Return the type of each sentence as an index into `TYPES`.

    Half of the sentences have type "both", and a sixth have each of the other types.
    """
    return jnp.maximum(jnp.arange(sequences) * 6 // sequences - 2, 0)


def sentences(
    key: Array, *, sequences: int, rule: Literal["and", "xor"] = "and", length: int = 5, vocab_size: int = 64
) -> Sequences:
    """Sample labelled sentences, in which words 0 and 1 occur according to the type of the sentence.

    Every sentence also contains word 2. All other words are uniform on the rest of the vocabulary. With rule
    "and", the label is 1 for type "both". With rule "xor", it is 1 for types "first" and "second". All other
    labels are -1.
    """
    kind = kinds(sequences)
    has = jnp.stack([kind <= 1, kind % 2 == 0, kind >= 0], 1)
    ids = jax.random.randint(key, (sequences, length), 3, vocab_size)
    ids = ids.at[:, :3].set(jnp.where(has, jnp.arange(3), ids[:, :3])).astype(jnp.int32)
    positive = kind == 0 if rule == "and" else (kind == 1) | (kind == 2)
    y = jnp.where(positive, 1, -1).astype(jnp.int32)
    return Sequences(targets=y, ids=ids, mask=jnp.ones_like(ids, bool), vocab_size=vocab_size, classes=2)


class Params(NamedTuple):
    """Parameters of `Transformer`, whose tokens are one-hot vectors."""

    K: Array  # (m, V)
    Q: Array  # (m, V)
    V: Array  # (m, V)
    W: Array  # (m1, m)
    a: Array  # (m1,) ±1


class Transformer(ja.Model[Sequences]):
    """Self-attention followed by a linear layer: f(X) = Σ_l a·(W V X softmax(Xᵀ Kᵀ Q x_l / √m)).

    The signs a of the linear layer are fixed.
    """

    takes: ClassVar[type[Sequences]] = Sequences

    width: int = 128
    neurons: int = 256

    def init(self, key: Array, like: Sequences, *, dtype: jnp.dtype) -> Params:
        """Sample matrices with entries from N(0, 2 / columns), as in Kaiming initialisation, and signs a."""
        keys = jax.random.split(key, 5)
        shapes = [(self.width, like.vocab_size)] * 3 + [(self.neurons, self.width)]
        drawn = (
            jax.random.normal(k, x, dtype) * (2 / x[1]) ** 0.5 for k, x in zip(keys, shapes, strict=False)
        )
        return Params(*drawn, jax.random.rademacher(keys[4], (self.neurons,), dtype))

    def outputs(self, params: Params, data: Sequences) -> Array:
        """Compute f for each sentence as an (n,) array."""
        value, score = tables(params)
        q = jax.nn.softmax(score[data.ids[:, :, None], data.ids[:, None, :]], axis=1)
        return jnp.einsum("ntl,nt->n", q, value[data.ids])


def tables(params: Params) -> tuple[Array, Array]:
    """Compute the value of each word as a (V,) array, and the score of each word pair as a (V, V) array.

    Entry (s, t) of the second array is the score of key word s for query word t.
    """
    score = params.K.T @ params.Q / len(params.K) ** 0.5
    return params.a @ params.W @ params.V, score


class Words(ja.Probe):
    """Values of the three words, changes in scores, and loss and accuracy by sentence type."""

    def remember(self, params: Params) -> Array:
        """Return the initial scores."""
        return tables(params)[1]

    def measure(self, seen: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed."""
        value, score = tables(seen.params)
        moved = score - seen.memory
        found = {f"value_{word + 1}": value[word] for word in range(3)}
        found |= {f"score_{s + 1}{t + 1}": moved[s, t] for s, t in ((0, 1), (1, 0), (2, 0), (2, 1))}
        found["moved"] = jnp.abs(moved).max()
        for name, data in (("", seen.data.train), ("test_", seen.data.test)):
            outputs, kind = seen.outputs(data), kinds(data.num_examples)
            for number, of in enumerate(TYPES):
                share = (kind == number) / (kind == number).sum()
                found[f"{name}loss_{of}"] = share @ seen.loss(outputs, data.targets)
                found[f"{name}right_{of}"] = share @ (outputs * data.targets > 0)
        return found
