"""Tokens that tie in the limit of gradient flow on p, kept in balance and eliminated from the flow.

If sequences exert opposite forces on the score difference of two tokens, this difference settles at a
finite value while ‖p‖ keeps growing. With 𝒯 = span{E_s - E_s' : s, s' tie} and Q the projection onto
its orthogonal complement,

    p = (1 - Q) p + Q p,    ∂L/∂((1 - Q) p) = 0,    d(Q p)/dt = -Q ∂L/∂p.

Within a sequence, tied tokens have the same Q E_s. They therefore act on Q p as one token with their
attention-weighted mean value Γ = Σ q_s γ_s / Σ q_s, summed over the tied tokens in the sequence.
(1 - Q) p determines Γ and the total weight of the tied tokens, and the balancing forces are
eliminated without subtraction.

Alternatively, the forces on a group of tied tokens may balance at every point of a curve along which
the outputs f_X of the group's sequences are constant. The tokens of the group then move along this
curve with the common value f_X, and the group contributes only the span of the ∂f_X/∂p to 𝒯. See
docs/notes/exact_flow_ties.md for the derivation.
"""

import dataclasses
from typing import no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Num

from jaxattn.attention.tops import below_top, first_tokens
from jaxattn.core.arithmetic import nonzero
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.coordinates import Coordinates, Watch, coordinates
from jaxattn.dynamics.flows.force import by_token
from jaxattn.dynamics.flows.pairs import Pairs, no_pairs

# Maximum number of tied tokens for large vocabularies, fixed because all arrays have static shapes.
MAX_TIED = 256
# Squared singular values of the differences between tied embeddings are rounding error below this fraction of
# the largest.
DEPENDENT = 1e-12
# Rounding error of the component orthogonal to 𝒯 of a difference of tied embeddings: relative to the longest
# embedding, and, if two keys nearly coincide, relative to their difference, because short directions of 𝒯 are
# only this accurate.
_ROUNDING, _ROUNDING_IF_CLOSE = 1e-14, 1e-9
# Two scores count as equal if they differ by at most this multiple of the rounding error.
_LEVEL = 16


@no_type_check
@struct.dataclass
class Ties:
    """Groups of tied tokens, and their effect on all other tokens.

    𝒯 is the span of the differences of tied embeddings, and Q projects onto its orthogonal complement. A
    group slides if it is balanced along a curve. An entry is idle if its forces cancel to first order; see
    `cancelled`.

    Attributes:
        leader: (V,) int32; the smallest token in each token's group; the token itself if it is not tied.
        merged: (V,) int32; like `leader`, but the token itself if its group slides.
        normals: (r, d), with r = `max_tied_dims(E)`; orthonormal basis of 𝒯, padded with zero rows.
        embeddings: (V, d); Q E, equal for merged tokens.
        values: (R, W), or (R, W, K) for K > 2 classes. For each bag entry, the mean value Γ of its group
            in its sequence, or the token's value γ if it slides and receives no attention.
        counts: (R, W); count e^(a_s - a_merged) of each bag entry, 0 for idle entries.
        watch: conditions on idle and sliding entries.
        log_limit: (); log of the total force of all other tokens above which the balance of tied tokens
            shifts.
        log_floor: (); log of the force of all other tokens below which the differences of tied embeddings
            that 𝒯 lacks would matter; -inf if there are none.
        pairs: second-order terms of idle entries.
    """

    leader: Array
    merged: Array
    normals: Array
    embeddings: Array
    values: Array
    counts: Array
    watch: Watch
    log_limit: Array
    log_floor: Array
    pairs: Pairs


def max_tied_dims(E: Float[Array, "V d"]) -> int:
    """Return the maximum dimension of 𝒯, the span of differences of tied embeddings.

    It is min(V, d), or MAX_TIED if min(V, d) exceeds MANY_DIMS.
    """
    return min(E.shape) if min(E.shape) <= stiff.MANY_DIMS else MAX_TIED


def first_of(holds: Bool[Array, " V"], count: int) -> Int[Array, " k"]:
    """Return `count` token ids, starting with those for which `holds` is True."""
    token, holders = jnp.arange(len(holds), dtype=jnp.int32), jnp.cumsum(holds, dtype=jnp.int32)
    position = jnp.where(holds, holders - 1, holders[-1] + token - holders)
    return jnp.zeros_like(token).at[position].set(token, unique_indices=True)[:count]


def positions_of(tokens: Int[Array, " k"], vocab: int) -> Int[Array, " V"]:
    """Return each token's position in a list of k tokens, or k if the token is not in the list."""
    size = len(tokens)
    return jnp.full(vocab, size, jnp.int32).at[tokens].set(jnp.arange(size, dtype=jnp.int32))


def sharing(leader: Int[Array, " V"]) -> Bool[Array, " V"]:
    """Return a mask of the tokens whose group contains more than one token."""
    tied = leader != jnp.arange(len(leader), dtype=jnp.int32)
    # Use integers: GPUs have no atomic operations on Booleans, so XLA would generate slow compare-and-swap
    # loops.
    return tied | (jnp.zeros_like(leader).at[leader].max(tied.astype(leader.dtype)) > 0)


def zero_if_isolated(E: Float[Array, "V d"], corpus: Corpus) -> Float[Array, "V d"]:
    """Set the keys of tokens that never occur together with another token to zero.

    These tokens exert no force on p, but their keys would change length scales and tolerances.
    """
    present = 1.0 * (corpus.bags.count > 0)
    (tokens,) = corpus.bags.sum(present)
    return _zero_unless(E, corpus, present * (corpus.bags.spread(tokens) > 1))


def zero_if_absent(E: Float[Array, "V d"], corpus: Corpus) -> Float[Array, "V d"]:
    """Set the keys of tokens that never occur to zero, for flows in which isolated tokens move v."""
    return _zero_unless(E, corpus, 1.0 * (corpus.bags.count > 0))


def _zero_unless(E: Array, corpus: Corpus, entries: Float[Array, "R W"]) -> Array:
    total, _ = by_token(corpus, entries)
    return jnp.where((total > 0)[:, None], E, 0)


def no_ties(E: Float[Array, "V d"], values: Float[Array, " V *K"], corpus: Corpus) -> Ties:
    """Return a `Ties` in which every token forms its own group."""
    token, count = corpus.bags.index.astype(jnp.int32), corpus.bags.count
    alone = jnp.arange(len(E), dtype=jnp.int32)
    return Ties(
        leader=alone,
        merged=alone,
        normals=jnp.zeros((max_tied_dims(E), E.shape[1])),
        embeddings=E,
        values=take(values, token),
        counts=count.astype(E.dtype),
        watch=Watch(idle=jnp.zeros(count.shape, bool), attention=jnp.full(count.shape, -1.0, E.dtype)),
        log_limit=jnp.full((), jnp.inf, E.dtype),
        log_floor=jnp.full((), -jnp.inf, E.dtype),
        pairs=no_pairs(E.dtype),
    )


def neglected_force(
    E: Float[Array, "V d"],
    leader: Int[Array, " V"],
    normals: Float[Array, "r d"],
    pull: Float[Array, " V"],
) -> Float[Array, ""]:
    """Bound the force on p along differences of tied embeddings that are not in the span of `normals`.

    Such a difference is short: two keys nearly coincide, or three keys nearly lie on a line. The difference
    of two keys that nearly coincide is exact. Other differences have rounding errors.

    Args:
        E: (V, d).
        leader: (V,); see `Ties`.
        normals: (r, d); orthonormal rows, or zero.
        pull: (V,); sum of the magnitudes of the forces on each token.
    """

    def across(x: Array) -> Array:
        flat = x - (x @ normals.T) @ normals
        return jnp.linalg.norm(flat - (flat @ normals.T) @ normals, axis=1)

    longest = jnp.sqrt(jnp.square(E).sum(axis=1).max())
    far = across(E - take(E, leader))
    far = jnp.where(far <= _ROUNDING * longest, 0, far)
    # Keys that nearly coincide are neighbours in the order of one projection.
    along = E @ jnp.sin(jnp.arange(1.0, E.shape[1] + 1)).astype(E.dtype)
    token = jnp.arange(len(E), dtype=jnp.int32)
    order = jax.lax.sort((leader, along, token), num_keys=2)[2]
    one, other = order[:-1], order[1:]
    apart = take(E, other) - take(E, one)
    own = jnp.linalg.norm(apart, axis=1)
    close = (take(leader, one) == take(leader, other)) & (jnp.square(own) <= DEPENDENT * longest**2)
    near = jnp.where(close & (across(apart) > _ROUNDING_IF_CLOSE * own), own, 0)
    return pull @ far + (take(pull, one) + take(pull, other)) @ near


def tied_coordinates(
    E: Float[Array, "V d"], p: Float[Array, " d"], corpus: Corpus, ties: Ties
) -> Coordinates:
    """Build the flow of Q p starting at p, with (1 - Q) p fixed. Q is defined in `Ties`."""
    flow = coordinates(ties.embeddings, p, ties.values, corpus)
    return flow.replace(  # type: ignore[attr-defined]
        corpus=with_counts(corpus, ties.counts),
        scores=take(E @ p, ties.merged),
        unit=1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()),
        log_limit=ties.log_limit,
        log_floor=ties.log_floor,
        watch=ties.watch,
        pairs=ties.pairs,
    )


def top_class(
    E: Float[Array, "V d"], p: Float[Array, " d"], corpus: Corpus, leader: Int[Array, " V"]
) -> Bool[Array, "R W"]:
    """Return a mask of the highest-scoring token in each sequence and the tokens tied with it."""
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    below = below_top(corpus, E @ p)
    first = first_tokens(corpus, below == 0, take(leader, index))
    return (bags.count > 0) & (take(leader, index) == bags.spread(first))


def tied_selection(
    E: Float[Array, "V d"], p: Float[Array, " d"], corpus: Corpus, leader: Int[Array, " V"]
) -> Bool[Array, "R W"]:
    """Return the mask from `top_class`, plus all tokens that tie with the highest score up to rounding."""
    longest = jnp.sqrt(jnp.square(E).sum(axis=1).max())
    rounding = _LEVEL * jnp.finfo(E.dtype).eps * (1 + longest * jnp.linalg.norm(p))
    return top_class(E, p, corpus, leader) | (below_top(corpus, E @ p) <= rounding)


def with_counts(corpus: Corpus, counts: Num[Array, "R W"]) -> Corpus:
    """Return the corpus with other counts in its bags. The new counts need not be integers."""
    bags = dataclasses.replace(corpus.bags, count=counts, factors=None, dense=())
    return dataclasses.replace(corpus, bags=bags)


def class_values(
    corpus: Corpus,
    leader: Int[Array, " V"],
    counts: Float[Array, "R W"],
    values: Float[Array, " V *K"],
    maximum: int,
) -> Float[Array, "R W *K"]:
    """Compute the mean value Γ of the group of tied tokens to which each bag entry belongs.

    Γ is averaged over the entries of the group in the same sequence, weighted by `counts`. If `maximum` is
    less than V, at most `maximum` groups may contain more than one token.
    """
    if values.ndim > 1:
        each = [class_values(corpus, leader, counts, column, maximum) for column in values.T]
        return jnp.stack(each, axis=-1)
    bags, vocab = corpus.bags, corpus.vocab_size
    index = bags.index.astype(jnp.int32)
    owner = jnp.minimum(bags.owner, corpus.num_examples - 1)[:, None]
    column, value = take(leader, index), take(values, index)
    if few := maximum < vocab:
        several = sharing(leader) & (leader == jnp.arange(vocab, dtype=jnp.int32))
        column = take(positions_of(first_of(several, maximum), vocab), column)
    shape = (corpus.num_examples, maximum + few)
    # Average the deviations from the largest value, so that the mean of equal values is exact.
    largest = jnp.full(shape, -jnp.inf).at[owner, column].max(jnp.where(counts > 0, value, -jnp.inf))
    reference = jnp.where(jnp.isfinite(largest), largest, 0)[owner, column]
    empty = jnp.zeros(shape, values.dtype)
    weight = empty.at[owner, column].add(counts)
    moment = empty.at[owner, column].add(counts * (value - reference))
    mean = reference + (moment / nonzero(weight))[owner, column]
    return jnp.where(take(sharing(leader), index), mean, value) if few else mean
