"""Test whether the forces at a point cancel at a strict local minimum of the loss nearby.

Forces that cancel up to rounding do not prove a balance: the remaining force may point outwards, or a smaller
force may move the point indefinitely. Near a minimum, a force F displaces the point by H⁻¹ F, where H is the
Hessian of the loss. The flow converges if even a force as large as the rounding error displaces scores and
values only slightly. Directions in which the loss is constant are ignored.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxattn.attention.tops import first_tokens
from jaxattn.core.arithmetic import nonzero
from jaxattn.core.loops import cond_under_vmap
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take
from jaxattn.dynamics.flows.arc_length import Stop
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.force import score_force, token_curvature

_Flow = TypeVar("_Flow")

# Maximum displacement of a score or value from the minimum.
_SHIFT = 1e-2
# Squared singular values below the first fraction of the largest one are zeros up to rounding, and those
# above the second one are not.
_ZERO, _NONZERO = 1e-14, 1e-12


def balanced_or_unresolved(
    status: Int[Array, ""], settles: Callable[[_Flow, Array], Array], flow: _Flow, z: Array
) -> Int[Array, ""]:
    """Replace status BALANCED by UNRESOLVED unless the flow settles near the point z."""

    def unproven(status: Array, flow: _Flow, z: Array) -> Array:
        return jnp.where(settles(flow, z), status, jnp.int32(Stop.UNRESOLVED))

    return cond_under_vmap(status == Stop.BALANCED, unproven, status, flow, z)


def settles(flow: Coordinates, z: Float[Array, " r"]) -> Bool[Array, ""]:
    """Return whether p converges to a minimum of the loss near the point z."""
    corpus = flow.corpus
    force = score_force(corpus, flow.scores + flow.lift @ z, flow.values, flow.weigh)
    basis, known = range_of(score_differences(corpus, flow.rows))
    moves = flow.rows @ basis
    curvature = moves.T @ token_curvature(corpus, force) @ moves
    return known & at_minimum(moves, force.force @ moves, curvature, rounding_of_force(flow, z) * force.gross)


def rounding_of_force(flow: Coordinates, z: Array) -> Array:
    """Return the rounding error of a force on p, relative to the forces on the scores that cancel."""
    return jnp.finfo(z.dtype).eps * (1 + flow.norm(z, 1.0) / flow.unit) / flow.unit


def score_differences(corpus: Corpus, rows: Float[Array, "V r"]) -> Float[Array, "r r"]:
    """Return Σ_X Σ_i (E_i - E_1)(E_i - E_1)ᵀ, where E_1 is the first token of a sequence X."""
    bags = corpus.bags
    index, present = bags.index.astype(jnp.int32), bags.count > 0
    first = take(rows, bags.spread(first_tokens(corpus, present, index))[:, 0])
    return sum_of_squares(rows, index, present, first)


def sum_of_squares(rows: Array, index: Array, present: Array, origin: Array) -> Array:
    """Return Σ (E_i - origin)(E_i - origin)ᵀ over the bag entries that are present."""

    def add(total: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
        tokens, there = column
        apart = jnp.where(there[:, None], take(rows, tokens) - origin, 0)
        return total + apart.T @ apart, None

    return jax.lax.scan(add, jnp.zeros((rows.shape[1],) * 2), (index.T, present.T))[0]


def range_of(square: Float[Array, "r r"]) -> tuple[Float[Array, "r r"], Bool[Array, ""]]:
    """Return an orthonormal basis of the range, padded with zero columns, and whether its rank is certain."""
    size, vectors = jnp.linalg.eigh(square)
    size = size / nonzero(size[-1])
    return jnp.where(size > _NONZERO, vectors, 0), ~((size > _ZERO) & (size <= _NONZERO)).any()


def at_minimum(moves: Array, force: Array, curvature: Array, rounding: Array) -> Bool[Array, ""]:
    """Return whether a minimum lies within `_SHIFT`, given how coordinates move the scores and values.

    `moves` has zero columns for padding. `curvature` is minus the Hessian.
    """
    padding = jnp.diag(1.0 * (moves == 0).all(axis=0))
    stiffness = jnp.linalg.eigvalsh(padding * jnp.abs(curvature).max() - curvature)[0]
    reach = 2 * jnp.sqrt(jnp.square(moves).sum(axis=1).max())
    return (jnp.linalg.norm(force) + rounding) * reach <= _SHIFT * stiffness
