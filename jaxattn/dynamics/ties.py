"""Tokens that tie in the limit of gradient flow on p: found, held in balance, and left out of the flow.

Where sequences pull the difference of two tokens' scores both ways it settles at a finite value, while ‖p‖
goes on growing. With 𝒯 = span{E_s - E_s' : s, s' tie}, Q the projection onto its complement, and p in parts,

    p = (1 - Q) p + Q p,    ∂L/∂((1 - Q) p) = 0,    d(Q p)/dt = -Q ∂L/∂p.

Within a sequence tied tokens have one Q E_s, so that they act on Q p as one token, whose value is the mean
of theirs: Γ = Σ q_s γ_s / Σ q_s over the tokens of the sequence in one class. The mean and the logarithm of
Σ count e^(offset) are fixed by (1 - Q) p, and the forces that balance are gone without a subtraction.
docs/exact_flow_ties.md derives it.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.coordinates import Coordinates, coordinates, positive
from jaxattn.dynamics.direction import token_curvature, token_force

# Scores lower than the top by more are those of tokens that have fallen behind.
_BEHIND = 30.0
# Shift of tied scores that the forces left out may cause before the path goes on without ties.
_SHIFT, _MORE = 1e-2, 100.0
# Of the squares of lengths of the differences of tied tokens: what is smaller is rounding.
_DEPENDENT = 1e-12
# Newton's method starts within _SHIFT of the balance, or there is none.
_NEWTON = 12
# What is left of pulls that cancel, relative to their sizes.
_CANCELS = 1e-9
# Shift of tied scores that the force left by rounding may stand for.
_ZERO = 1e-6


@struct.dataclass
class Ties:
    """Classes of tied tokens, and what the others see of them.

    Attributes:
        leader: (V,) int32; the smallest token of each token's class, itself where it does not tie.
        normals: an orthonormal basis of 𝒯 and rows of zeros, (min(V, d), d).
        embeddings: Q E, (V, d); equal within a class.
        values: (R, W); Γ of the class of every entry of the bags in its sequence.
        counts: (R, W); count e^(a_s - a_leader) of every entry, 0 for those that are idle.
        idle: (R, W) bool; entries that tied tokens answer, so that they pull at nothing; see `_idle`.
        log_limit: log of the forces of others at which they move the balance of tied tokens, ().
    """

    leader: Array
    normals: Array
    embeddings: Array
    values: Array
    counts: Array
    idle: Array
    log_limit: Array


class Balance(NamedTuple):
    """Ties that were found, the point where they are balanced, and whether they are.

    Attributes:
        ties: the ties.
        p: (d,).
        settled: () bool; whether the force on every tied difference is zero there, and takes it back.
    """

    ties: Ties
    p: Array
    settled: Array


def no_ties(E: Float[Array, "V d"], v: Float[Array, "d"], corpus: Corpus) -> Ties:
    """Let every token be a class of its own."""
    token = corpus.bags.index.astype(jnp.int32)
    return Ties(
        leader=jnp.arange(len(E), dtype=jnp.int32),
        normals=jnp.zeros((min(E.shape), E.shape[1])),
        embeddings=E,
        values=take(E @ v, token),
        counts=corpus.bags.count.astype(E.dtype),
        idle=corpus.bags.count < 0,
        log_limit=jnp.asarray(jnp.inf),
    )


def tied_coordinates(
    E: Float[Array, "V d"], p: Float[Array, "d"], v: Float[Array, "d"], corpus: Corpus, ties: Ties
) -> Coordinates:
    """Set up the flow of Q p that starts at p, (1 - Q) p fixed."""
    flow = coordinates(ties.embeddings, p, v, corpus)
    return flow.replace(  # type: ignore[attr-defined]
        corpus=_with_counts(corpus, ties.counts),
        values=ties.values,
        scores=take(E @ p, ties.leader),
        unit=1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()),
        log_limit=ties.log_limit,
        watched=ties.idle,
    )


def top_class(
    E: Float[Array, "V d"], p: Float[Array, "d"], corpus: Corpus, leader: Int[Array, "V"]
) -> Bool[Array, "R W"]:
    """Pick of every sequence the tokens that tie with its highest one, that token included."""
    bags = corpus.bags
    index, below = _below_top(corpus, E @ p)
    first = -bags.max(jnp.where(below == 0, -1.0 * take(leader, index), -jnp.inf))
    return (bags.count > 0) & (take(leader, index) == bags.spread(first))


def find_ties(E: Float[Array, "V d"], p: Float[Array, "d"], v: Float[Array, "d"], corpus: Corpus) -> Balance:
    """Find the tokens that tie where the forces balance up to rounding, and the balance next to p.

    Tokens tie that a sequence attends to together. How far below the top attention ends is told by the
    widest hole among all tokens' distances to the top of their sequences: tied ones stay near, others
    have fallen by the logarithm of what float64 resolves.

    Args:
        E: (V, d).
        p: (d,); where the flow of all of p ended.
        v: (d,).
        corpus: n sequences of two classes over V tokens.

    Returns:
        The ties, and whether they hold: Newton's method finds a zero of the gradient of the tied part of
        the loss nearby, and its Hessian on 𝒯 is positive definite there. Without ties they do not.
    """
    index, below = _below_top(corpus, E @ p)
    leader = _classes(corpus, below <= _hole(below))
    normals = _normals(E, leader)
    attended = top_class(E, p, corpus, leader)
    balanced, moved, rest, stiffness, log_limit = _balanced(E, p, v, corpus, normals, attended)
    bags = corpus.bags
    offset = E @ balanced
    offset = offset - take(offset, leader)
    counts = jnp.where(bags.count > 0, bags.count * jnp.exp(take(offset, index)), 0)
    means = _class_values(corpus, leader, counts, E @ v)
    idle = _idle(corpus, leader, attended, counts, means)
    ties = Ties(
        leader=leader,
        normals=normals,
        embeddings=take(_orthogonal(E, normals), leader),
        values=means,
        counts=jnp.where(idle, 0, counts),
        idle=idle,
        log_limit=log_limit,
    )
    # What is left out has moved the balance by that much, and more of it may come until that is _SHIFT; a
    # hundred times as much may come from elsewhere, and is not trusted to move it as little.
    others = tied_coordinates(E, balanced, v, corpus, ties)
    left_out = others.log_gross(others.zero)
    more = jnp.log(jnp.clip(_SHIFT / positive(moved), 1, _MORE))
    log_limit = jnp.maximum(log_limit, left_out + more)
    some = (leader != jnp.arange(len(E))).any()
    settled = some & (moved <= _SHIFT) & (stiffness > 0) & (rest <= _ZERO * stiffness)
    return Balance(ties.replace(log_limit=log_limit), balanced, settled)  # type: ignore[attr-defined]


def _balanced(
    E: Array, p: Array, v: Array, corpus: Corpus, normals: Array, attended: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Move p within 𝒯 to where the tied part of the loss, that of attended tokens alone, has no gradient.

    Returns:
        p there, (d,); by how much scores have moved; what is left of the gradient; its smallest derivative,
        both in units of the force and of scores; log of the forces that would move the balance by _SHIFT.
    """
    scores, values, lift = E @ p, E @ v, E @ normals.T
    tied = _with_counts(corpus, jnp.where(attended, corpus.bags.count, 0))
    spans = jnp.square(normals).sum(axis=1) > 0

    def curvature(force):
        return jnp.diag(1.0 * ~spans) - lift.T @ token_curvature(tied, force) @ lift

    def improve(_, y):
        force = token_force(tied, scores + lift @ y, values)
        return y + jnp.linalg.solve(curvature(force), force.force @ lift)

    y = jax.lax.fori_loop(0, _NEWTON, improve, jnp.zeros(len(normals)))
    force = token_force(tied, scores + lift @ y, values)
    size = jnp.linalg.eigvalsh(curvature(force))
    unit = 1 / jnp.sqrt(jnp.square(E).sum(axis=1).max())
    # A force of 1 moves scores by the inverse of this.
    stiffness = jnp.where(spans.any(), jnp.minimum(1.0, size[0] * unit**2), 1)
    rest = jnp.abs(force.force @ lift).max() * unit
    log_limit = force.log_scale + jnp.log(_SHIFT * positive(stiffness))
    return p + y @ normals, jnp.abs(lift @ y).max(), rest, stiffness, log_limit


def _orthogonal(E: Array, normals: Array) -> Array:
    """Compute Q E; rows that are nothing but rounding are zero."""
    flat = E - (E @ normals.T) @ normals
    # A second pass makes it orthogonal to rounding.
    flat = flat - (flat @ normals.T) @ normals
    length = jnp.square(flat).sum(axis=1, keepdims=True)
    return jnp.where(length > _DEPENDENT * jnp.square(E).sum(axis=1).max(), flat, 0)


def _with_counts(corpus: Corpus, counts: Array) -> Corpus:
    bags = dataclasses.replace(corpus.bags, count=counts, factors=None)
    return dataclasses.replace(corpus, bags=bags)


def _below_top(corpus: Corpus, scores: Array) -> tuple[Array, Array]:
    """Look up the token of every entry and how far it is below the top of its sequence, inf for none."""
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    score = jnp.where(bags.count > 0, take(scores, index), -jnp.inf)
    top = bags.max(score)
    return index, bags.spread(jnp.where(top == -jnp.inf, 0, top)) - score


def _hole(below: Float[Array, "R W"]) -> Float[Array, ""]:
    """Find the lower edge of the widest hole among distances to the top."""
    edges = jnp.minimum(jnp.append(jnp.sort(below.ravel()), _BEHIND), _BEHIND)
    # Not by argmax, whose int64 indices a caller's jit with float64 off cannot lower.
    holes = jnp.diff(edges)
    return jnp.where(holes == holes.max(), edges[:-1], jnp.inf).min()


def _classes(corpus: Corpus, attended: Bool[Array, "R W"]) -> Int[Array, "V"]:
    """Join tokens that sequences attend to together, and tell the smallest of each class."""
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    vocab = corpus.vocab_size

    def join(state):
        leader, _ = state
        lowest = -bags.max(jnp.where(attended, -1.0 * take(leader, index), -jnp.inf))
        lowest = jnp.where(jnp.isfinite(lowest), lowest, vocab).astype(jnp.int32)
        found = jnp.where(attended, bags.spread(lowest), vocab)
        joined = leader.at[index.ravel()].min(found.ravel())
        joined = take(joined, joined)
        return joined, (joined != leader).any()

    start = jnp.arange(vocab, dtype=jnp.int32), jnp.asarray(True)
    return jax.lax.while_loop(lambda state: state[1], join, start)[0]


def _normals(E: Float[Array, "V d"], leader: Int[Array, "V"]) -> Float[Array, "r d"]:
    """Find an orthonormal basis of 𝒯, r = min(V, d); rows that it does not need are zero."""
    apart = E - take(E, leader)
    spans = len(E) <= E.shape[1]
    size, vectors = jnp.linalg.eigh(apart @ apart.T if spans else apart.T @ apart)
    kept = size > _DEPENDENT * positive(size[-1])
    if not spans:
        return jnp.where(kept[:, None], vectors.T, 0)
    rows = vectors.T @ apart
    return jnp.where(kept[:, None], rows / jnp.sqrt(jnp.where(kept, size, 1))[:, None], 0)


def _idle(
    corpus: Corpus,
    leader: Int[Array, "V"],
    attended: Bool[Array, "R W"],
    counts: Float[Array, "R W"],
    means: Float[Array, "R W"],
) -> Bool[Array, "R W"]:
    """Find entries whose pulls on the top class cancel over all sequences that have both.

    Class D is pulled at by top class C with Σ_X w_X e^(a_D - a_C) (Γ_D - Γ_C) over the sequences with both.
    Sequences that tie alike but contradict each other have Σ w_X = 0 where they balance. If all of them hold
    D, tied tokens answer whatever it does: there is no pull, but rounding would leave some.
    """
    bags, vocab = corpus.bags, corpus.vocab_size
    index = bags.index.astype(jnp.int32)
    present = bags.count > 0
    total, moment = bags.sum(jnp.where(attended, counts, 0), jnp.where(attended, counts * means, 0))
    f = moment / positive(total)
    weight = corpus.labels * jax.nn.sigmoid(-corpus.labels * f) / positive(total)
    pull = jnp.where(present, bags.spread(weight) * counts * (means - bags.spread(f)), 0)
    first = -bags.max(jnp.where(attended, -1.0 * take(leader, index), -jnp.inf))
    top = jnp.where(jnp.isfinite(first), first, 0).astype(jnp.int32)
    place = jnp.broadcast_to(bags.spread(top), index.shape), take(leader, index)
    empty = jnp.zeros((vocab, vocab), pull.dtype)
    net, gross = empty.at[place].add(pull), empty.at[place].add(jnp.abs(pull))
    return present & ~attended & (jnp.abs(net) <= _CANCELS * gross)[place]


def _class_values(
    corpus: Corpus, leader: Int[Array, "V"], counts: Float[Array, "R W"], values: Float[Array, "V"]
) -> Float[Array, "R W"]:
    """Compute Γ of every entry, the same number for all entries of one class in one sequence."""
    bags = corpus.bags
    index = bags.index.astype(jnp.int32)
    owner = jnp.minimum(bags.owner, corpus.num_sequences - 1)[:, None]
    place = owner, take(leader, index)
    empty = jnp.zeros((corpus.num_sequences, corpus.vocab_size), values.dtype)
    weight = empty.at[place].add(counts)
    moment = empty.at[place].add(counts * take(values, index))
    return (moment / positive(weight))[place]
