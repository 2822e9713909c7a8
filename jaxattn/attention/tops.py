"""Top (highest-scoring) tokens of each sequence, and softmax averages relative to reference values.

For large ‖p‖, a sequence may attend to its top token with weight 1 - e^(-3000). The difference between the
average f and the value γ_top of this token would be rounded to zero if it were computed by subtraction.
Therefore, callers of `averages` first subtract a reference value from all token values, and `averages`
factors out the largest remaining exponential.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take


def score_entries(corpus: Corpus, scores: Float[Array, " V"]) -> Float[Array, "R W"]:
    """Return the score of each bag entry, or -inf for entries with zero count."""
    bags = corpus.bags
    return jnp.where(bags.count > 0, take(scores, bags.index.astype(jnp.int32)), -jnp.inf)


def top_scores(bags: Ragged, score: Float[Array, "R W"]) -> Float[Array, " n"]:
    """Return the highest score in each sequence, or 0 for an empty sequence (padding)."""
    top = bags.max(score)
    return jnp.where(top == -jnp.inf, 0, top)


def below_top(corpus: Corpus, scores: Float[Array, " V"]) -> Float[Array, "R W"]:
    """Return each entry's score gap to the top token of its sequence, or inf for entries with zero count."""
    score = score_entries(corpus, scores)
    return corpus.bags.spread(top_scores(corpus.bags, score)) - score


def first_tokens(corpus: Corpus, chosen: Bool[Array, "R W"], tokens: Int[Array, "R W"]) -> Int[Array, " n"]:
    """Return the smallest chosen token id in each sequence, (n,) int32, or V if no entry is chosen.

    Args:
        corpus: n sequences over V tokens.
        chosen: mask of the chosen entries.
        tokens: the token of each entry, or the representative of its group of tied tokens.
    """
    smallest = -corpus.bags.max(jnp.where(chosen, -1.0 * tokens, -jnp.inf))
    return jnp.where(jnp.isfinite(smallest), smallest, corpus.vocab_size).astype(jnp.int32)


class Averages(NamedTuple):
    """Softmax averages f of C columns, relative to a reference value r per sequence: f - r = e^gap · mean.

    Attributes:
        gap: (n,); highest score, relative to the top score, among entries whose value differs from the
            reference; 0 if there are no such entries.
        idle: (n,) bool; True if no entry differs from the reference.
        mean: C arrays of shape (n,).
        attention: (R, W); attention q of each entry, not valid for entries with zero count.
        deviation: C arrays of shape (R, W); q (γ - f) e^(-gap) of each entry with value γ, not valid for
            entries with zero count.
        normaliser: (n,); Σ_s count_s e^(a_s - top), 0 for an empty sequence.
    """

    gap: Array
    idle: Array
    mean: list[Array]
    attention: Array
    deviation: list[Array]
    normaliser: Array


def averages(bags: Ragged, relative: Float[Array, "R W"], below: Sequence[Float[Array, "R W"]]) -> Averages:
    """Average columns with softmax attention, with the largest exponential factored out.

    The averages have full relative precision if all values in a column have the same sign.

    Args:
        bags: bags of n sequences.
        relative: scores relative to the top score in their sequence, -inf for entries with zero count.
        below: C columns; value of each entry minus the reference value of its sequence.
    """
    differs = below[0] != 0
    for column in below[1:]:
        differs |= column != 0
    gap = bags.max(jnp.where(differs, relative, -jnp.inf))
    idle = gap == -jnp.inf
    gap = jnp.where(idle, 0, gap)
    # One formula covers both cases: entries that differ from the reference are scaled by e^(-gap), and all
    # others by 1.
    scaled = bags.count * jnp.exp(relative - jnp.where(differs, bags.spread(gap), 0))
    weight = jnp.where(differs, scaled * bags.spread(jnp.exp(gap)), scaled)
    moments = [column * scaled for column in below]
    normaliser, *sums = bags.sum(weight, *moments)
    mean = [moment / normaliser for moment in sums]
    attention = weight / bags.spread(normaliser)
    deviation = [
        moment / bags.spread(normaliser) - attention * bags.spread(m)
        for moment, m in zip(moments, mean, strict=True)
    ]
    return Averages(gap, idle, mean, attention, deviation, normaliser)
