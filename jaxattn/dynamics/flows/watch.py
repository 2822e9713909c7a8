"""Tokens whose scores have to stay where they are for a description of the flow to hold."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take

# Distance to the top at which a token that does not pull would: e^-7 of its sequence's attention.
NEAR = 7.0
# Distance to the top at which a token has left those it was tied with.
LEFT = 10.0
# Distance below the top, before, and above it, after, at which a token has leapt over the top.
_LEAP = 2.0
# Change of attention along which a curve of balances counts as straight.
_STRAIGHT = 0.05


@struct.dataclass
class Watch:
    """What to look for, of every entry of the bags.

    Attributes:
        idle: (R, W) bool; tokens that do not pull, and are not to come near the top of their sequence.
        attention: (R, W); attention at the start to tokens that slide along a curve of balances, and are to
            keep theirs; -1 for others.
    """

    idle: Array
    attention: Array

    @property
    def slides(self) -> Bool[Array, ""]:
        """Whether any token slides."""
        return (self.attention >= 0).any()

    def slid(self, corpus: Corpus, scores: Float[Array, "V"]) -> Float[Array, ""]:
        """Compute how far attention is from that at the start, where 1 is as far as it is to come."""
        bags, slides = corpus.bags, self.attention >= 0
        below = _below_top(corpus, scores)
        weight = jnp.where(slides, bags.count * jnp.exp(-below), 0)
        (total,) = bags.sum(weight)
        attention = weight / bags.spread(jnp.where(total == 0, 1, total))
        return jnp.where(slides, jnp.abs(attention - self.attention), 0).max() / _STRAIGHT

    def broken(self, corpus: Corpus, scores: Float[Array, "V"]) -> Bool[Array, ""]:
        """Tell whether tokens are no longer where they have to be."""
        below = _below_top(corpus, scores)
        met = self.idle & (below < NEAR)
        left = (self.attention > jnp.exp(-LEFT)) & (below > LEFT)
        return (met | left).any() | (self.slid(corpus, scores) >= 1)


def leap(corpus: Corpus, before: Float[Array, "V"], after: Float[Array, "V"]) -> Float[Array, ""]:
    """Compute how far tokens leap over the top of their sequence from one point to another.

    A token near the top pulls with all the weight of those it comes up to, however little it pulls from
    afar. A step from far below to far above meets none of that, at either of its ends.

    Args:
        corpus: n sequences over V tokens.
        before: scores a, (V,).
        after: scores a, (V,).

    Returns:
        The largest distance of a token to the top before or above the former top after, whichever is less,
        where 1 is as far as it is to be; 0 or less if no top changes.
    """
    bags = corpus.bags
    token, present = bags.index.astype(jnp.int32), bags.count > 0
    below = jnp.where(present, _below_top(corpus, before), jnp.inf)
    score = take(after, token)
    former = bags.max(jnp.where(below == 0, score, -jnp.inf))
    above = jnp.where(present, score - bags.spread(former), -jnp.inf)
    return jnp.minimum(below, above).max() / _LEAP


def _below_top(corpus: Corpus, scores: Array) -> Array:
    """Compute how far every entry is below the highest of those that pull in its sequence."""
    bags = corpus.bags
    score = take(scores, bags.index.astype(jnp.int32))
    return bags.spread(bags.max(jnp.where(bags.count > 0, score, -jnp.inf))) - score
