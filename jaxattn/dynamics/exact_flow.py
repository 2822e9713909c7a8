"""Gradient flow on p, followed by arc length: the same path as dp/dt = -∂L/∂p, without its clock.

The flow slows down like e^(-margin ‖p‖), but its path does not depend on the clock:

    dp/ds = -∂L/∂p / ‖∂L/∂p‖,   t(s) = ∫ ds / ‖∂L/∂p‖.

Late in the path p is almost straight, so the steps grow like ‖p‖ and the last factor of 100 is nearly free.
"""

import enum
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.dynamics import rosenbrock
from jaxattn.dynamics.coordinates import Coordinates, Local, coordinates
from jaxattn.errors import InputError
from jaxattn.trees import Leaf


class Stop(enum.IntEnum):
    """Why a path ends; `Path.reason` says it in words."""

    RUNNING = 0
    NORM = 1
    ARC_LENGTH = 2
    DIRECTION = 3
    STEP_BUDGET = 4
    STATIONARY = 5
    BALANCED = 6
    FAILED = 7


_REASONS = {
    Stop.RUNNING: "running: it has not ended",
    Stop.NORM: "norm: ‖p‖ is until_norm",
    Stop.ARC_LENGTH: "arc_length: the path is as long as until_arc_length",
    Stop.DIRECTION: "direction: p/‖p‖ turns no faster than until_direction",
    Stop.STEP_BUDGET: "step_budget: max_steps were taken or tried",
    Stop.STATIONARY: "stationary: the gradient is exactly zero",
    Stop.BALANCED: "balanced: the forces of the sequences cancel up to rounding; either p is a finite "
    "stationary point, or it goes on to grow where forces are too weak beside the others for float64 to tell",
    Stop.FAILED: "failed: NaN, or a step too short to represent",
}


@struct.dataclass
class Path:
    """Points along gradient flow on p, float64; with a leading seed axis B on every array for B seeds.

    Row 0 is the start, the last row is where the path stopped; the rows between lie at log-spaced arc
    lengths, and rows that were not reached repeat the last state.

    Attributes:
        p: (k, d).
        arc_length: (k,); s, length of the path so far.
        norm: (k,); ‖p‖.
        log_gradient_norm: (k,); log ‖∂L/∂p‖, -inf where the gradient is exactly zero.
        log_time: (k,); log t of the flow dp/dt = -∂L/∂p, -inf at the start.
        steps: (k,) int32; steps tried so far.
        status: () int32; why the path ended, a `Stop`.
        accepted: () int32; steps taken.
        rejected: () int32; steps tried and thrown away.
    """

    p: Leaf
    arc_length: Leaf
    norm: Leaf
    log_gradient_norm: Leaf
    log_time: Leaf
    steps: Leaf
    status: Leaf
    accepted: Leaf
    rejected: Leaf

    @property
    def stop(self) -> Any:
        """The name of `status`: a string, or an array of strings for several seeds."""
        names = np.array([stop.name.lower() for stop in Stop])[np.asarray(self.status)]
        return str(names) if names.ndim == 0 else names

    @property
    def reason(self) -> str | list[str]:
        """Why the path ended, in words; a list for several seeds."""
        if np.ndim(self.status) == 0:
            return _REASONS[Stop(int(self.status))]
        return [_REASONS[Stop(int(status))] for status in self.status]


def exact_flow(
    params: Any,
    corpus: Corpus,
    *,
    until_norm: float = 1e6,
    until_arc_length: float = math.inf,
    until_direction: float = 0.0,
    max_steps: int = 10_000,
    rtol: float = 1e-5,
    points: int = 64,
    width: int | None = None,
) -> Path:
    """Follow the exact path of gradient flow on p, E and v fixed, logistic loss, until the first of its ends.

    Everything is computed in float64, whatever the inputs and the session's setting.

    Args:
        params: E (V, d), p (d,), v (d,). Any of them may have a leading axis of B seeds.
        corpus: n sequences of two classes over V tokens; one, or B with a leading axis.
        until_norm: end at this ‖p‖.
        until_arc_length: end at this length of the path; finite if `until_norm` is not.
        until_direction: end when the sine of the angle between p and its velocity is this small; it is the
            change of p/‖p‖ per e-fold of ‖p‖, about as large as the distance left to the limit.
        max_steps: end after this many steps, tried or taken.
        rtol: error allowed per step, relative to ‖p‖ + 1/max ‖E_s‖.
        points: number of rows k ≥ 3 of the path.
        width: seeds integrated side by side; chosen for the backend by default.

    Returns:
        The path. A seed that fails (NaN, a step too short to represent) says so in `status`, keeps its
        last state and does not stop the others.

    Raises:
        InputError: more than two classes, shapes that do not fit, ends that are never reached.

    Source:
        Lemma 4.2 and Theorem 4.3 of arXiv 2505.17282; the method is this library's.
    """
    if not (math.isfinite(until_norm) or math.isfinite(until_arc_length)):
        raise InputError("until_norm and until_arc_length are both infinite; give one of them")
    if points < 3:
        raise InputError(f"points: {points}; a path has at least 3")
    if not 0 < rtol < 1:
        raise InputError(f"rtol: {rtol}; give a relative error between 0 and 1")
    seeds = _check(params, corpus)
    with jax.enable_x64(True):
        parts = [(jnp.asarray(x, jnp.float64), x.ndim > base) for x, base in _parts(params)]
        ends = jnp.asarray([until_norm, until_arc_length, until_direction, rtol], jnp.float64)
        arrays, batched = zip(*parts, strict=True)
        # On a CPU one seed's arrays fit a core's cache, and a slow seed holds up no other.
        width = width or (1 if jax.default_backend() == "cpu" else seeds or 1)
        return _flow(
            (*arrays, corpus),
            ends,
            jnp.asarray(max_steps, jnp.int32),
            batched=(*batched, corpus.labels.ndim > 1),
            seeds=seeds,
            points=points,
            width=width,
        )


def _parts(params):
    return ((params.E, 2), (params.p, 1), (params.v, 1))


def _check(params, corpus) -> int | None:
    """Check shapes; return the number of seeds, None for a single path without a seed axis."""
    if corpus.num_classes != 2:
        raise InputError(
            f"corpus: {corpus.num_classes} classes; the flow is that of the logistic loss of two"
        )
    (*_, V, d), p, v = params.E.shape, params.p.shape, params.v.shape
    if corpus.vocab_size != V or p[-1] != d or v[-1] != d:
        raise InputError(
            f"shapes do not fit: E {params.E.shape}, p {p}, v {v}, corpus over {corpus.vocab_size} tokens"
        )
    sizes = {x.shape[0] for x, base in _parts(params) if x.ndim > base}
    sizes |= {corpus.labels.shape[0]} if corpus.labels.ndim > 1 else set()
    if len(sizes) > 1:
        raise InputError(f"E, p, v and corpus have leading axes of {sorted(sizes)} seeds; give each the same")
    return sizes.pop() if sizes else None


@partial(jax.jit, static_argnames=("batched", "seeds", "points", "width"))
def _flow(inputs, ends, max_steps, *, batched, seeds, points, width):
    """Integrate chunks of seeds one after the other, so that a slow seed holds up its own chunk only."""

    def single(E, p, v, corpus):
        return _integrate(coordinates(E, p, v, corpus), ends, max_steps, points)

    if seeds is None:
        return single(*inputs)
    chunks = math.ceil(seeds / width)
    index = jnp.arange(chunks * math.ceil(seeds / chunks)).reshape(chunks, -1) % seeds

    def chunk(which):
        picked = [
            jax.tree.map(lambda x: x[which], x) if has_seeds else x
            for x, has_seeds in zip(inputs, batched, strict=True)
        ]
        return jax.vmap(single, in_axes=tuple(0 if has_seeds else None for has_seeds in batched))(*picked)

    path = jax.lax.map(chunk, index)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:seeds], path)


@struct.dataclass
class _Row:
    """What is recorded of a point; as in `Path`, with coordinates in place of p."""

    z: Array
    arc_length: Array
    norm: Array
    log_gradient_norm: Array
    log_time: Array
    steps: Array


@struct.dataclass
class _State:
    """What the loop carries: a point, the next step's length, the rows so far and how many, counts."""

    here: _Row
    local: Local
    h: Array
    rows: _Row
    count: Array
    status: Array
    accepted: Array
    rejected: Array


def _integrate(flow: Coordinates, ends: Array, max_steps: Array, points: int) -> Path:
    """Follow one path to the first of its ends."""
    reach = jnp.minimum(ends[0], ends[1])
    first = jnp.minimum(flow.unit, reach / 100)
    # The last row is for wherever the path ends.
    marks = jnp.append(jnp.append(0, jnp.geomspace(first, reach, points - 1)[:-1]), jnp.inf)
    state = jax.lax.while_loop(
        lambda state: state.status == Stop.RUNNING,
        partial(_step, flow, ends, max_steps, marks),
        _begin(flow, reach, ends[3], points),
    )
    select = jax.vmap(jnp.where, in_axes=(0, 0, None))
    reached = jnp.arange(points) < state.count
    rows = jax.tree.map(lambda rows, last: select(reached, rows, last), state.rows, state.here)
    return Path(
        p=flow.p(rows.z),
        arc_length=rows.arc_length,
        norm=rows.norm,
        log_gradient_norm=rows.log_gradient_norm,
        log_time=rows.log_time,
        steps=rows.steps,
        status=state.status,
        accepted=state.accepted,
        rejected=state.rejected,
    )


def _begin(flow: Coordinates, reach: Array, rtol: Array, points: int) -> _State:
    """Stand at the start: the first step has length 0, evaluates the flow and lands on the first mark."""
    z = jnp.zeros_like(flow.offset)
    zero, count = jnp.zeros(()), jnp.zeros((), jnp.int32)
    here = _Row(
        z=z,
        arc_length=zero,
        norm=flow.norm(z, 1.0),
        log_gradient_norm=jnp.asarray(jnp.nan),
        log_time=-jnp.asarray(jnp.inf),
        steps=count,
    )
    return _State(
        here=here,
        local=Local(z, jnp.outer(z, z), zero, zero, zero > 0),
        h=jnp.minimum(flow.unit, reach) * rtol ** (1 / rosenbrock.ORDER),
        rows=jax.tree.map(lambda x: jnp.broadcast_to(x, (points, *x.shape)), here),
        count=count,
        status=count,
        accepted=count - 1,
        rejected=count,
    )


def _step(flow: Coordinates, ends: Array, max_steps: Array, marks: Array, state: _State) -> _State:
    """Try a step, and take it if its error allows."""
    until_norm, until_arc_length, _, rtol = ends
    here, local = state.here, state.local
    mark = jnp.minimum(marks[state.count], until_arc_length)
    to_mark = mark - here.arc_length
    to_norm = _distance_to_sphere(here.norm, flow.ahead(here.z, local.velocity), until_norm)
    h = jnp.minimum(state.h, jnp.minimum(to_mark, to_norm))
    z, error = rosenbrock.step(flow.velocity, here.z, local.velocity, local.jacobian, h)
    arrived = flow.at(z)
    there = _Row(
        z=z,
        arc_length=jnp.where(h == to_mark, mark, here.arc_length + h),
        norm=flow.norm(z, 1.0),
        log_gradient_norm=arrived.log_gradient_norm,
        log_time=jnp.logaddexp(here.log_time, jnp.log(h) + _log_mean_time(h, local, arrived)),
        steps=state.accepted + state.rejected + 1,
    )
    steepest = jnp.maximum(jnp.abs(local.log_slope), jnp.abs(arrived.log_slope))
    error = flow.norm(error) / jnp.minimum(rtol * (there.norm + flow.unit), 0.01 / steepest)
    error = jnp.where(jnp.isfinite(arrived.jacobian).all() & ~jnp.isnan(error), error, jnp.inf)
    # A path of unit speed that turns back within a step has run over a stationary point.
    turns = flow.inner(local.velocity, arrived.velocity) < 0
    ok = (error <= 1) & ~turns
    h_free = h * jnp.where(turns, 0.2, jnp.clip(0.8 * error ** (-1 / rosenbrock.ORDER), 0.2, 5.0))
    # A step cut short to land somewhere says nothing against the length that was planned.
    h_next = jnp.where(ok & (h < state.h), jnp.maximum(h_free, state.h), h_free)
    here, local = jax.tree.map(partial(jnp.where, ok), (there, arrived), (here, local))
    record = ok & (h == to_mark)
    row = jnp.where(record, state.count, len(marks))
    moved = _State(
        here=here,
        local=local,
        h=h_next,
        rows=jax.tree.map(lambda rows, x: rows.at[row].set(x, mode="drop"), state.rows, here),
        count=state.count + record,
        status=state.status,
        accepted=state.accepted + ok,
        rejected=state.rejected + ~ok,
    )
    return moved.replace(status=_status(flow, ends, max_steps, moved, turns))  # type: ignore[attr-defined]


def _status(flow: Coordinates, ends: Array, max_steps: Array, state: _State, turns: Array) -> Array:
    """Tell whether the path ends here, and why."""
    until_norm, until_arc_length, until_direction, _ = ends
    first = jnp.minimum(flow.unit, jnp.minimum(until_norm, until_arc_length) / 100)
    here, local, h = state.here, state.local, state.h
    short = ~(h >= 4 * jnp.finfo(h.dtype).eps * (here.arc_length + flow.unit))
    sine = flow.sine(here.z, local.velocity)
    stops = {
        Stop.NORM: here.norm >= until_norm,
        Stop.ARC_LENGTH: here.arc_length >= until_arc_length,
        Stop.STATIONARY: jnp.isneginf(local.log_gradient_norm),
        Stop.BALANCED: local.balanced | (turns & short),
        Stop.DIRECTION: (sine <= until_direction) & (here.arc_length >= first),
        Stop.FAILED: short,
        Stop.STEP_BUDGET: state.accepted + state.rejected >= max_steps,
    }
    return jnp.select(list(stops.values()), list(stops), Stop.RUNNING).astype(jnp.int32)


def _distance_to_sphere(norm, ahead, radius):
    """Compute how far straight on the sphere ‖p‖ = radius is, from p with p · dp/ds = ahead."""
    # An infinite radius would make NaN of the quotient below.
    radius = jnp.minimum(radius, 1e150)
    square = jnp.maximum((radius - norm) * (radius + norm), 0)
    root = jnp.sqrt(ahead**2 + square)
    distance = jnp.where(ahead > 0, square / (root + ahead), root - ahead)
    # The path bends, so this falls a little short or goes a little far: rather a little far.
    return (1 + 1e-6) * distance


def _log_mean_time(h, start, end):
    """Compute log of the mean of exp(-ℓ) over a step, ℓ = log ‖∂L/∂p‖, from ℓ and ℓ' at both ends.

    ∫ exp of a straight line is exact at any size; one extrapolation from the step's two halves makes
    the rule of order 4 where ℓ bends.
    """
    # A gradient of exactly zero would take forever: a finite exponent keeps NaN out.
    x, y = (-jnp.maximum(at.log_gradient_norm, -1e300) for at in (start, end))
    bend = jnp.clip(h / 8 * (end.log_slope - start.log_slope), -1, 1)
    middle = (x + y) / 2 + bend
    whole = _log_mean_exp(x, y)
    halves = jnp.logaddexp(_log_mean_exp(x, middle), _log_mean_exp(middle, y)) - jnp.log(2)
    return halves + jnp.log1p((1 - jnp.minimum(jnp.exp(whole - halves), 2)) / 3)


def _log_mean_exp(x, y):
    """Compute log ∫₀¹ exp(x + (y - x) θ) dθ."""
    drop = jnp.abs(x - y)
    far = drop > 1e-4
    safe = jnp.where(far, drop, 1)
    return jnp.maximum(x, y) + jnp.where(far, jnp.log(-jnp.expm1(-safe) / safe), -drop / 2 + drop**2 / 24)
