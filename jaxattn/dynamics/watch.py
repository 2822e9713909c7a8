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


def _below_top(corpus: Corpus, scores: Array) -> Array:
    """Compute how far every entry is below the highest of those that pull in its sequence."""
    bags = corpus.bags
    score = take(scores, bags.index.astype(jnp.int32))
    return bags.spread(bags.max(jnp.where(bags.count > 0, score, -jnp.inf))) - score
