"""The highest tokens of sequences, and averages near them without cancellation or underflow.

For large ‖p‖ a sequence attends to its top token with weight 1 - e^(-3000), so f - γ_top computed by
subtraction is zero in floating point. Functions here subtract a reference from the values first and factor
out the largest exponent that remains.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take


def score_entries(corpus: Corpus, scores: Float[Array, " V"]) -> Float[Array, "R W"]:
    """Return the score of every entry of the bags, -inf for entries without a count."""
    bags = corpus.bags
    return jnp.where(bags.count > 0, take(scores, bags.index.astype(jnp.int32)), -jnp.inf)


def top_scores(bags: Ragged, score: Float[Array, "R W"]) -> Float[Array, " n"]:
    """Return the highest score of every sequence, 0 for a sequence without tokens, from padding."""
    top = bags.max(score)
    return jnp.where(top == -jnp.inf, 0, top)


def below_top(corpus: Corpus, scores: Float[Array, " V"]) -> Float[Array, "R W"]:
    """Compute how far every entry is below the top of its sequence, inf for entries without a count."""
    score = score_entries(corpus, scores)
    return corpus.bags.spread(top_scores(corpus.bags, score)) - score


def first_tokens(corpus: Corpus, chosen: Bool[Array, "R W"], tokens: Int[Array, "R W"]) -> Int[Array, " n"]:
    """Return the smallest token among the chosen entries of every sequence, (n,) int32, V if none is chosen.

    Args:
        corpus: n sequences over V tokens.
        chosen: the entries to choose from.
        tokens: the token of every entry, or that of its class.
    """
    smallest = -corpus.bags.max(jnp.where(chosen, -1.0 * tokens, -jnp.inf))
    return jnp.where(jnp.isfinite(smallest), smallest, corpus.vocab_size).astype(jnp.int32)


class Averages(NamedTuple):
    """Softmax averages of C columns relative to a reference: f - reference = e^gap mean.

    Attributes:
        gap: (n,); the highest score, relative to the top, of the entries that differ from the reference; 0
            where none does.
        idle: (n,) bool; True where no entry differs from the reference.
        mean: C arrays (n,).
        attention: (R, W); q of every entry. Mask entries without a count.
        deviation: C arrays (R, W); q (γ - f) e^(-gap) of every entry. Mask entries without a count.
        normaliser: (n,); Σ_s count_s e^(a_s - top), 0 for a sequence without tokens.
    """

    gap: Array
    idle: Array
    mean: list[Array]
    attention: Array
    deviation: list[Array]
    normaliser: Array


def averages(bags: Ragged, relative: Float[Array, "R W"], below: Sequence[Float[Array, "R W"]]) -> Averages:
    """Average columns with softmax attention, with the largest exponent factored out.

    Averages have full relative precision if the values of a column have one sign.

    Args:
        bags: bags of n sequences.
        relative: scores relative to the top of their sequence, -inf for entries without a count.
        below: C columns, values of the entries minus the reference of their sequence.
    """
    differs = below[0] != 0
    for column in below[1:]:
        differs |= column != 0
    gap = bags.max(jnp.where(differs, relative, -jnp.inf))
    idle = gap == -jnp.inf
    gap = jnp.where(idle, 0, gap)
    # One exponential serves both: entries that differ are scaled by e^(-gap); others need no scale.
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
