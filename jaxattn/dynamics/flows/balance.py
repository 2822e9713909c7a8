"""Detection of tied tokens, whose forces balance at a finite point along the directions that separate them.

`stationary` finds this point for given groups of tokens, and `cancelled` finds the entries that exert no
force there. This module tries groups, the widest gap between scores first, and decides whether the balance is
stable.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxattn.attention.tops import below_top, first_tokens
from jaxattn.core.arithmetic import nonzero
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.cancelled import Tied, cancelled
from jaxattn.dynamics.flows.coordinates import LEFT, RESOLUTION, Watch, coordinates
from jaxattn.dynamics.flows.stationary import SHIFT, Stationary, stationary_point
from jaxattn.dynamics.flows.ties import (
    DEPENDENT,
    Ties,
    class_values,
    first_of,
    max_tied_dims,
    no_ties,
    tied_coordinates,
    top_class,
)

# Tokens whose scores are more than this below the top score are not tied with the top token.
_BEHIND = 30.0
# Maximum number of gaps (between sorted distances to the top score) to try as the boundary between tied
# tokens and all others.
_MAX_GAPS = 16
# All forces together must be at least _MORE times the neglected ones, and the same factor limits the growth
# of the neglected forces.
_MORE = 100.0
# Shifts in tied scores up to this size are attributed to rounding of the force.
_ZERO = 1e-6


class Balance(NamedTuple):
    """Detected ties, and the point at which the forces on the tied tokens balance.

    Attributes:
        ties: the ties; empty if no balance was found.
        p: (d,); the point.
        stable: () bool; True if the balance is stable: along every difference between tied embeddings,
            the force is zero at this point and restoring near it, except along a curve of balanced
            points.
        undecided: () bool; True if `stable` is False only because the order of the force that remains
            between two tokens with cancelling forces is unknown, or there are too many such pairs.
    """

    ties: Ties
    p: Array
    stable: Array
    undecided: Array


def initial_balance(E: Array, p: Array, values: Array, corpus: Corpus) -> Balance:
    """Return a `Balance` that is not stable and has no ties."""
    return Balance(no_ties(E, values, corpus), p, jnp.asarray(False), jnp.asarray(False))


def find_ties(
    E: Float[Array, "V d"],
    p: Float[Array, " d"],
    values: Float[Array, " V *K"],
    corpus: Corpus,
    before: Ties,
    slides: Bool[Array, ""] | bool = False,
    wanted: Bool[Array, ""] | bool = True,
) -> tuple[Float[Array, " d"], Balance]:
    """Find tied tokens, and pairs of tokens whose forces cancel, at a point where all forces balance.

    Tokens tie if a sequence attends to all of them. Their scores stay close to the top score of the
    sequence, while all other scores have fallen behind it by the logarithm of the float64 resolution. The
    sorted distances to the top score therefore have a gap between tied and other tokens. It is usually
    the widest gap; the next widest gaps are also tried.

    Args:
        E: (V, d).
        p: (d,); the current point of the flow.
        values: γ, (V,), or (V, K) for K > 2 classes.
        corpus: n sequences over V tokens.
        before: the previous ties.
        slides: () bool; True to first move p back to the balance, because it has followed a straight
            segment along a curve of balanced points.
        wanted: () bool; True to search for ties.

    Returns:
        p (d,), moved back if `slides` is True, and the balance. The balance is stable if Newton's method
        finds a nearby zero of the gradient of the tied part of the loss (see `cancelled`), with a
        positive definite Hessian on 𝒯, the span of the differences of tied embeddings.
    """

    def attempt(state: tuple[Array, Array, Balance]) -> tuple[Array, Array, Balance]:
        tried, p, _ = state
        back = tried < 0
        below = below_top(corpus, E @ p)
        edge = _widest_gaps(below)[jnp.maximum(tried, 0)]
        leader = jnp.where(back, before.leader, _classes(corpus, below <= edge))
        normals = jnp.where(back, before.normals, _normals(E, leader))
        # On a curve of balanced points, `normals` lacks its direction, along which tied scores differ too.
        flat = p - (normals @ p) @ normals
        fixed = jnp.where(back, (E - take(E, leader)) @ flat, 0)
        found = _ties_of(E, p, values, corpus, leader, normals, fixed)
        known = ~back & (found.stable | found.undecided)
        p = jnp.where(back, found.p, p)
        nothing = initial_balance(E, p, values, corpus)
        return tried + 1, p, jax.tree.map(partial(jnp.where, known), found, nothing)

    def unresolved(state: tuple[Array, Array, Balance]) -> Array:
        tried, _, found = state
        return (tried < 0) | (wanted & (tried < gaps) & ~found.stable & ~found.undecided)

    gaps = min(_MAX_GAPS, corpus.bags.index.size)
    first = jnp.where(slides, -1, 0).astype(jnp.int32)
    _, p, found = jax.lax.while_loop(unresolved, attempt, (first, p, initial_balance(E, p, values, corpus)))
    return p, found


def _ties_of(
    E: Array, p: Array, values: Array, corpus: Corpus, leader: Array, normals: Array, fixed: Array
) -> Balance:
    """Return the balance for given groups of tokens, and whether it is stable."""
    attended = top_class(E, p, corpus, leader)
    rest = stationary_point(E, p, values, corpus, normals, fixed, attended, leader)
    hidden = coordinates(E, p, values, corpus)
    # Sum of the magnitudes of all forces. Its rounding error may hide smaller forces.
    log_hidden = hidden.log_gross(hidden.zero)
    ties, undecided = _merge_groups(E, values, corpus, leader, attended, rest)
    # The neglected forces have shifted the balance by `rest.moved`. They may grow to the larger of two
    # limits: `rest.log_limit`, and the force at which the shift reaches SHIFT, but no more than _MORE times
    # the present force.
    others = tied_coordinates(E, rest.p, corpus, ties)
    left_out = others.log_gross(others.zero)
    more = jnp.log(jnp.clip(SHIFT / jnp.maximum(rest.moved, SHIFT / _MORE), 1, _MORE))
    log_limit = jnp.maximum(rest.log_limit, left_out + more)
    # Any neglected force as large as the balancing forces would have to be included in the balance.
    vocab = jnp.arange(len(E), dtype=jnp.int32)
    ties_some = (leader != vocab).any()
    log_limit = jnp.where(ties_some, log_limit, log_hidden - jnp.log(_MORE))
    some = (ties_some | ties.watch.idle.any()) & (left_out < log_hidden - jnp.log(_MORE))
    if max_tied_dims(E) < min(E.shape):
        some &= (leader != vocab).sum() <= max_tied_dims(E)
    exact = (rest.stiffness > 0) & (rest.left <= _ZERO * rest.stiffness) & ~rest.pulled
    # If tied keys nearly coincide, their scores reach the balance only far from p.
    near = (rest.moved <= SHIFT) & (rest.shift <= SHIFT * (1 + jnp.linalg.norm(p) / others.unit))
    rests = some & exact & near & ~others.broken(others.zero)
    ties = ties.replace(log_limit=log_limit)  # type: ignore[attr-defined]
    return Balance(ties, rest.p, rests & ~undecided, rests & undecided)


def _merge_groups(
    E: Array, values: Array, corpus: Corpus, leader: Array, attended: Array, rest: Stationary
) -> tuple[Ties, Array]:
    """Return the ties at a balance, and whether the order of a force between cancelled tokens is unknown.

    A group that does not slide along a free direction acts as a single token: its embedding is Q E, its count
    Σ count e^(a_s - a_leader), and its value the mean of its members' values in each sequence.
    """
    bags, vocab = corpus.bags, jnp.arange(len(E), dtype=jnp.int32)
    index, present = bags.index.astype(jnp.int32), bags.count > 0
    # Use integers: GPUs have no atomic operations on Booleans, so XLA would generate slow compare-and-swap
    # loops.
    loose = take(jnp.zeros_like(leader).at[leader].max(rest.loose.astype(leader.dtype)), leader) > 0
    merged = jnp.where(loose, vocab, leader)

    def weigh(leader: Array) -> Array:
        apart = rest.scores - take(rest.scores, leader)
        return jnp.where(present, bags.count * jnp.exp(take(apart, index)), 0)

    weight = weigh(leader)
    means = class_values(corpus, leader, weight, values, _most_classes(E))
    embeddings = take(_orthogonal(E, rest.normals), merged)
    lift = (E @ rest.normals.T) / jnp.sqrt(jnp.square(E).sum(axis=1).max())
    known = cancelled(corpus, values, Tied(attended, rest.scores, embeddings, lift, rest.inverse))
    slides = attended & take(loose, index)
    alone = take(loose, index) & ~attended
    (total,) = bags.sum(jnp.where(slides, weight, 0))
    attention = jnp.where(slides, weight / bags.spread(nonzero(total)), -1)
    ties = Ties(
        leader=leader,
        merged=merged,
        normals=rest.normals,
        embeddings=embeddings,
        values=jnp.where(alone if values.ndim == 1 else alone[..., None], take(values, index), means),
        counts=jnp.where(known.idle, 0, weigh(merged)),
        watch=Watch(idle=known.idle, attention=attention),
        log_limit=rest.log_limit,
        log_floor=rest.log_neglected - jnp.log(RESOLUTION),
        pairs=known.pairs,
    )
    return ties, known.undecided


def _most_classes(E: Array) -> int:
    return len(E) if max_tied_dims(E) == min(E.shape) else max_tied_dims(E)


def _orthogonal(E: Array, normals: Array) -> Array:
    flat = E - (E @ normals.T) @ normals
    # A second pass makes the result orthogonal up to rounding.
    flat = flat - (flat @ normals.T) @ normals
    length = jnp.square(flat).sum(axis=1, keepdims=True)
    return jnp.where(length > DEPENDENT * jnp.square(E).sum(axis=1).max(), flat, 0)


def _widest_gaps(below: Float[Array, "R W"]) -> Float[Array, " k"]:
    """Return the distances to the top score at which the widest gaps start, in order of decreasing width."""
    ends = jnp.append(jnp.sort(below.ravel()), jnp.inf)
    # Clip the distances, so that distances beyond _BEHIND do not widen a gap.
    width = jnp.diff(jnp.minimum(ends, _BEHIND))
    # A token whose score is more than LEFT below the top is not tied with any other, so no gap starts there.
    near = ends[:-1] <= LEFT
    end, width = jnp.where(near, ends[:-1], -1), jnp.where(near, width, -1)
    # argsort uses int64 indices, which cannot be lowered in a caller's jit with float64 disabled.
    return jax.lax.sort((-width, end), num_keys=1)[1][:_MAX_GAPS]


def _classes(corpus: Corpus, attended: Bool[Array, "R W"]) -> Int[Array, " V"]:
    """Return the smallest token of each token's group, (V,).

    Tokens belong to the same group if a sequence attends to both, directly or through other tokens.
    """
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    vocab = corpus.vocab_size

    def join(state: tuple[Array, Array]) -> tuple[Array, Array]:
        leader, _ = state
        lowest = first_tokens(corpus, attended, take(leader, index))
        found = jnp.where(attended, bags.spread(lowest), vocab)
        joined = leader.at[index.ravel()].min(found.ravel())
        joined = take(joined, joined)
        return joined, (joined != leader).any()

    start = jnp.arange(vocab, dtype=jnp.int32), jnp.asarray(True)
    return jax.lax.while_loop(lambda state: state[1], join, start)[0]


def _normals(E: Float[Array, "V d"], leader: Int[Array, " V"]) -> Float[Array, "r d"]:
    """Return an orthonormal basis of 𝒯, the span of differences of tied embeddings.

    It is padded with zero rows to r = `max_tied_dims`.
    """
    apart = E - take(E, leader)
    if max_tied_dims(E) < min(E.shape):
        tied = leader != jnp.arange(len(E), dtype=jnp.int32)
        apart = take(apart, first_of(tied, max_tied_dims(E)))
    spans = len(apart) <= E.shape[1]
    size, vectors = jnp.linalg.eigh(apart @ apart.T if spans else apart.T @ apart)
    kept = size > DEPENDENT * nonzero(size[-1])
    if not spans:
        return jnp.where(kept[:, None], vectors.T, 0)
    rows = vectors.T @ apart
    return jnp.where(kept[:, None], rows / jnp.sqrt(jnp.where(kept, size, 1))[:, None], 0)
