"""Gradient flow on p and v together, E fixed: directly while ‖v‖ is moderate, with v slaved beyond.

On separable data ‖v‖ grows like exp(margin ‖p‖ / 2), see docs/notes/joint_flow.md.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Leaf
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import Ended, Ends, Row, Stop, begin, integrate
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.exact_flow import check_ends, check_settings
from jaxattn.dynamics.flows.far_field import Handover, hand_over, neglected
from jaxattn.dynamics.flows.joint_coordinates import JointCoordinates, joint_coordinates
from jaxattn.dynamics.flows.seeds import of_params, of_seeds, over_seeds
from jaxattn.theory.selection import Selection

# ‖v‖ max ‖E_s‖ at which v is slaved: what is left out falls like the inverse of it, rounding of v changes
# weights by 1e-8, and at ten times as much the flow takes twice the steps for want of digits.
FAR = 1e8
# Error of the velocity of p with v slaved: where both descriptions meet, and on the way.
_MISMATCH = 1e-3
# log ‖v‖ is half the log of the time of p with v slaved: two rules of it may differ by this in a step.
_CLOCK = 1e-3


@struct.dataclass(repr=False)
class JointPath(Ended):
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
        mismatch: (); error of dp/dt with v slaved, NaN before: the sine of the angle between either dp/dt
            where they meet, or the largest relative error of a weight from there on, whichever is larger.
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

    by arc length until ‖v‖ max ‖E_s‖ = 1e8, and from there with v slaved: v/‖v‖ the max-margin head of the
    attended tokens, its multipliers as weights of the sequences, log ‖v‖ apart. The path ends with status
    UNSETTLED where both meet if p's velocities do not agree there, and later on at the last row at which the
    multipliers are the weights.

    Args:
        params: E (V, d), p (d,), v (d,). Any of them may have a leading axis of B seeds.
        corpus: n sequences of two classes over V tokens; one, or B with a leading axis.
        until_norm: end at this ‖p‖, up to 1e4; scores have too few digits left beyond.
        max_steps: end after this many steps, tried or taken, in either half.
        rtol: error allowed per step, relative to ‖p‖ + 1/max ‖E_s‖.
        points: number of rows k ≥ 5 of the path.
        width: seeds integrated side by side; chosen for the backend by default.

    Returns:
        The path. Status NORM is the end that was asked for. UNSETTLED: ‖v‖ grows, but p does not settle on
        one token of every sequence on which v is tight; the path up to there stays. BALANCED: the forces
        cancel up to rounding, where p rests at a mixture of tokens while v may go on growing, or where no v
        separates what is attended to.
        A seed that fails says so, keeps its last state and does not stop the others.

    Raises:
        InputError: more than two classes, shapes that do not fit, an infinite end.

    Source:
        Conjectured by this library from the regularisation path of arXiv 2306.13596; see
        docs/notes/joint_flow.md.
    """
    check_settings(rtol, points, least=5)
    if not math.isfinite(until_norm):
        raise InputError(f"until_norm: {until_norm}; give a finite one")
    check_ends(until_norm=until_norm)
    inputs, settings = of_seeds(of_params(params, corpus), corpus), (until_norm, rtol)
    return over_seeds(_follow, inputs, settings, max_steps, points=points, width=width)


@struct.dataclass
class _Rows:
    """What is recorded of points, as in `JointPath`."""

    p: Array
    v: Array
    norm: Array
    log_v_norm: Array
    steps: Array


def _follow(
    E: Array, p: Array, v: Array, corpus: Corpus, settings: Sequence[Array], max_steps: Array, points: int
) -> JointPath:
    """Follow the path of one seed: directly, and on with v slaved if it came there."""
    until_norm, rtol = settings
    ends = Ends(until_norm, jnp.asarray(math.inf), jnp.zeros(()), rtol)
    flow = joint_coordinates(E, p, v, corpus, FAR)
    half = (points + 1) // 2
    reach = until_norm + flow.far
    near = integrate(flow, ends, reach, max_steps, begin(flow, ends, reach, half))
    handover = hand_over(flow, near.here.z, until_norm)
    arrived = (near.status == Stop.NORM) & ~handover.flow.ended(handover.flow.zero, until_norm)
    goes_on = arrived & (handover.mismatch <= _MISMATCH)
    # Whoever has ended is not sent further.
    ends = ends._replace(norm=jnp.where(goes_on, until_norm, 0))
    begun = begin(handover.flow, ends, until_norm, points - half + 1)
    far = integrate(handover.flow, ends, until_norm, max_steps, begun, clock=_CLOCK)
    first, second = _directly(flow, near.rows), _slaved(handover, far.rows, near.here.steps)
    errors = jax.vmap(partial(neglected, handover))(far.rows.z, second.log_v_norm - handover.head.log_norm)
    good = jnp.cumprod(errors <= _MISMATCH)
    last = jnp.maximum(good.sum() - 1, 0)
    kept = jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(len(good)), last)], second)
    rows = jax.tree.map(lambda x, y: jnp.concatenate([x, jnp.where(goes_on, y[1:], x[-1])]), first, kept)
    settled = goes_on & (good[-1] > 0)
    # Rows after the first that is not kept have no errors of their own.
    errors = jnp.where(jnp.arange(len(good)) <= last + 1, errors, 0)
    return JointPath(
        **vars(rows),
        status=jnp.where(settled, far.status, jnp.where(arrived, Stop.UNSETTLED, near.status)),
        accepted=near.accepted + jnp.where(goes_on, far.accepted, 0),
        rejected=near.rejected + jnp.where(goes_on, far.rejected, 0),
        selection=Selection(handover.head.chosen),
        mismatch=jnp.where(arrived, jnp.maximum(handover.mismatch, errors.max()), jnp.nan),
    )


def _directly(flow: JointCoordinates, rows: Row) -> _Rows:
    """Look up points of the joint flow."""
    z_p, z_v = jnp.split(rows.z, 2, axis=1)
    v, v_norm = flow.head.p(z_v), _norms(flow.head, z_v)
    return _Rows(flow.query.p(z_p), v / v_norm[:, None], _norms(flow.query, z_p), jnp.log(v_norm), rows.steps)


def _slaved(handover: Handover, rows: Row, before: Array) -> _Rows:
    """Look up points with v slaved, r² = r_0² + 2 τ; `before` are the steps up to there."""
    log_scale = jnp.logaddexp(2 * handover.log_scale, math.log(2) + rows.log_time) / 2
    head = handover.head
    v = head.coefficients @ handover.flow.embeddings / jnp.exp(head.log_norm)
    return _Rows(
        p=handover.flow.p(rows.z),
        v=jnp.broadcast_to(v, (len(rows.z), len(v))),
        norm=_norms(handover.flow, rows.z),
        log_v_norm=head.log_norm + log_scale,
        steps=before + rows.steps,
    )


def _norms(flow: Coordinates, z: Array) -> Array:
    return jax.vmap(partial(flow.norm, multiple=1.0))(z)
