"""Tokens that tie in the limit of gradient flow on p: held in balance, and left out of the flow.

Where sequences pull the difference of two tokens' scores both ways it settles at a finite value, while ‖p‖
goes on growing. With 𝒯 = span{E_s - E_s' : s, s' tie}, Q the projection onto its complement, and p in parts,

    p = (1 - Q) p + Q p,    ∂L/∂((1 - Q) p) = 0,    d(Q p)/dt = -Q ∂L/∂p.

Within a sequence tied tokens have one Q E_s, so that they act on Q p as one token, whose value is the mean
of theirs: Γ = Σ q_s γ_s / Σ q_s over the tokens of the sequence in one class. The mean and the logarithm of
Σ count e^(offset) are fixed by (1 - Q) p, and the forces that balance are gone without a subtraction.

A class may be balanced along a curve instead, on which no f_X of its sequences changes. Then 𝒯 has of it
the span of the ∂f_X/∂p only, its tokens slide along the curve, and their value is f_X where they tie.
docs/notes/exact_flow_ties.md derives it.
"""

import dataclasses

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Num

from jaxattn.core.pytrees import Leaf
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.conditions import nonzero
from jaxattn.dynamics.flows.coordinates import Coordinates, Watch, coordinates
from jaxattn.dynamics.flows.pairs import Pairs, no_pairs

# Tokens that may tie with others where there are many: all arrays have static shapes.
MOST_TIED = 256
# Rounding errors of a score that two level tokens may differ by.
_LEVEL = 16


@struct.dataclass
class Ties:
    """Classes of tied tokens, and what the others see of them.

    Attributes:
        leader: (V,) int32; the smallest token of each token's class, itself where it does not tie.
        merged: (V,) int32; the same, but itself where the class slides.
        normals: an orthonormal basis of 𝒯 and rows of zeros, (`room`, d).
        embeddings: Q E, (V, d); equal where tokens are merged.
        values: (R, W), or (R, W, K) for K > 2 classes; Γ of the class of every entry of the bags in its
            sequence, γ of a token that slides and is not attended to.
        counts: (R, W); count e^(a_s - a_merged) of every entry, 0 for those that are idle.
        watch: entries that tied tokens answer, so that they pull at nothing; and those that slide.
        log_limit: log of the forces of others at which they move the balance of tied tokens, ().
        pairs: the terms of second order of entries that are idle.
    """

    leader: Leaf
    merged: Leaf
    normals: Leaf
    embeddings: Leaf
    values: Leaf
    counts: Leaf
    watch: Watch
    log_limit: Leaf
    pairs: Pairs


def room(E: Float[Array, "V d"]) -> int:
    """Tell how many dimensions 𝒯 may have: all there are, unless they are many."""
    return min(E.shape) if min(E.shape) <= stiff.LARGE else MOST_TIED


def first_of(holds: Bool[Array, " V"], count: int) -> Int[Array, " k"]:
    """List `count` tokens, those first for which something holds."""
    token, holders = jnp.arange(len(holds), dtype=jnp.int32), jnp.cumsum(holds, dtype=jnp.int32)
    place = jnp.where(holds, holders - 1, holders[-1] + token - holders)
    return jnp.zeros_like(token).at[place].set(token, unique_indices=True)[:count]


def placed(tokens: Int[Array, " k"], vocab: int) -> Int[Array, " V"]:
    """Tell the place of every token in a list of k, k for those that are not in it."""
    size = len(tokens)
    return jnp.full(vocab, size, jnp.int32).at[tokens].set(jnp.arange(size, dtype=jnp.int32))


def sharing(leader: Int[Array, " V"]) -> Bool[Array, " V"]:
    """Tell which tokens are in a class of several."""
    tied = leader != jnp.arange(len(leader), dtype=jnp.int32)
    # As numbers: a GPU has no atomic operation on booleans, and would compare and swap.
    return tied | (jnp.zeros_like(leader).at[leader].max(tied.astype(leader.dtype)) > 0)


def no_ties(E: Float[Array, "V d"], values: Float[Array, " V *K"], corpus: Corpus) -> Ties:
    """Let every token be a class of its own."""
    token, count = corpus.bags.index.astype(jnp.int32), corpus.bags.count
    alone = jnp.arange(len(E), dtype=jnp.int32)
    return Ties(
        leader=alone,
        merged=alone,
        normals=jnp.zeros((room(E), E.shape[1])),
        embeddings=E,
        values=take(values, token),
        counts=count.astype(E.dtype),
        watch=Watch(idle=jnp.zeros(count.shape, bool), attention=jnp.full(count.shape, -1.0, E.dtype)),
        log_limit=jnp.full((), jnp.inf, E.dtype),
        pairs=no_pairs(E.dtype),
    )


def tied_coordinates(
    E: Float[Array, "V d"], p: Float[Array, " d"], corpus: Corpus, ties: Ties
) -> Coordinates:
    """Set up the flow of Q p that starts at p, (1 - Q) p fixed."""
    flow = coordinates(ties.embeddings, p, ties.values, corpus)
    return flow.replace(  # type: ignore[attr-defined]
        corpus=with_counts(corpus, ties.counts),
        scores=take(E @ p, ties.merged),
        unit=1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()),
        log_limit=ties.log_limit,
        watch=ties.watch,
        pairs=ties.pairs,
    )


def top_class(
    E: Float[Array, "V d"], p: Float[Array, " d"], corpus: Corpus, leader: Int[Array, " V"]
) -> Bool[Array, "R W"]:
    """Pick of every sequence the tokens that tie with its highest one, that token included."""
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    below = below_top(corpus, E @ p)
    first = -bags.max(jnp.where(below == 0, -1.0 * take(leader, index), -jnp.inf))
    return (bags.count > 0) & (take(leader, index) == bags.spread(first))


def selected(
    E: Float[Array, "V d"], p: Float[Array, " d"], corpus: Corpus, leader: Int[Array, " V"]
) -> Bool[Array, "R W"]:
    """Pick what `top_class` picks, and tokens level with it up to rounding, as those with equal keys are."""
    longest = jnp.sqrt(jnp.square(E).sum(axis=1).max())
    rounding = _LEVEL * jnp.finfo(E.dtype).eps * (1 + longest * jnp.linalg.norm(p))
    return top_class(E, p, corpus, leader) | (below_top(corpus, E @ p) <= rounding)


def with_counts(corpus: Corpus, counts: Num[Array, "R W"]) -> Corpus:
    """Give the bags other counts, not all of them whole numbers."""
    bags = dataclasses.replace(corpus.bags, count=counts, factors=None, dense=())
    return dataclasses.replace(corpus, bags=bags)


def below_top(corpus: Corpus, scores: Float[Array, " V"]) -> Float[Array, "R W"]:
    """Compute how far every entry is below the top of its sequence, inf where there is none."""
    bags = corpus.bags
    score = jnp.where(bags.count > 0, take(scores, bags.index.astype(jnp.int32)), -jnp.inf)
    top = bags.max(score)
    return bags.spread(jnp.where(top == -jnp.inf, 0, top)) - score


def class_values(
    corpus: Corpus,
    leader: Int[Array, " V"],
    counts: Float[Array, "R W"],
    values: Float[Array, " V *K"],
    most: int,
) -> Float[Array, "R W *K"]:
    """Compute Γ of every entry, the same for all entries of one class in one sequence.

    If `most` is less than V, there are at most so many classes of several tokens.
    """
    if values.ndim > 1:
        each = [class_values(corpus, leader, counts, column, most) for column in values.T]
        return jnp.stack(each, axis=-1)
    bags, vocab = corpus.bags, corpus.vocab_size
    index = bags.index.astype(jnp.int32)
    owner = jnp.minimum(bags.owner, corpus.num_examples - 1)[:, None]
    column, value = take(leader, index), take(values, index)
    if few := most < vocab:
        several = sharing(leader) & (leader == jnp.arange(vocab, dtype=jnp.int32))
        column = take(placed(first_of(several, most), vocab), column)
    empty = jnp.zeros((corpus.num_examples, most + few), values.dtype)
    weight = empty.at[owner, column].add(counts)
    moment = empty.at[owner, column].add(counts * value)
    mean = (moment / nonzero(weight))[owner, column]
    return jnp.where(take(sharing(leader), index), mean, value) if few else mean
