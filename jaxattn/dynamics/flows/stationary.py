"""Stationary point of the loss of tied tokens, by Newton's method.

If only the attended tokens receive attention, the loss depends on p only through the scores of tied tokens,

    a(y) = a_fixed + A y,   A = u E Nᵀ,   y = N p / u

where the rows of N (`normals`) are an orthonormal basis of 𝒯, the span of the differences of tied
embeddings, and u is the unit in which the longest embedding has length 1. The part A y stays bounded while
‖p‖ grows, so the forces are not affected by rounding errors in E p. The tokens are balanced where the force
Aᵀ F vanishes, with F = -∂L/∂a. H is the Hessian of the loss in y.

Along a free direction, H is zero up to the rounding of the forces that cancel: the points of a curve are
balanced, or all tokens move together. With the free directions as columns of S and P = 1 - S Sᵀ, Newton's
method holds y fixed along S:

    y ← y + (S Sᵀ + P H P)⁻¹ P Aᵀ F

The result is a balance only if the force and its derivative along S are also zero at the end (`pulled`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxattn.attention.tops import first_tokens
from jaxattn.core.arithmetic import nonzero
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.force import Force, by_token, score_force, token_curvature
from jaxattn.dynamics.flows.ties import (
    first_of,
    max_tied_dims,
    neglected_force,
    positions_of,
    sharing,
    with_counts,
)

# A force is neglected only while it shifts tied scores by at most this much.
SHIFT = 1e-2
# Number of Newton iterations. If a balance exists, the initial scores are within SHIFT of it.
_NEWTON = 12
# A derivative of the force counts as zero if it is at most _LOOSE times the forces that cancel along its
# direction, because the residual force may be that large. A step along such a direction separates two tokens
# if it changes their score difference by more than _APART, relative to the length of the embedding
# difference.
_LOOSE, _APART = 1e-6, 0.03
# At the balance itself, derivative and force along such a direction must be this small. Larger ones belong to
# a force of second order, whose relative size is the weight of a token that falls behind, at least 1e-7.
_FLAT = 1e-9
# Square of the rounding error of an eigenvector: forces along a direction below this fraction of the largest
# are zero.
_NO_FORCE = 1e-29


class Stationary(NamedTuple):
    """Stationary point of the loss of tied tokens.

    Attributes:
        p: (d,); the point.
        scores: (V,); part of the scores at p that differs between tied tokens, a(y).
        moved: (); largest change in a difference between tied scores, on the way to this point.
        shift: (); distance to this point in units in which the longest embedding has length 1.
        left: (); largest component of the residual gradient, in units of the force's scale.
        pulled: () bool; True if the forces do not cancel along a free direction.
        stiffness: (); smallest derivative of the force with respect to tied scores, in units of the
            force's scale.
        log_limit: (); log of the force that would shift tied scores by SHIFT.
        log_neglected: (); log of the bound of `neglected_force`.
        inverse: (r, r); inverse Hessian of the tied part of the mean loss in coordinates of `normals`; 0
            for zero rows.
        normals: (r, d); orthonormal basis of the directions that are not free, padded with zero rows.
        loose: (V,) bool; True for tokens that move relative to their leader (the first token of their
            group) along a free direction.
    """

    p: Array
    scores: Array
    moved: Array
    shift: Array
    left: Array
    pulled: Array
    stiffness: Array
    log_limit: Array
    log_neglected: Array
    inverse: Array
    normals: Array
    loose: Array


class _TiedLoss(NamedTuple):
    """Loss of the tied tokens as a function of y.

    Attributes:
        E: (V, d); embeddings.
        values: γ, (V,), or (V, K) for K > 2 classes.
        tied: the corpus with the attended tokens alone.
        fixed: a_fixed, (V,).
        lift: A, (V, r).
        spans: (r,) bool; True for the rows of N that are not zero.
        leader: (V,) int32; the first token of each token's group.
    """

    E: Array
    values: Array
    tied: Corpus
    fixed: Array
    lift: Array
    spans: Array
    leader: Array

    def at(self, y: Array) -> tuple[Force, Array]:
        """Return the force F on the scores and the Hessian H, (r, r), at a point."""
        force = score_force(self.tied, self.fixed + self.lift @ y, self.values)
        curvature = _curvature(self.E, self.tied, force, self.lift, self.leader)
        return force, jnp.diag(1.0 * ~self.spans) + curvature

    @property
    def apart(self) -> Array:
        """Score difference to the leader of the group for a unit step in each direction, (V, r)."""
        return self.lift - take(self.lift, self.leader)


class _Free(NamedTuple):
    """Eigenvectors of the Hessian, split into free and other directions.

    Attributes:
        is_free: (r,) bool; True for free eigenvectors.
        without_force: (r,) bool; True for eigenvectors along which no force acts at all.
        slide: S, (r, r); the free eigenvectors as columns, and zeros.
        fast: (r, r); the other eigenvectors as columns, and zeros.
    """

    is_free: Array
    without_force: Array
    slide: Array
    fast: Array

    def constrain(self, curvature: Array) -> Array:
        """Return S Sᵀ + P H P, which is invertible."""
        return self.slide @ self.slide.T + self.across @ curvature @ self.across

    @property
    def across(self) -> Array:
        """P, (r, r)."""
        return jnp.eye(len(self.slide)) - self.slide @ self.slide.T


def stationary_point(
    E: Float[Array, "V d"],
    p: Float[Array, " d"],
    values: Float[Array, " V *K"],
    corpus: Corpus,
    normals: Float[Array, "r d"],
    fixed: Float[Array, " V"],
    attended: Bool[Array, "R W"],
    leader: Int[Array, " V"],
) -> Stationary:
    """Find the stationary point of the loss of tied tokens near a point; see the module docstring.

    Args:
        E: embeddings.
        p: the point at which Newton's method starts.
        values: γ.
        corpus: n sequences over V tokens.
        normals: N, padded with zero rows.
        fixed: a_fixed.
        attended: True for the bag entries that receive attention.
        leader: int32; the smallest token of each token's group.
    """
    unit = 1 / jnp.sqrt(jnp.square(E).sum(axis=1).max())
    lift, start = (unit * E) @ normals.T, (normals @ p) / unit
    tied = with_counts(corpus, jnp.where(attended, corpus.bags.count, 0))
    spans = jnp.square(normals).sum(axis=1) > 0
    loss = _TiedLoss(E, values, tied, fixed, lift, spans, leader)
    free = _free_directions(loss, start)
    y = _newton(loss, free, start)
    force, curvature = loss.at(y)
    apart = loss.apart
    # A unit force separates tied scores by 1 / stiffness.
    size, vectors = jnp.linalg.eigh(free.constrain(curvature))
    reach = jnp.sqrt(jnp.square(apart).sum(axis=1).max())
    stiffness = jnp.where(spans.any(), jnp.minimum(1.0, size[0] / nonzero(reach)), 1)
    inverse = jnp.exp(-force.log_scale) * ((vectors / nonzero(size)) @ vectors.T) * (spans[:, None] & spans)
    inverse = jnp.where(spans.any(), inverse, 0)
    neglected = neglected_force(E, leader, normals, by_token(tied, force.pull)[1])
    some = free.is_free.any()
    return Stationary(
        p=p + unit * ((y - start) @ normals),
        scores=fixed + lift @ y,
        moved=jnp.abs(apart @ (y - start)).max(),
        shift=jnp.linalg.norm(y - start),
        left=jnp.abs(force.force @ lift).max(),
        pulled=_is_pulled(loss, free, force, curvature),
        stiffness=stiffness,
        log_limit=force.log_scale + jnp.log(SHIFT * nonzero(stiffness)),
        log_neglected=force.log_scale + jnp.log(neglected),
        inverse=jnp.where(some, free.fast.T @ inverse @ free.fast, inverse),
        normals=jnp.where(some, free.fast.T @ normals, normals),
        loose=jnp.abs(apart @ free.slide).max(axis=1) > _APART * jnp.sqrt(jnp.square(apart).sum(axis=1)),
    )


def _free_directions(loss: _TiedLoss, start: Array) -> _Free:
    force, curvature = loss.at(start)
    size, vectors = jnp.linalg.eigh(curvature)
    # Compare the curvature in each direction with the forces that cancel along it: keys have no fixed scale.
    sizes = _gross(loss.tied, force.pull, loss.lift @ vectors)[1]
    # Along a direction without any force, both are rounding errors of the eigenvectors.
    no_force = sizes <= _NO_FORCE * sizes.max()
    free = (jnp.abs(size) <= _LOOSE * sizes) | (loss.spans.any() & no_force)
    return _Free(free, no_force, jnp.where(free, vectors, 0), jnp.where(free, 0, vectors))


def _newton(loss: _TiedLoss, free: _Free, start: Array) -> Array:
    across = free.across

    def improve(_: Any, y: Array) -> Array:
        force, curvature = loss.at(y)
        return y + jnp.linalg.solve(free.constrain(curvature), across @ (force.force @ loss.lift))

    return jax.lax.fori_loop(0, _NEWTON, improve, start)


def _is_pulled(loss: _TiedLoss, free: _Free, force: Force, curvature: Array) -> Array:
    """Return whether a force, or its derivative, remains along a free direction."""
    # A force that does not cancel has no derivative where it is largest.
    first, second = _gross(loss.tied, force.pull, loss.lift @ free.slide)
    pulled = jnp.abs((force.force @ loss.lift) @ free.slide) > _FLAT * first
    bent = jnp.abs(jnp.diag(free.slide.T @ curvature @ free.slide)) > _FLAT * second
    return (~free.without_force & (pulled | bent)).any()


def _gross(corpus: Corpus, pull: Array, along: Float[Array, "V r"]) -> tuple[Array, Array]:
    """Return the sums of |force| · distance and |force| · distance² over bag entries.

    Distances are between scores in the same sequence: opposite forces on tokens with equal keys do nothing.

    Args:
        corpus: n sequences of tied tokens.
        pull: (R, W); forces on the bag entries.
        along: scores of the tokens for a unit step in each of r directions.

    Returns:
        Σ |force| |distance| and Σ |force| distance², (r,) each.
    """
    index, present = corpus.bags.index.astype(jnp.int32), corpus.bags.count > 0
    origin = take(along, corpus.bags.spread(first_tokens(corpus, present, index))[:, 0])

    def add(total: tuple[Array, Array], column: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        tokens, size = column
        apart = take(along, tokens) - origin
        return (total[0] + size @ jnp.abs(apart), total[1] + size @ jnp.square(apart)), None

    zeros = jnp.zeros(along.shape[1], along.dtype)
    return jax.lax.scan(add, (zeros, zeros), (index.T, jnp.abs(pull).T))[0]


def _curvature(E: Array, tied: Corpus, force: Force, lift: Array, leader: Array) -> Array:
    """Return the Hessian of the loss of the tied tokens in y, where the scores are `lift` y, (r, r)."""
    if max_tied_dims(E) == min(E.shape):
        return -lift.T @ token_curvature(tied, force) @ lift
    # Only these tokens exert a force. The factor 2 leaves room for all members of groups of tied tokens.
    involved = first_of(sharing(leader), 2 * max_tied_dims(E))
    inner = take(lift, involved)
    return -inner.T @ token_curvature(tied, force, positions_of(involved, len(E)), len(involved)) @ inner
