"""Joint gradient flow on p and v with fixed E. Once ‖v‖ is large, v is slaved to p.

"Slaved" means that v is computed as a function of p. On separable data, ‖v‖ grows like exp(margin ‖p‖ / 2);
see docs/notes/joint_flow.md.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import msgspec
from flax import struct
from jax import Array

from jaxattn.base.model import Params
from jaxattn.core.arguments import checked
from jaxattn.core.arithmetic import nonzero, power_of_two
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import AnyArray, PathArray
from jaxattn.core.settings import Positive, PositiveInt, Static
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import Ends, FlowPath, Row, Stop, begin, integrate
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.far_field import Handover, hand_over, neglected
from jaxattn.dynamics.flows.joint_coordinates import JointCoordinates, joint_coordinates
from jaxattn.dynamics.flows.joint_minimum import settles_jointly
from jaxattn.dynamics.flows.minimum import balanced_or_unresolved, settles
from jaxattn.dynamics.flows.seeds import (
    Tolerance,
    flow_inputs,
    jacobian_columns,
    over_seeds,
    parts_from_params,
)
from jaxattn.dynamics.flows.ties import zero_if_absent
from jaxattn.theory.selection import Selection

# Value of ‖v‖ max ‖E_s‖ above which v is slaved (computed from p). Neglected terms decay like its inverse,
# and rounding of v changes weights by 1e-8. At ten times this value, rounding would double the number of
# steps.
FAR = 1e8
# Maximum relative error in dp/dt once v is slaved (computed from p).
_MISMATCH = 1e-3
# `params_at` rescales a longer v to this length, because its square would overflow float32.
_LONGEST = 1e15


@struct.dataclass(repr=False)
class JointPath(FlowPath):
    """Points on a path of gradient flow on p and v, in float64.

    For B seeds, all arrays have a leading axis B.

    The first half of the rows is at log-spaced arc lengths of (p, v). In the second half, v is slaved
    (computed from p), and the rows are at log-spaced arc lengths of p. Rows that were not reached repeat
    the last state.

    Attributes:
        p: (k, d); the points.
        v: (k, d); v/‖v‖, or zeros where v is zero.
        norm: (k,); ‖p‖.
        log_v_norm: (k,); log ‖v‖.
        steps: (k,) int32; number of steps attempted up to each row.
        status: () int32; why the path ended, a `Stop`.
        accepted: () int32; number of accepted steps.
        rejected: () int32; number of rejected steps.
        selection: the selected token in each sequence, which determines the max-margin v; meaningful only
            if the path has reached the second half.
        mismatch: (); error of dp/dt with v slaved: the larger of the sine of the angle between dp/dt
            before and after the transition, and the largest bound on the terms neglected afterwards (see
            `far_field.neglected`). NaN before the transition.
        columns: () int; number of columns in the Jacobian, as in `Path`.
    """

    p: AnyArray
    v: AnyArray
    norm: AnyArray
    log_v_norm: AnyArray
    steps: AnyArray
    status: AnyArray
    accepted: AnyArray
    rejected: AnyArray
    selection: Selection
    mismatch: AnyArray
    columns: AnyArray

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, PathArray]:
        """Return p, and v rescaled to norm min(‖v‖, 1e15)."""
        length = jnp.exp(jnp.minimum(self.log_v_norm[row], math.log(_LONGEST)))
        return {"p": self.p[row], "v": self.v[row] * length}

    def metrics_at(self, row: Array) -> dict[str, PathArray]:
        """Return ‖p‖, log ‖v‖, the mismatch, and the number of gradient evaluations so far."""
        evaluations = 2 * self.steps[row] * (6 + self.columns)
        found = {"p_norm": self.norm[row], **self.at(row, "log_v_norm")}
        return {**found, "mismatch": self.mismatch, "evaluations": evaluations}


@checked
def joint_flow(
    params: Params,
    corpus: Corpus,
    *,
    until_norm: Static[Positive] = 1e4,
    max_steps: PositiveInt = 10_000,
    rtol: Static[Tolerance] = 1e-5,
    points: Annotated[int, msgspec.Meta(ge=5)] = 64,
    width: int | None = None,
) -> JointPath:
    """Compute the path of gradient flow on p and v, with E fixed.

        dp/dt = -∂L/∂p,   dv/dt = -∂L/∂v.

    The loss is logistic. The path is integrated by arc length in two stages. Stage 1 follows p and v
    until ‖v‖ max_s ‖E_s‖ = 1e8. In stage 2, v is slaved to p: v/‖v‖ is the max-margin direction for the
    attended tokens, the multipliers of this max-margin problem serve as the weights of the sequences, and
    log ‖v‖ is integrated separately. If dp/dt differs between the two stages at the transition, the path
    ends there with status UNSETTLED. It also ends with this status if the sequence weights later deviate from
    the multipliers, if a neglected force becomes relevant, or if a sequence attends to another token. In that
    case, the final row is the last one at which all of this is ruled out.

    Args:
        params: E (V, d), p (d,), v (d,). Any of them may have a leading axis of B seeds.
        corpus: n sequences from two classes over V tokens; either one corpus, or B corpora with a leading
            axis.
        until_norm: ‖p‖ at which to stop. Use at most 1e4; beyond this, scores have too few digits.
        max_steps: maximum number of attempted steps per stage.
        rtol: error tolerance per step, relative to ‖p‖ + 1/max ‖E_s‖.
        points: number of recorded points k ≥ 5.
        width: number of seeds to vmap. The default is all seeds on an accelerator, and 1 on a CPU: the seeds
            run one after another, and any number of them is compiled once.

    Returns:
        The path. Its status is NORM if ‖p‖ reached `until_norm`. It is UNSETTLED if ‖v‖ grows, but p does not
        select a single token in every sequence on the margin of v, or if the forces neglected in stage 2 are
        no longer small. The path is valid up to its end. The status is BALANCED if the forces on p cancel at
        a strict minimum of the loss, so that p converges to a mixture of tokens, while v may grow. It is
        UNRESOLVED if the forces cancel up to rounding, but not at a strict minimum, so that smaller forces
        may still move p. If a seed fails, `status` records the failure, and other seeds are not affected.

    Raises:
        InputError: there are more than two classes, the shapes do not match, or `until_norm` is infinite.

    Source:
        This library's conjecture, based on the regularisation path of arXiv 2306.13596.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> path = ja.dynamics.joint_flow(params, corpus, until_norm=100.0)
        >>> path.p.shape, path.v.shape
        ((64, 4), (64, 4))
    """
    if not math.isfinite(until_norm):
        raise InputError(f"until_norm: must be finite, got {until_norm}")
    inputs, settings = flow_inputs(parts_from_params(params, corpus), corpus), (until_norm, rtol)
    return over_seeds(_follow, inputs, settings, max_steps, points=points, width=width)


@partial(jax.jit, static_argnames="points")
def _follow(
    E: Array, p: Array, v: Array, corpus: Corpus, settings: Sequence[Array], max_steps: Array, points: int
) -> JointPath:
    E = zero_if_absent(E, corpus)
    # Dividing by a power of two is exact, so paths agree bitwise for E 2^k, p 2^-k and v 2^-k.
    scale = power_of_two(jnp.abs(E).max())
    E, p, v, until_norm, rtol = E / scale, p * scale, v * scale, settings[0] * scale, settings[1]
    ends = Ends(until_norm, jnp.asarray(math.inf), jnp.zeros(()), rtol)
    flow = joint_coordinates(E, p, v, corpus, FAR)
    half = (points + 1) // 2
    reach = until_norm + flow.far
    near = integrate(flow, ends, reach, max_steps, begin(flow, ends, reach, half))
    handover = hand_over(flow, near.here.z, until_norm)
    arrived = (near.status == Stop.NORM) & ~handover.flow.ended(handover.flow.zero, until_norm)
    goes_on = arrived & (handover.mismatch <= _MISMATCH)
    # Do not integrate seeds that have ended.
    ends = ends._replace(norm=jnp.where(goes_on, until_norm, 0))
    initial = begin(handover.flow, ends, until_norm, points - half + 1)
    far = integrate(
        handover.flow, ends, until_norm, max_steps, initial, log_speed=handover.flow.log_gradient_norm
    )
    first, second = _directly(flow, near.rows), _rows_with_v_from_p(handover, far.rows, near.here.steps)
    log_scale = second["log_v_norm"] - handover.head.log_norm
    errors = jax.vmap(partial(neglected, handover))(far.rows.z, log_scale, far.rows.log_gradient_norm)
    good = jnp.cumprod(errors <= _MISMATCH)
    last = jnp.maximum(good.sum() - 1, 0)
    kept = jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(len(good)), last)], second)
    rows = jax.tree.map(lambda x, y: jnp.concatenate([x, jnp.where(goes_on, y[1:], x[-1])]), first, kept)
    valid = goes_on & (good[-1] > 0)
    near_status = balanced_or_unresolved(near.status, settles_jointly, flow, near.here.z)
    far_status = balanced_or_unresolved(far.status, settles, handover.flow, far.here.z)
    # Of the rows that are rejected, only the first counts towards the error.
    errors = jnp.where(jnp.arange(len(good)) <= last + 1, errors, 0)
    rows["p"], rows["norm"] = rows["p"] / scale, rows["norm"] / scale
    rows["log_v_norm"] = rows["log_v_norm"] - jnp.log(scale)
    return JointPath(
        **rows,
        columns=jacobian_columns(E),
        status=jnp.where(valid, far_status, jnp.where(arrived, Stop.UNSETTLED, near_status)),
        accepted=near.accepted + jnp.where(goes_on, far.accepted, 0),
        rejected=near.rejected + jnp.where(goes_on, far.rejected, 0),
        selection=Selection(handover.head.chosen),
        mismatch=jnp.where(arrived, jnp.maximum(handover.mismatch, errors.max()), jnp.nan),
    )


def _directly(flow: JointCoordinates, rows: Row) -> dict[str, Array]:
    z_p, z_v = jnp.split(rows.z, 2, axis=1)
    v, v_norm = flow.head.p(z_v), _norms(flow.head, z_v)
    return {
        "p": flow.query.p(z_p),
        "v": v / nonzero(v_norm)[:, None],
        "norm": _norms(flow.query, z_p),
        "log_v_norm": jnp.log(v_norm),
        "steps": rows.steps,
    }


def _rows_with_v_from_p(handover: Handover, rows: Row, before: Array) -> dict[str, Array]:
    """Return the rows in which v is computed from p, with ‖v‖ from r² = r_0² + 2 τ; see `far_field`.

    `before` is the number of steps before the transition.
    """
    log_scale = jnp.logaddexp(2 * handover.log_scale, math.log(2) + rows.log_time) / 2
    head = handover.head
    v = head.coefficients @ handover.flow.embeddings / jnp.exp(head.log_norm)
    return {
        "p": handover.flow.p(rows.z),
        "v": jnp.broadcast_to(v, (len(rows.z), len(v))),
        "norm": _norms(handover.flow, rows.z),
        "log_v_norm": head.log_norm + log_scale,
        "steps": before + rows.steps,
    }


def _norms(flow: Coordinates, z: Array) -> Array:
    return jax.vmap(partial(flow.norm, multiple=1.0))(z)
