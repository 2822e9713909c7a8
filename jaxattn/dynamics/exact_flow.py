"""Gradient flow on p, followed by arc length: the same path as dp/dt = -∂L/∂p, without its clock.

The flow slows down like e^(-margin ‖p‖), but its path does not depend on the clock:

    dp/ds = -∂L/∂p / ‖∂L/∂p‖,   t(s) = ∫ ds / ‖∂L/∂p‖.

The path never leaves p_0 + span{E_s}, so r = min(V, d) coordinates z carry it:

    V ≤ d:  p = p_0 + Eᵀ z,  a = a_0 + E Eᵀ z;      V > d:  p = p_0 + z,  a = a_0 + E z.
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
from jaxattn.dynamics.direction import Force, entry_slots, token_curvature, token_force
from jaxattn.errors import InputError

# A force this small against the forces it is the sum of is rounding: a stationary point.
STATIONARY = 1e-10


class Stop(enum.IntEnum):
    """Why a path ends."""

    RUNNING = 0
    NORM = 1
    ARC_LENGTH = 2
    DIRECTION = 3
    STEP_BUDGET = 4
    STATIONARY = 5
    FAILED = 6


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
        status: () int32; why the path ended, a `Stop`.
        accepted: () int32; steps taken.
        rejected: () int32; steps tried and thrown away.
    """

    p: Array
    arc_length: Array
    norm: Array
    log_gradient_norm: Array
    log_time: Array
    status: Array
    accepted: Array
    rejected: Array

    @property
    def stop(self) -> Any:
        """The name of `status`: a string, or an array of strings for several seeds."""
        names = np.array([stop.name.lower() for stop in Stop])[np.asarray(self.status)]
        return str(names) if names.ndim == 0 else names


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
    seeds = _check(params, corpus)
    with jax.enable_x64(True):
        parts = [(jnp.asarray(x, jnp.float64), x.ndim > base) for x, base in _parts(params)]
        ends = jnp.asarray([until_norm, until_arc_length, until_direction, rtol], jnp.float64)
        arrays, batched = zip(*parts, strict=True)
        width = width or (16 if jax.default_backend() == "cpu" else seeds or 1)
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
        return _integrate(E, p, v, corpus, ends, max_steps, points)

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
class _Problem:
    """The flow in r coordinates: p = p_0 + Bᵀ z with B = E, (V, d), if V ≤ d and the identity otherwise.

    Attributes:
        corpus: n sequences.
        slots: `entry_slots(corpus)`.
        values: γ = E v, (V,).
        start: p_0, (d,).
        scores: a_0 = E p_0, (V,).
        basis: B, (r, d), or None for the identity.
        lift: E Bᵀ, (V, r); a = a_0 + lift z.
        offset: B p_0, (r,).
        unit: (); moving p by this changes no score by more than 1.
    """

    corpus: Corpus
    slots: Array
    values: Array
    start: Array
    scores: Array
    basis: Array | None
    lift: Array
    offset: Array
    unit: Array

    def metric(self, x: Array) -> Array:
        """Compute B Bᵀ x."""
        return x if self.basis is None else self.lift @ x

    def norm(self, x: Array, multiple: Array | float = 0.0) -> Array:
        """Compute ‖Bᵀ x + multiple · p_0‖."""
        square = x @ (self.metric(x) + 2 * multiple * self.offset) + multiple**2 * (self.start @ self.start)
        return jnp.sqrt(jnp.maximum(square, 0))

    def force(self, z: Array) -> tuple[Array, Force]:
        """Compute -∂L/∂p in coordinates, Bᵀ F = -∂L/∂p, and the force it comes from."""
        force = token_force(self.corpus, self.scores + self.lift @ z, self.values, self.slots)
        return force.force if self.basis is not None else force.force @ self.lift, force

    def velocity(self, z: Array) -> Array:
        """Compute dz/ds = F/‖BᵀF‖."""
        pull, _ = self.force(z)
        return pull / self.norm(pull)

    def at(self, z: Array) -> "_Local":
        """Compute what the integrator needs at z."""
        pull, force = self.force(z)
        size = self.norm(pull)
        safe = jnp.where(size > 0, size, 1)
        velocity = pull / safe
        curvature = token_curvature(self.corpus, force) @ self.lift
        curvature = (curvature if self.basis is not None else self.lift.T @ curvature) / safe
        along = self.metric(velocity) @ curvature
        return _Local(
            velocity=velocity,
            jacobian=curvature - jnp.outer(velocity, along),
            log_gradient_norm=force.log_scale + jnp.log(size),
            log_slope=along @ velocity,
            still=size * self.unit <= STATIONARY * force.gross,
        )


@struct.dataclass
class _Local:
    """The flow at a point.

    Attributes:
        velocity: u = dz/ds, (r,).
        jacobian: ∂u/∂z = (1 - u uᵀ B Bᵀ) ∂F/∂z / ‖BᵀF‖, (r, r).
        log_gradient_norm: log ‖∂L/∂p‖.
        log_slope: its derivative by arc length.
        still: whether the gradient is zero up to rounding.
    """

    velocity: Array
    jacobian: Array
    log_gradient_norm: Array
    log_slope: Array
    still: Array


@struct.dataclass
class _Row:
    """What is recorded of a point; as in `Path`, with coordinates in place of p."""

    z: Array
    arc_length: Array
    norm: Array
    log_gradient_norm: Array
    log_time: Array


@struct.dataclass
class _State:
    """What the loop carries: the point, the next step's length, the rows so far and how many, counts."""

    here: _Row
    local: _Local
    h: Array
    rows: _Row
    count: Array
    status: Array
    accepted: Array
    rejected: Array


def _problem(E: Array, p: Array, v: Array, corpus: Corpus) -> _Problem:
    spans = E.shape[0] <= E.shape[1]
    return _Problem(
        corpus=corpus,
        slots=entry_slots(corpus),
        values=E @ v,
        start=p,
        scores=E @ p,
        basis=E if spans else None,
        lift=E @ E.T if spans else E,
        offset=E @ p if spans else p,
        unit=1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()),
    )


def _integrate(E, p, v, corpus, ends, max_steps, points):
    """Follow one path to its end."""
    until_norm, until_arc_length, until_direction, rtol = ends
    problem = _problem(E, p, v, corpus)
    reach = jnp.minimum(until_norm, until_arc_length)
    first = jnp.minimum(problem.unit, reach / 100)
    # The last row is for wherever the path ends.
    marks = jnp.concatenate(
        [jnp.zeros(1), jnp.geomspace(first, reach, points - 1)[:-1], jnp.full(1, jnp.inf)]
    )

    def row(z, local, arc_length, log_time):
        return _Row(z, arc_length, problem.norm(z, 1.0), local.log_gradient_norm, log_time)

    def ahead(here, local):
        """Compute p · dp/ds."""
        return local.velocity @ (problem.metric(here.z) + problem.offset)

    def status(here, local, h, steps):
        along = ahead(here, local) / here.norm**2
        sine = problem.norm(local.velocity - along * here.z, -along)
        finite = jnp.isfinite(local.jacobian).all() & jnp.isfinite(here.norm)
        smallest = 4 * jnp.finfo(h.dtype).eps * (here.arc_length + problem.unit)
        rules = {
            Stop.FAILED: ~finite,
            Stop.NORM: here.norm >= until_norm,
            Stop.ARC_LENGTH: here.arc_length >= until_arc_length,
            Stop.STATIONARY: local.still,
            Stop.DIRECTION: (sine <= until_direction) & (here.arc_length >= first),
            Stop.STEP_BUDGET: steps >= max_steps,
        }
        status = jnp.select(list(rules.values()), list(rules), Stop.RUNNING)
        return jnp.where((status == Stop.RUNNING) & (h < smallest), Stop.FAILED, status).astype(jnp.int32)

    def body(state):
        here, local = state.here, state.local
        mark = jnp.minimum(marks[state.count], until_arc_length)
        to_mark = mark - here.arc_length
        to_norm = _distance_to_sphere(here.norm, ahead(here, local), until_norm)
        h = jnp.minimum(state.h, jnp.minimum(to_mark, to_norm))
        z, error = rosenbrock.step(problem.velocity, here.z, local.velocity, local.jacobian, h)
        arrived = problem.at(z)
        log_time = jnp.logaddexp(here.log_time, _log_duration(h, local, arrived))
        there = row(z, arrived, jnp.where(h == to_mark, mark, here.arc_length + h), log_time)
        error = problem.norm(error) / (rtol * (there.norm + problem.unit))
        ok = (error <= 1) & jnp.isfinite(arrived.jacobian).all()
        growth = jnp.clip(0.8 * error ** (-1 / rosenbrock.ORDER), 0.2, 5.0)
        growth = jnp.where(jnp.isfinite(error), growth, 0.2)
        # A step cut short to land somewhere says nothing against the length that was planned.
        next_h = jnp.maximum(h * growth, jnp.where(ok & (h < state.h), state.h, 0))
        here, local = jax.tree.map(partial(jnp.where, ok), (there, arrived), (here, local))
        record = ok & (h == to_mark)
        slot = jnp.where(record, state.count, points)
        accepted, rejected = state.accepted + ok, state.rejected + ~ok
        return _State(
            here=here,
            local=local,
            h=next_h,
            rows=jax.tree.map(lambda rows, x: rows.at[slot].set(x, mode="drop"), state.rows, here),
            count=state.count + record,
            status=status(here, local, next_h, accepted + rejected),
            accepted=accepted,
            rejected=rejected,
        )

    z, zero = jnp.zeros_like(problem.offset), jnp.zeros((), jnp.int32)
    local = problem.at(z)
    here = row(z, local, jnp.zeros(()), jnp.asarray(-jnp.inf))
    h = jnp.minimum(problem.unit, reach) * rtol ** (1 / rosenbrock.ORDER)
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (points, *x.shape)), here)
    state = _State(here, local, h, rows, zero + 1, status(here, local, h, zero), zero, zero)
    state = jax.lax.while_loop(lambda state: state.status == Stop.RUNNING, body, state)
    reached = jnp.arange(points) < state.count
    select = jax.vmap(jnp.where, in_axes=(0, 0, None))
    rows = jax.tree.map(lambda rows, last: select(reached, rows, last), state.rows, state.here)
    return Path(
        p=p + (rows.z if problem.basis is None else rows.z @ problem.basis),
        arc_length=rows.arc_length,
        norm=rows.norm,
        log_gradient_norm=rows.log_gradient_norm,
        log_time=rows.log_time,
        status=state.status,
        accepted=state.accepted,
        rejected=state.rejected,
    )


def _distance_to_sphere(norm, ahead, radius):
    """Compute how far straight on the sphere ‖p‖ = radius is, from p with p · dp/ds = ahead."""
    square = (radius - norm) * (radius + norm)
    root = jnp.sqrt(ahead**2 + square)
    distance = jnp.where(ahead > 0, square / (root + ahead), root - ahead)
    # The path bends, so this falls a little short or goes a little far: rather a little far.
    return (1 + 1e-6) * distance


def _log_duration(h, start, end):
    """Compute log ∫ exp(-ℓ) ds over a step, ℓ = log ‖∂L/∂p‖, from ℓ and ℓ' at both ends.

    ∫ exp of a straight line is exact at any size; one extrapolation from the step's two halves makes
    the rule of order 4 where ℓ bends.
    """
    x, y = -start.log_gradient_norm, -end.log_gradient_norm
    middle = (x + y) / 2 + h / 8 * (end.log_slope - start.log_slope)
    whole = _log_mean_exp(x, y)
    halves = jnp.logaddexp(_log_mean_exp(x, middle), _log_mean_exp(middle, y)) - jnp.log(2)
    return jnp.log(h) + halves + jnp.log1p((1 - jnp.minimum(jnp.exp(whole - halves), 2)) / 3)


def _log_mean_exp(x, y):
    """Compute log ∫₀¹ exp(x + (y - x) θ) dθ."""
    drop = jnp.abs(x - y)
    far = drop > 1e-4
    safe = jnp.where(far, drop, 1)
    return jnp.maximum(x, y) + jnp.where(far, jnp.log(-jnp.expm1(-safe) / safe), -drop / 2 + drop**2 / 24)
