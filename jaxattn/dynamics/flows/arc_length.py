"""Integration of a flow along its arc length until the first stopping condition is met."""

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, no_type_check, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import PyTree

from jaxattn.core.pytrees import Brief, PathArray
from jaxattn.dynamics.flows import duration, stiff
from jaxattn.dynamics.flows.coordinates import Local

# Maximum relative error in ‖∂L/∂p‖ that a single step may cause.
GRADIENT_RTOL = 0.01
# Tolerance of the time's quadrature, relative to `gradient_rtol`.
_CLOCK = 0.1


class Stop(enum.IntEnum):
    """Status of a path: RUNNING, or why it ended. `path.reason` describes the status of a path in words."""

    RUNNING = 0
    NORM = 1
    ARC_LENGTH = 2
    DIRECTION = 3
    STEP_BUDGET = 4
    STATIONARY = 5
    BALANCED = 6
    FAILED = 7
    UNSETTLED = 8
    LOSS = 9
    UNRESOLVED = 10
    UNDECIDED = 11
    TIME = 12


_REASONS = {
    Stop.RUNNING: "running: the path has not ended yet",
    Stop.NORM: "norm: ‖p‖ reached until_norm",
    Stop.ARC_LENGTH: "arc_length: the path reached until_arc_length",
    Stop.DIRECTION: "direction: the direction of p changes by no more than until_direction",
    Stop.STEP_BUDGET: "step_budget: max_steps steps were accepted or rejected",
    Stop.STATIONARY: "stationary: the gradient is exactly zero",
    Stop.BALANCED: "balanced: the forces cancel at a strict minimum of the loss, so p converges to a finite "
    "point",
    Stop.FAILED: "failed: NaN, or a step that is too short for float64",
    Stop.UNSETTLED: "unsettled: v has become large but is not determined by p, which the rest of the path "
    "requires",
    Stop.LOSS: "loss: log L reached until_log_loss",
    Stop.UNRESOLVED: "unresolved: forces that cancel hide all others in float64, so it is not known which "
    "tokens tie, or whether p still moves",
    Stop.UNDECIDED: "undecided: the forces between two tokens cancel, and the order of the force that is "
    "left is not known; the path is exact up to its last point",
    Stop.TIME: "time: t reached until_time",
}


class FlowPath(Brief):
    """Base class of the paths returned by flows, with one row per recorded point.

    Row 0 is the start, and the last row is the end. For multiple seeds, all arrays have a leading seed axis.

    Attributes:
        status: () int32; the `Stop` code that records why the path ended.
    """

    status: PathArray  # a field or a property

    @property
    def rows(self) -> PyTree:
        """The object whose arrays have one row per recorded point: by default, the path itself."""
        return self

    @property
    def reached(self) -> PathArray:
        """Index of the last computed row, a scalar. All later rows repeat this row."""
        return (self.rows.steps < self.rows.steps[-1]).sum()

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, PathArray]:
        """Return the trained parameters at a row, by name and at full precision."""
        raise NotImplementedError(f"{type(self).__name__}.params_at")

    def metrics_at(self, row: Array) -> dict[str, PathArray]:
        """Return the recorded metrics at a row, as scalars by name."""
        raise NotImplementedError(f"{type(self).__name__}.metrics_at")

    def at(self, row: Array, *names: str) -> dict[str, PathArray]:
        """Return the named fields of the path at a row."""
        return {name: getattr(self.rows, name)[row] for name in names}

    @property
    def stop(self) -> str | np.ndarray:
        """Name of `status`: a string, or an array of strings for multiple seeds."""
        names = np.array([stop.name.lower() for stop in Stop])[np.asarray(self.status)]
        return str(names) if names.ndim == 0 else names

    @property
    def reason(self) -> str | list[str]:
        """Description of the stopping condition, or a list of descriptions for multiple seeds."""
        if np.ndim(self.status) == 0:
            return _REASONS[Stop(int(self.status))]
        return [_REASONS[Stop(int(one))] for one in np.asarray(self.status)]


@runtime_checkable
class Flow(Protocol):
    """Unit-speed flow dz/ds = u(z) from z = 0.

    Attributes:
        zero: (r,); the initial point, all zeros.
        unit: (); arc length over which the direction u may change by O(1).
    """

    @property
    def zero(self) -> Array: ...  # noqa: D102
    @property
    def unit(self) -> Array: ...  # noqa: D102

    def velocity(self, z: Array) -> Array:
        """Compute the velocity u(z), (r,)."""
        ...

    def at(self, z: Array) -> Local:
        """Compute the velocity u, its Jacobian and the gradient norm."""
        ...

    def solver(self, jacobian: Any, c: Array) -> stiff.Solver:
        """Return a solver for (1 - c J) x = b, where J is `jacobian`, as returned by `at`."""
        ...

    def inner(self, x: Array, y: Array) -> Array:
        """Compute the inner product of two velocities, a scalar."""
        ...

    def sine(self, z: Array, velocity: Array) -> Array:
        """Compute the sine of the angle between the position vector of a point and its velocity, a scalar."""
        ...

    def error(self, start: Array, end: Array, error: Array, rtol: float | Array) -> Array:
        """Compute the ratio of a step's error to the tolerance, a scalar."""
        ...

    def norm(self, x: Array) -> Array:
        """Compute the norm of a displacement, a scalar."""
        ...

    def ended(self, z: Array, until_norm: float | Array) -> Array:
        """Return whether the norm of the point z has reached `until_norm`, as a boolean scalar."""
        ...

    def to_end(self, z: Array, velocity: Array, until_norm: float | Array) -> Array:
        """Return the step s at which the straight line z + s · `velocity` reaches the norm `until_norm`."""
        ...


class Ends(NamedTuple):
    """Stopping conditions and error tolerances for a path, as in the arguments of `exact_flow`."""

    norm: float | Array
    arc_length: float | Array
    direction: float | Array
    rtol: float | Array
    gradient_rtol: float | Array = GRADIENT_RTOL


@no_type_check
@struct.dataclass
class Row:
    """Quantities recorded at a point.

    Attributes:
        z: (r,); coordinates.
        arc_length: (); s.
        log_gradient_norm: (); log of the gradient norm.
        log_time: (); log t, where t is the time of the flow whose speed is the gradient norm; -inf at the
            start, and if the time is not computed.
        steps: () int32; number of steps attempted so far.
    """

    z: Array
    arc_length: Array
    log_gradient_norm: Array
    log_time: Array
    steps: Array


@no_type_check
@struct.dataclass
class Integration:
    """State of an integration, from which it can be resumed.

    Attributes:
        here: the current point.
        local: the flow evaluated at the current point. Zeros before the first step, which has length 0
            and only evaluates the flow.
        h: (); length of the next step.
        rows: recorded points, with a leading axis k. Rows that were not reached repeat the last point.
        reached: () int32; number of rows reached.
        status: () int32; why the path ended, a `Stop`, or RUNNING.
        accepted: () int32; number of accepted steps.
        rejected: () int32; number of rejected steps.
    """

    here: Row
    local: Local
    h: Array
    rows: Row
    reached: Array
    status: Array
    accepted: Array
    rejected: Array


def begin(
    flow: Flow, ends: Ends, reach: Array, points: int, log_gradient_norm: Array | float = math.nan
) -> Integration:
    """Return the initial state of an integration.

    Args:
        flow: the flow.
        ends: the stopping conditions.
        reach: approximate length of the path.
        points: number of rows k ≥ 3: the start, log-spaced arc lengths up to `reach`, and the end.
        log_gradient_norm: log of the gradient norm at the start. Required only if row 0 is read before the
            first step.
    """
    z = flow.zero
    zero, count = jnp.zeros(()), jnp.zeros((), jnp.int32)
    # Use only the shapes of the result, because compiling a second evaluation here would double the compile
    # time.
    local = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(flow.at, z))
    here = Row(
        z=z,
        arc_length=zero,
        log_gradient_norm=zero + log_gradient_norm,
        log_time=zero - jnp.inf,
        steps=count,
    )
    integration = Integration(
        here=here,
        local=local,
        h=first_step(flow.unit, ends, reach),
        rows=jax.tree.map(lambda x: jnp.broadcast_to(x, (points, *x.shape)), here),
        reached=count,
        status=count,
        accepted=count,
        rejected=count,
    )
    return restart(integration, integration.h)


def first_step(unit: Array, ends: Ends, reach: Array) -> Array:
    """Return the length, a scalar, of the first nonzero step; the initial step has length 0."""
    return jnp.minimum(unit, reach) * ends.rtol ** (1 / stiff.ORDER)


def restart(integration: Integration, h: Array) -> Integration:
    """Return an integration restarted in new coordinates whose origin is the current point.

    Earlier rows are kept. The next step has length 0: it evaluates the flow, and may reach the first row.
    The step after it has length h.
    """
    return replace(
        integration,
        here=replace(integration.here, z=jnp.zeros_like(integration.here.z)),
        local=jax.tree.map(jnp.zeros_like, integration.local),
        h=h,
        status=jnp.full_like(integration.status, Stop.RUNNING),
        accepted=integration.accepted - 1,
    )


def integrate(
    flow: Flow,
    ends: Ends,
    reach: Array,
    max_steps: Array,
    integration: Integration,
    rows: int | Array | float = math.inf,
    log_speed: Callable[[Array], Array] | None = None,
) -> Integration:
    """Integrate one path until the first stopping condition is met, and return the final state.

    Args:
        flow: the flow, in the coordinates of `integration.here`.
        ends: the stopping conditions.
        reach: approximate length of the path.
        max_steps: maximum number of steps, accepted or rejected.
        integration: state of the integration; see `begin`.
        rows: number of rows after which to return with status RUNNING; unlimited by default.
        log_speed: function of z that returns the log of the gradient norm, which the time requires; None to
            compute no time.
    """
    points = len(integration.rows.steps)
    first = jnp.minimum(flow.unit, reach / 100)
    # Reserve the last row for the end point.
    marks = jnp.append(jnp.append(0, jnp.geomspace(first, reach, points - 1)[:-1]), jnp.inf)
    integration = jax.lax.while_loop(
        lambda integration: (integration.status == Stop.RUNNING) & (integration.reached < rows),
        partial(_step, flow, ends, first, max_steps, marks, log_speed),
        integration,
    )
    select = jax.vmap(jnp.where, in_axes=(0, 0, None))
    old = jnp.arange(points) < integration.reached
    filled = jax.tree.map(lambda rows, here: select(old, rows, here), integration.rows, integration.here)
    return replace(integration, rows=filled)


def _step(
    flow: Flow,
    ends: Ends,
    first: Array,
    max_steps: Array,
    marks: Array,
    log_speed: Callable[[Array], Array] | None,
    state: Integration,
) -> Integration:
    here, local = state.here, state.local
    mark = jnp.minimum(marks[state.reached], ends.arc_length)
    to_mark = mark - here.arc_length
    h = jnp.minimum(state.h, jnp.minimum(to_mark, flow.to_end(here.z, local.velocity, ends.norm)))
    # After a restart, `local` contains zeros: this step only evaluates the flow.
    h = jnp.where((local.velocity == 0).all(), 0, h)
    step = stiff.step(flow.velocity, here.z, local.velocity, partial(flow.solver, local.jacobian), h)
    arrived = flow.at(step.end)
    steepest = jnp.maximum(jnp.abs(local.log_slope), jnp.abs(arrived.log_slope))
    error = jnp.maximum(
        flow.error(here.z, step.end, step.error, ends.rtol),
        flow.norm(step.error) * steepest / ends.gradient_rtol,
    )
    error = jnp.where(arrived.finite & ~jnp.isnan(error), error, jnp.inf)
    # A unit-speed path that reverses direction within a step has passed a stationary point.
    turns = flow.inner(local.velocity, arrived.velocity) < 0
    ok = (error <= 1) & ~turns
    log_time = here.log_time
    if log_speed is not None:
        log_time = duration.log_time(
            lambda fraction: log_speed(step.at(fraction)),
            (local.log_gradient_norm, arrived.log_gradient_norm),
            log_before=here.log_time,
            log_h=jnp.log(h),
            tolerance=_CLOCK * ends.gradient_rtol,
            wanted=ok & (h > 0),
        )
    there = Row(
        z=step.end,
        arc_length=jnp.where(h == to_mark, mark, here.arc_length + h),
        log_gradient_norm=arrived.log_gradient_norm,
        log_time=log_time,
        steps=state.accepted + state.rejected + 1,
    )
    h_free = h * jnp.where(turns, 0.2, jnp.clip(0.8 * error ** (-1 / stiff.ORDER), 0.2, 5.0))
    # A step that was shortened to end on a row must not reduce the planned length of the next step.
    h_next = jnp.where(ok & (h < state.h), jnp.maximum(h_free, state.h), h_free)
    here, local = jax.tree.map(partial(jnp.where, ok), (there, arrived), (here, local))
    record = ok & (h == to_mark)
    row = jnp.where(record, state.reached, len(marks))
    moved = replace(
        state,
        here=here,
        local=local,
        h=h_next,
        rows=jax.tree.map(lambda rows, x: rows.at[row].set(x, mode="drop"), state.rows, here),
        reached=state.reached + record,
        accepted=state.accepted + ok,
        rejected=state.rejected + ~ok,
    )
    return replace(moved, status=_status(flow, ends, first, max_steps, moved, turns))


def _status(
    flow: Flow, ends: Ends, first: Array, max_steps: Array, state: Integration, turns: Array
) -> Array:
    here, local, h = state.here, state.local, state.h
    short = ~(h > 4 * jnp.finfo(h.dtype).eps * (here.arc_length + flow.unit))
    sine = flow.sine(here.z, local.velocity)
    stops = {
        Stop.NORM: flow.ended(here.z, ends.norm),
        Stop.ARC_LENGTH: here.arc_length >= ends.arc_length,
        Stop.STATIONARY: jnp.isneginf(local.log_gradient_norm),
        Stop.BALANCED: local.balanced | (turns & short),
        Stop.DIRECTION: (ends.direction > 0) & (sine <= ends.direction) & (here.arc_length >= first),
        Stop.FAILED: short,
        Stop.STEP_BUDGET: state.accepted + state.rejected >= max_steps,
    }
    status = jnp.asarray(Stop.RUNNING, jnp.int32)
    # Select the first condition that is met. jnp.select uses int64 indices, which cannot be lowered in a jit
    # with float64 disabled.
    for stop, holds in reversed(stops.items()):
        status = jnp.where(holds, jnp.int32(stop), status)
    return status
