"""Test whether p and v are at a strict local minimum of the loss, as `minimum` does for p."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.joint_coordinates import JointCoordinates, joint_curvature, joint_force
from jaxattn.dynamics.flows.minimum import (
    at_minimum,
    range_of,
    rounding_of_force,
    score_differences,
    sum_of_squares,
)


def settles_jointly(flow: JointCoordinates, z: Float[Array, " m"]) -> Bool[Array, ""]:
    """Return whether p and v converge to a minimum near the point z, or p does while v grows."""
    corpus, rows = flow.query.corpus, flow.query.rows
    z_p, z_v = jnp.split(z, 2)
    forces = joint_force(corpus, *flow.scores_and_values(z))
    curvature = joint_curvature(corpus, forces)
    of_p, p_known = range_of(score_differences(corpus, rows))
    of_v, v_known = range_of(_embeddings(corpus, rows))
    moves = rows @ of_p, rows @ of_v
    pull = forces.scores @ moves[0], forces.head @ moves[1]
    blocks = [[x.T @ curvature[i, :, j] @ y for j, y in enumerate(moves)] for i, x in enumerate(moves)]
    rounding = rounding_of_force(flow.query, z_p), rounding_of_force(flow.head, z_v)
    gross = jnp.exp(forces.shift) * forces.of_scores.gross
    p_rests = at_minimum(moves[0], pull[0], blocks[0][0], rounding[0] * gross)
    both_rest = at_minimum(
        jnp.concatenate(moves, axis=1), jnp.concatenate(pull), jnp.block(blocks), sum(rounding) * forces.gross
    )
    return p_known & jnp.where(flow.is_far(z_v), p_rests, both_rest & v_known)


def _embeddings(corpus: Corpus, rows: Float[Array, "V r"]) -> Float[Array, "r r"]:
    """Return Σ_X Σ_i E_i E_iᵀ."""
    bags = corpus.bags
    return sum_of_squares(rows, bags.index.astype(jnp.int32), bags.count > 0, jnp.zeros(rows.shape[1]))
