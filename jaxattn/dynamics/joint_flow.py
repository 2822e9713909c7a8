"""Gradient flow on p and v together, E fixed: directly while ‖v‖ is moderate, with v slaved beyond.

On separable data ‖v‖ grows like exp(margin ‖p‖ / 2), see docs/joint_flow.md.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.arc_length import Ends, Stop, integrate, name
from jaxattn.dynamics.exact_flow import check_settings
from jaxattn.dynamics.joint_coordinates import joint_coordinates
from jaxattn.dynamics.seeds import of_seeds, over_seeds
from jaxattn.dynamics.slaved import slave, slaved_coordinates
from jaxattn.theory.selection import Selection
from jaxattn.trees import Leaf

# ‖v‖ max ‖E_s‖ at which v is slaved: what is left out is about the inverse of it, and rounding of v
# changes weights by 1e-10.
FAR = 1e6
# A wall stands where it would if it were vertical, up to the inverse of this share of its width.
_STEEP = 32.0
# Angle between the velocities of p in the two descriptions, where they meet.
_MISMATCH = 1e-3


@struct.dataclass
class JointPath:
    """Points along gradient flow on p and v, float64; with a leading seed axis B for B seeds.

    Row 0 is the start, the last row is where the path stopped. In the first half the rows lie at log-spaced
    arc lengths of (p, v), in the second at log-spaced arc lengths of p; rows that were not reached repeat the
    last state.

    Attributes:
        p: (k, d).
        v: (k, d); v/‖v‖.
        norm: (k,); ‖p‖.
        log_v_norm: (k,); log ‖v‖.
        steps: (k,) int32; steps tried so far.
        status: () int32; why the path ended, a `Stop`.
        accepted: () int32; steps taken.
        rejected: () int32; steps tried and thrown away.
        selection: the token of every sequence that v_mm is the max-margin head of; what it says is defined
            where the path has come to the second half.
        mismatch: (); sine of the angle between dp/dt directly and with v slaved, where they meet; NaN before.
    """

    p: Leaf
    v: Leaf
    norm: Leaf
    log_v_norm: Leaf
    steps: Leaf
    status: Leaf
    accepted: Leaf
    rejected: Leaf
    selection: Selection
    mismatch: Leaf

    @property
    def stop(self) -> Any:
        """The name of `status`: a string, or an array of strings for several seeds."""
        return name(self.status)


def joint_flow(
    params: Any,
    corpus: Corpus,
    *,
    until_norm: float = 1e4,
    max_steps: int = 10_000,
    rtol: float = 1e-5,
    points: int = 64,
    width: int | None = None,
) -> JointPath:
    """Follow gradient flow on p and v together, E fixed, logistic loss.

        dp/dt = -∂L/∂p,   dv/dt = -∂L/∂v,

    by arc length until ‖v‖ max ‖E_s‖ = 1e6, and from there with v slaved: v/‖v‖ the max-margin head of the
    attended tokens, its multipliers as weights of the sequences, log ‖v‖ apart. Both describe p's velocity
    where they meet; if they do not agree there, the path ends with status UNSETTLED.

    Args:
        params: E (V, d), p (d,), v (d,). Any of them may have a leading axis of B seeds.
        corpus: n sequences of two classes over V tokens; one, or B with a leading axis.
        until_norm: end at this ‖p‖, up to 1e4; scores have too few digits left beyond.
        max_steps: end after this many steps, tried or taken, in either half.
        rtol: error allowed per step, relative to ‖p‖ + 1/max ‖E_s‖.
        points: number of rows k ≥ 5 of the path.
        width: seeds integrated side by side; chosen for the backend by default.

    Returns:
        The path. Status NORM is the end that was asked for. UNSETTLED: ‖v‖ grows, but p does not settle on one
        token of every sequence on which v is tight. BALANCED: p and v rest, or v does, as where no v
        separates the attended tokens, so that p has to be followed by `exact_flow`. A seed that fails says
        so, keeps its last state and does not stop the others.

    Raises:
        InputError: more than two classes, shapes that do not fit, an end that is never reached.

    Source:
        Conjectured by this library from the regularisation path of arXiv 2306.13596; docs/joint_flow.md.
    """
    check_settings(rtol, points, least=5)
    settings = until_norm, rtol
    return over_seeds(_follow, of_seeds(params, corpus), settings, max_steps, points=points, width=width)


def _follow(E, p, v, corpus, settings, max_steps, points):
    """Follow the path of one seed."""
    until_norm, rtol = settings
    never, zero = jnp.asarray(math.inf), jnp.zeros(())
    unit = 1 / jnp.sqrt(jnp.square(E).sum(axis=1).max())
    far = FAR * unit
    flow = joint_coordinates(E, p, v, corpus, far)
    half = (points + 1) // 2
    near = integrate(flow, Ends(until_norm, never, zero, rtol), until_norm + far, max_steps, half)
    z_p, z_v = jnp.split(near.rows.z, 2, axis=-1)
    met = slave(flow, near.rows.z[-1], E)
    goes_on = (near.status == Stop.NORM) & ~flow.query.ended(z_p[-1], until_norm)
    settled = met.mismatch <= _MISMATCH
    status = jnp.where(goes_on & ~settled, Stop.UNSETTLED, near.status)
    goes_on &= settled

    # e^(-steepness · clearance) is to be far less than the weakest force on the way, e^(-p·(E_s - E_s')).
    steep = jnp.maximum(FAR, _STEEP * until_norm / (unit * met.clearance))
    weights = met.weights.replace(steepness=jnp.where(met.weights.steepness > 0, steep, 0))
    slow = slaved_coordinates(E, flow.query.p(z_p[-1]), corpus, met.values, weights)
    # Whoever has ended is not sent further.
    until = jnp.where(goes_on, until_norm, 0.0)
    beyond = integrate(slow, Ends(until, never, zero, rtol), until_norm, max_steps, points - half + 1)
    rows = jax.tree.map(lambda x: x[1:], beyond.rows)
    head = jax.vmap(flow.head.p)(z_v)
    head_norm = jax.vmap(partial(flow.head.norm, multiple=1.0))(z_v)
    # r² = r_0² + 2 τ.
    log_scale = jnp.logaddexp(2 * met.log_scale, math.log(2) + rows.log_time) / 2
    direction = jnp.where(goes_on, met.coefficients @ E / jnp.exp(met.log_norm), head[-1] / head_norm[-1])
    log_far_norm = jnp.where(goes_on, met.log_norm + log_scale, jnp.log(head_norm[-1]))
    both = lambda x, y: jnp.concatenate([x, y])  # noqa: E731
    norm = [jax.vmap(partial(of.norm, multiple=1.0))(x) for of, x in ((flow.query, z_p), (slow, rows.z))]
    return JointPath(
        p=both(flow.query.p(z_p), slow.p(rows.z)),
        v=both(head / head_norm[:, None], jnp.broadcast_to(direction, (len(rows.z), len(direction)))),
        norm=both(*norm),
        log_v_norm=both(jnp.log(head_norm), log_far_norm),
        steps=both(near.rows.steps, near.rows.steps[-1] + rows.steps),
        status=jnp.where(goes_on, beyond.status, status),
        accepted=near.accepted + beyond.accepted,
        rejected=near.rejected + beyond.rejected,
        selection=Selection(met.chosen),
        mismatch=jnp.where(goes_on | (status == Stop.UNSETTLED), met.mismatch, jnp.nan),
    )
