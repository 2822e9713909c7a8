"""Gradient flow dp/dt = -∂L/∂p, with its path parametrised by arc length.

The flow slows down like e^(-margin ‖p‖), but its path does not depend on the parametrisation:

    dp/ds = -∂L/∂p / ‖∂L/∂p‖,   t(s) = ∫ ds / ‖∂L/∂p‖.

For large ‖p‖, the path is almost straight, so the step length grows like ‖p‖. Extending the path by a factor
of 100 in ‖p‖ is therefore cheap.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores, require_values
from jaxattn.core import backend
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError
from jaxattn.core.loops import cond_under_vmap
from jaxattn.core.pytrees import AnyArray, PathArray
from jaxattn.core.scaling import power_of_two
from jaxattn.core.settings import NotNegative, Positive, PositiveInt, Static
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import (
    GRADIENT_RTOL,
    Ends,
    FlowPath,
    Integration,
    Row,
    Stop,
    begin,
    first_step,
    integrate,
    restart,
)
from jaxattn.dynamics.flows.balance import find_ties, initial_balance
from jaxattn.dynamics.flows.coordinates import Coordinates, coordinates
from jaxattn.dynamics.flows.minimum import settles
from jaxattn.dynamics.flows.seeds import (
    Inputs,
    Tolerance,
    flow_inputs,
    jacobian_columns,
    over_seeds,
    refuse_derivative,
    to_float64,
)
from jaxattn.dynamics.flows.ties import Ties, no_ties, selected, tied_coordinates, zero_if_isolated
from jaxattn.theory.selection import Selection

# Maximum number of stages; each ends when a tie forms or breaks.
_STAGES = 256
# Maximum difference per step of two quadrature rules for the log of the time, relative to `gradient_rtol`.
_CLOCK = 10.0


class _LinearPath(FlowPath):
    """Path of a single parameter. Its last rows may not have been computed yet."""

    p: AnyArray
    norm: AnyArray
    columns: AnyArray

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, PathArray]:
        return dict.fromkeys(train, self.p[row])

    def metrics_at(self, row: Array) -> dict[str, PathArray]:
        found = self.at(row, "arc_length", "log_gradient_norm", "log_time")
        # Each step takes six evaluations, plus one per column of the Jacobian.
        evaluations = self.rows.steps[row] * (6 + self.columns)
        return {"p_norm": self.norm[row], **found, "evaluations": evaluations}


@struct.dataclass(repr=False)
class Path(_LinearPath):
    """Points on a path of gradient flow on p, in float64. For B seeds, all arrays have a leading axis B.

    Row 0 is the start, the last row is the end, and the rows in between are at log-spaced arc lengths.
    Rows that were not reached repeat the last state.

    Attributes:
        p: (k, d); the points.
        arc_length: (k,); s, length of the path up to each row.
        norm: (k,); ‖p‖.
        log_gradient_norm: (k,); log ‖∂L/∂p‖, -inf if the gradient is exactly zero.
        log_time: (k,); log t, -inf at the start.
        steps: (k,) int32; number of steps attempted up to each row.
        status: () int32; why the path ended, a `Stop`.
        accepted: () int32; number of accepted steps.
        rejected: () int32; number of rejected steps.
        columns: () int; number of columns in the Jacobian. Each costs one gradient evaluation per step.
        selection: the highest-scoring token in each sequence at the end, and the tokens that tie with it
            in the limit: their scores differ by a bounded amount while ‖p‖ grows.
    """

    p: AnyArray
    arc_length: AnyArray
    norm: AnyArray
    log_gradient_norm: AnyArray
    log_time: AnyArray
    steps: AnyArray
    status: AnyArray
    accepted: AnyArray
    rejected: AnyArray
    columns: AnyArray
    selection: Selection


@checked
def exact_flow(
    scores: Scores,
    p: Float[Array | np.ndarray, "..."],
    *,
    until_norm: Static[Positive] = 1e6,
    until_arc_length: Static[Positive] | None = None,
    until_direction: Static[NotNegative] = 0.0,
    max_steps: PositiveInt = 10_000,
    rtol: Static[Tolerance] = 1e-5,
    gradient_rtol: float = GRADIENT_RTOL,
    points: Annotated[int, msgspec.Meta(ge=3)] = 64,
    width: int | None = None,
) -> Path:
    """Compute the exact path of gradient flow on p up to a stopping condition.

    Keys and values are fixed. The loss is logistic for two classes, and cross-entropy for K > 2:

        L = (1/n) Σ_X ℓ(f(X), y_X),   f(X) = Σ_s q_s γ_s,   q = softmax of a = Φ p over X.

    All computations are in float64. The sine of the angle between p and dp/dt is the change in p/‖p‖ per
    e-fold of ‖p‖, and approximately the distance of p/‖p‖ from its limit.

    Args:
        scores: keys (m, D), values (m,) for two classes or (m, K) for K > 2, and bags of n sequences. Any
            of them may have a leading axis of B seeds. `theory.scores.one_layer` builds scores from E and
            v.
        p: (D,), or (B, D); the starting point.
        until_norm: ‖p‖ at which to stop.
        until_arc_length: arc length at which to stop; required if `until_norm` is infinite.
        until_direction: sine of the angle between p and dp/dt at or below which to stop.
        max_steps: maximum number of steps, accepted or rejected.
        rtol: error tolerance per step, relative to ‖p‖ + 1/max ‖E_s‖, where E_s are the keys.
        gradient_rtol: maximum relative error in ‖∂L/∂p‖ per step, to keep `log_time` accurate. Pass
            infinity to save steps if only the path is needed.
        points: number of recorded points k ≥ 3.
        width: number of seeds to vmap; the default depends on the backend.

    Returns:
        The path. If a seed fails (because of NaN or a step too short for float64), `status` records the
        failure and the path ends with the seed's last state. Other seeds are not affected.

    Raises:
        InputError: `scores.values` is None, the shapes do not match, or no stopping condition is finite.

    Source:
        Lemma 4.2 and Theorem 4.3 of arXiv 2505.17282.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.Scores(np.eye(3), corpus, np.array([1.0, -1.0, 0.0]))
        >>> path = ja.dynamics.exact_flow(scores, np.zeros(3), until_norm=100.0)
        >>> ja.dynamics.Stop(int(path.status)).name, (path.p[-1] / path.norm[-1]).round(2).tolist()
        ('NORM', [0.41, 0.41, -0.82])
    """
    ends = ends_of(until_norm, until_arc_length, until_direction, rtol, gradient_rtol)
    return over_seeds(_follow, _inputs(scores, p), ends, max_steps, points=points, width=width)


def ends_of(
    until_norm: float,
    until_arc_length: float | None,
    until_direction: float,
    rtol: float,
    gradient_rtol: float = GRADIENT_RTOL,
) -> Ends:
    """Return the stopping conditions and error tolerances for `exact_flow`.

    Raises:
        InputError: a value is out of range, or no stopping condition is finite.
    """
    arc_length = math.inf if until_arc_length is None else until_arc_length
    if not (math.isfinite(until_norm) or math.isfinite(arc_length)):
        raise InputError(
            "until_norm and until_arc_length are both infinite; set at least one to a finite value"
        )
    if not gradient_rtol > 0:
        raise InputError(f"gradient_rtol: must be positive, got {gradient_rtol}")
    return Ends(until_norm, arc_length, until_direction, rtol, gradient_rtol)


def _inputs(scores: Scores, p: Array | np.ndarray) -> Inputs:
    require_values(scores)
    columns = scores.corpus.num_classes > 2
    parts = {"keys": (scores.keys, 2), "p": (p, 1), "values": (scores.values, 1 + columns)}
    return flow_inputs(parts, scores.corpus)


@struct.dataclass(repr=False)
class PathSoFar(_LinearPath):
    """Path computed so far. Each stage of the path has different ties.

    Attributes:
        p: (k, d); with rows as in `Path`.
        norm: (k,); ‖p‖.
        scale: (); the power of two by which the keys are divided, and p is multiplied, in `integration` and
            `start`.
        integration: state of the integration, in the coordinates of the current stage.
        start: (d,); p at the start of the current stage.
        ties: tied tokens in the current stage.
        tied: () bool; True if there are any tied tokens.
        left: () int32; maximum number of further stages, 0 once the path has ended.
        accepted_before: () int32; number of steps accepted before the current stage.
        columns: () int; number of columns in the Jacobian.
    """

    p: Array
    norm: Array
    scale: Array
    integration: Integration
    start: Array
    ties: Ties
    tied: Array
    left: Array
    accepted_before: Array
    columns: Array

    @property
    def rows(self) -> Row:
        """Quantities recorded at each row."""
        rows, log_scale = self.integration.rows, jnp.log(self.scale)
        return rows.replace(  # type: ignore[attr-defined]
            arc_length=rows.arc_length / self.scale,
            log_gradient_norm=rows.log_gradient_norm + log_scale,
            log_time=rows.log_time - 2 * log_scale,
        )

    @property
    def status(self) -> Array:
        """Status of the path: a `Stop`, as an int32 scalar. It is RUNNING until the path ends."""
        return self.integration.status


def begin_path(scores: Scores, p: Array, ends: Ends, points: int) -> PathSoFar:
    """Return a path for one seed that contains only its start. `continue_path` computes further rows."""
    keys, start, values, corpus = _inputs(scores, p).arrays
    with backend.float64():
        numbers = *to_float64((keys, start, values)), corpus, to_float64(ends)
        return _begin(*numbers, points, evaluate_start=True)


def continue_path(
    scores: Scores, path: PathSoFar, ends: Ends, max_steps: int | Array, row: int | Array
) -> PathSoFar:
    """Extend a path from `begin_path`, with the same scores, until it reaches the given row or ends."""
    with backend.float64():
        numbers = *to_float64((scores.keys, scores.values)), scores.corpus, path, to_float64(ends)
        return _continued(*numbers, jnp.asarray(max_steps, jnp.int32), row + 1)


def _follow(
    E: Array, p: Array, values: Array, corpus: Corpus, ends: Ends, max_steps: Array, points: int
) -> Path:
    initial = _begin(E, p, values, corpus, ends, points)
    path = _continue(E, values, corpus, initial, ends, max_steps, points)
    rows = path.rows
    return Path(
        p=path.p,
        arc_length=rows.arc_length,
        norm=path.norm,
        log_gradient_norm=rows.log_gradient_norm,
        log_time=rows.log_time,
        steps=rows.steps,
        status=path.status,
        accepted=path.integration.accepted,
        rejected=path.integration.rejected,
        columns=path.columns,
        selection=Selection(selected(_unit_keys(E, corpus)[0], path.start, corpus, path.ties.leader)),
    )


def _unit_keys(E: Array, corpus: Corpus) -> tuple[Array, Array]:
    """Divide the keys by the power of two next to their length, which is exact, and return both.

    Keys that exert no force are set to zero. Paths then agree bitwise for keys E 2^k and p 2^-k.
    """
    E = zero_if_isolated(E, corpus)
    scale = power_of_two(jnp.abs(E).max())
    return E / scale, scale


def _relative_to_last(values: Array) -> Array:
    """Subtract the output of the last class for K > 2, because a constant added to all outputs has no effect.

    Forces that cancel between the classes would otherwise leave the rounding errors of this constant.
    """
    return values if values.ndim == 1 else values - values[:, -1:]


def _in_units(ends: Ends, scale: Array) -> Ends:
    return ends._replace(norm=ends.norm * scale, arc_length=ends.arc_length * scale)


@partial(jax.jit, static_argnames=("points", "evaluate_start"))
def _begin(
    E: Array,
    p: Array,
    values: Array,
    corpus: Corpus,
    ends: Ends,
    points: int,
    evaluate_start: bool = False,
) -> PathSoFar:
    """Return a path that contains only its start, with the gradient norm there if `evaluate_start`."""
    E, scale = _unit_keys(E, corpus)
    values = _relative_to_last(values)
    ends, start = _in_units(ends, scale), p * scale
    ties = no_ties(E, values, corpus)
    flow = tied_coordinates(E, start, corpus, ties)
    log_gradient_norm = flow.log_gradient_norm(flow.zero) if evaluate_start else math.nan
    return PathSoFar(
        p=jnp.broadcast_to(p, (points, len(p))),
        norm=jnp.broadcast_to(jnp.linalg.norm(p), (points,)),
        scale=scale,
        integration=begin(flow, ends, _reach(ends), points, log_gradient_norm),
        start=start,
        ties=ties,
        tied=jnp.asarray(False),
        left=jnp.asarray(_STAGES, jnp.int32),
        accepted_before=jnp.zeros((), jnp.int32),
        columns=jacobian_columns(E),
    )


def _continue(
    E: Array,
    values: Array,
    corpus: Corpus,
    path: PathSoFar,
    ends: Ends,
    max_steps: Array,
    rows: int | Array,
) -> PathSoFar:
    E, scale = _unit_keys(E, corpus)
    values = _relative_to_last(values)
    ends = _in_units(ends, scale)

    def stage(before: PathSoFar) -> PathSoFar:
        flow = tied_coordinates(E, before.start, corpus, before.ties)
        clock = _CLOCK * ends.gradient_rtol
        integration = integrate(flow, ends, _reach(ends), max_steps, before.integration, rows, clock)
        old = jnp.arange(len(before.p)) < before.integration.reached
        z = integration.rows.z
        p = jnp.where(old[:, None], before.p, _points(flow, z, before) / scale)
        norm = jnp.where(old, before.norm, jax.vmap(partial(flow.norm, multiple=1.0))(z) / scale)
        after = before.replace(p=p, norm=norm, integration=integration)  # type: ignore[attr-defined]
        return _next_stage(E, values, corpus, ends, before, after)

    def going(path: PathSoFar) -> Array:
        return (path.left > 0) & (path.integration.reached < rows)

    return jax.lax.while_loop(going, stage, path)


_continued = jax.custom_jvp(jax.jit(_continue))
_continued.defjvp(refuse_derivative)


def _reach(ends: Ends) -> Array:
    return jnp.minimum(ends.norm, ends.arc_length)


def _points(flow: Coordinates, z: Array, path: PathSoFar) -> Array:
    """Return p at the points z, without adding rounding errors to score differences of tied tokens."""
    p = flow.p(z)
    if flow.basis is not None:
        return p
    moved = p - path.start
    return path.start + (moved - (moved @ path.ties.normals.T) @ path.ties.normals)


def _settles(_: Array, E: Array, p: Array, values: Array, corpus: Corpus) -> Array:
    """Return whether p is at a strict minimum of the loss, up to rounding errors."""
    flow = coordinates(E, p, values, corpus)
    return settles(flow, flow.zero)


def _next_stage(
    E: Array, values: Array, corpus: Corpus, ends: Ends, before: PathSoFar, after: PathSoFar
) -> PathSoFar:
    integration, ties = after.integration, before.ties
    runs = integration.status == Stop.RUNNING
    slides = before.tied & ties.watch.slides & ~runs
    balances = integration.status == Stop.BALANCED
    looks = balances & (~before.tied | slides)
    end = after.p[-1] * after.scale
    given = E, end, values, corpus, ties, slides, looks
    otherwise = end, initial_balance(E, end, values, corpus)
    p, found = cond_under_vmap(slides | looks, lambda _, *given: find_ties(*given), otherwise, *given)
    # If no step was accepted, the next stage would end at the same point.
    stuck = balances & before.tied & (integration.accepted == before.accepted_before)
    lost = balances & ~before.tied & ~found.stable
    status = jnp.where(stuck | lost | (balances & (before.left == 1)), Stop.UNRESOLVED, integration.status)
    status = jnp.where(lost & found.undecided, Stop.UNDECIDED, status)
    # Only tied scores could still change, and they are balanced. Unless a force is neglected, p stays at this
    # point; the loss with all tokens must show that it does.
    still = before.tied & (status == Stop.STATIONARY)
    rests = cond_under_vmap(
        still & (ties.log_floor == -jnp.inf), _settles, jnp.asarray(False), E, end, values, corpus
    )
    status = jnp.where(still, jnp.where(rests, Stop.BALANCED, Stop.UNRESOLVED), status)
    goes_on = balances & ~stuck & ~lost & (before.left > 1)

    def choose(x: Array, otherwise: Array) -> Array:
        return jnp.where(goes_on, x, otherwise)

    ended = integration.replace(status=status.astype(jnp.int32))  # type: ignore[attr-defined]
    again = restart(
        integration, first_step(1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()), ends, _reach(ends))
    )
    return PathSoFar(
        p=after.p.at[-1].set(p / after.scale),
        norm=after.norm,
        scale=after.scale,
        integration=jax.tree.map(choose, again, ended),
        start=choose(found.p, jnp.where(runs, before.start, p)),
        ties=jax.tree.map(choose, found.ties, ties),
        tied=choose(found.stable, before.tied),
        left=choose(before.left - 1, jnp.where(runs, before.left, 0)),
        accepted_before=choose(integration.accepted, before.accepted_before),
        columns=after.columns,
    )
