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
from jaxattn.dynamics.direction import Force, token_curvature, token_force
from jaxattn.errors import InputError

# A force this small against the forces it is the sum of is rounding: a stationary point.
EXPO = -1 / 3
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
        path = _flow(
            (*arrays, corpus),
            ends,
            jnp.asarray(max_steps, jnp.int32),
            batched=(*batched, corpus.labels.ndim > 1),
            seeds=seeds,
            points=points,
            width=width,
        )
    return path


def _parts(params):
    return ((params.E, 2), (params.p, 1), (params.v, 1))


def _check(params, corpus) -> int | None:
    """Check shapes; return the number of seeds, None for a single path without a seed axis."""
    if corpus.num_classes != 2:
        raise InputError(f"corpus: {corpus.num_classes} classes; the flow is that of the logistic loss of two")
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
    """The flow in coordinates: p = p_0 + basisᵀ z, with basis E if it spans fewer dimensions than d, else 1.

    Attributes:
        corpus: n sequences.
        values: γ = E v, (V,).
        start: scores a_0 = E p_0, (V,).
        lift: (V, r); a = a_0 + lift z.
        basis: (r, d), or None for the identity.
        metric: (r, r), basis basisᵀ, or None for the identity.
        offset: (r,), basis p_0.
        square_0: (); ‖p_0‖².
        unit: (); moving p by this changes no score by more than 1.
    """

    corpus: Corpus
    values: Array
    start: Array
    lift: Array
    basis: Array | None
    metric: Array | None
    offset: Array
    square_0: Array
    unit: Array

    def square(self, z: Array, multiple: Array | float) -> Array:
        """Compute ‖basisᵀ z + multiple · p_0‖²."""
        inner = z @ (self._times_metric(z) + 2 * multiple * self.offset) + multiple**2 * self.square_0
        return jnp.maximum(inner, 0)

    def field(self, z: Array) -> tuple[Array, "_Pull"]:
        """Compute the unit velocity dz/ds and what it was made of."""
        scores = self.start + self.lift @ z
        force = token_force(self.corpus, scores, self.values)
        pull = force.force if self.basis is not None else force.force @ self.lift
        size = jnp.sqrt(self.square(pull, 0))
        return pull / jnp.where(size > 0, size, 1), _Pull(scores, force, size)

    def jacobian(self, velocity: Array, pull: "_Pull") -> Array:
        """Compute ∂(dz/ds)/∂z = (1 - u uᵀ) J / ‖F‖, the projection taken in the metric."""
        J = token_curvature(self.corpus, pull.scores, self.values, pull.force) @ self.lift
        J = J if self.basis is not None else self.lift.T @ J
        return (J - jnp.outer(velocity, self._times_metric(velocity) @ J)) / pull.size

    def sine(self, z: Array, velocity: Array) -> Array:
        """Compute the sine of the angle between p and its velocity, without cancellation when it is small."""
        along = velocity @ (self._times_metric(z) + self.offset) / self.square(z, 1)
        return jnp.sqrt(self.square(velocity - along * z, -along))

    def _times_metric(self, z: Array) -> Array:
        return z if self.metric is None else self.metric @ z


@struct.dataclass
class _Pull:
    """What a velocity was made of: scores, token force, and the length of -∂L/∂p in its units."""

    scores: Array
    force: Force
    size: Array


def _problem(E, p, v, corpus):
    spans = E.shape[0] <= E.shape[1]
    start, gram = E @ p, E @ E.T if spans else None
    return _Problem(
        corpus=corpus,
        values=E @ v,
        start=start,
        lift=gram if spans else E,
        basis=E if spans else None,
        metric=gram,
        offset=start if spans else p,
        square_0=p @ p,
        unit=1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()),
    )


@struct.dataclass
class _State:
    z: Array
    velocity: Array
    pull: _Pull
    h: Array
    here: dict[str, Array]
    rows: dict[str, Array]
    row: Array
    status: Array
    accepted: Array
    rejected: Array


def _integrate(E, p, v, corpus, ends, max_steps, points):
    until_norm, until_arc_length, until_direction, rtol = ends
    problem = _problem(E, p, v, corpus)
    longest = jnp.minimum(until_norm, until_arc_length)
    first = jnp.minimum(problem.unit, longest / 100)
    marks = jnp.concatenate([jnp.zeros(1), jnp.geomspace(first, longest, points - 1)]).at[-1].set(jnp.inf)

    def measure(z, pull, arc_length, log_time):
        return {
            "z": z,
            "arc_length": arc_length,
            "norm": jnp.sqrt(problem.square(z, 1)),
            "log_gradient_norm": pull.force.log_scale + jnp.log(pull.size),
            "log_time": log_time,
        }

    def status(state, velocity_sine):
        here, pull = state.here, state.pull
        still = pull.size <= STATIONARY * pull.force.gross / problem.unit
        fails = ~jnp.isfinite(pull.size) | ~jnp.isfinite(here["norm"])
        tiny = 4 * jnp.finfo(jnp.float64).eps * (here["arc_length"] + problem.unit)
        return jnp.select(
            [
                fails,
                here["norm"] >= until_norm,
                here["arc_length"] >= until_arc_length,
                still,
                (velocity_sine <= until_direction) & (here["arc_length"] >= first),
                state.h < tiny,
                state.accepted + state.rejected >= max_steps,
            ],
            [
                Stop.FAILED,
                Stop.NORM,
                Stop.ARC_LENGTH,
                Stop.STATIONARY,
                Stop.DIRECTION,
                Stop.FAILED,
                Stop.STEP_BUDGET,
            ],
            Stop.RUNNING,
        ).astype(jnp.int32)

    def body(state):
        here = state.here
        to_mark = jnp.minimum(marks[state.row], until_arc_length) - here["arc_length"]
        ahead = state.velocity @ (problem._times_metric(state.z) + problem.offset)
        # A straight line would reach the sphere ‖p‖ = until_norm after this length; the path needs more.
        to_norm = jnp.sqrt(ahead**2 + until_norm**2 - here["norm"] ** 2) - ahead
        to_norm *= 1 + 1e-6
        h = jnp.minimum(jnp.minimum(state.h, to_mark), to_norm)
        end, (velocity, pull), error = rosenbrock.step(
            problem.field, state.z, state.velocity, problem.jacobian(state.velocity, state.pull), h
        )
        arc_length = jnp.where(h == to_mark, here["arc_length"] + to_mark, here["arc_length"] + h)
        there = measure(end, pull, arc_length, here["log_time"])
        log_duration = jnp.log(h) + _log_mean_exp(-here["log_gradient_norm"], -there["log_gradient_norm"])
        there["log_time"] = jnp.logaddexp(here["log_time"], log_duration)
        error = jnp.sqrt(problem.square(error, 0)) / (rtol * (there["norm"] + problem.unit))
        error = jnp.where(jnp.isfinite(error), error, jnp.inf)
        ok = error <= 1
        factor = jnp.clip(0.8 * error ** EXPO, 0.2, 5.0)
        # A step cut short to land on a mark says nothing against the length that was planned.
        planned = jnp.where(ok & (h < state.h), jnp.maximum(state.h, h * factor), h * factor)
        row = jnp.where(ok & (h == to_mark), state.row, points)
        keep = partial(jax.tree.map, partial(jnp.where, ok))
        moved = _State(
            z=keep(end, state.z),
            velocity=keep(velocity, state.velocity),
            pull=keep(pull, state.pull),
            h=planned,
            here=keep(there, here),
            rows=jax.tree.map(lambda rows, x: rows.at[row].set(x, mode="drop"), state.rows, there),
            row=state.row + (row < points),
            status=state.status,
            accepted=state.accepted + ok,
            rejected=state.rejected + ~ok,
        )
        return moved.replace(status=status(moved, problem.sine(moved.z, moved.velocity)))

    z = jnp.zeros(problem.offset.shape)
    velocity, pull = problem.field(z)
    here = measure(z, pull, jnp.zeros(()), jnp.asarray(-jnp.inf))
    state = _State(
        z=z,
        velocity=velocity,
        pull=pull,
        h=jnp.minimum(problem.unit, longest) * rtol ** (1 / 3),
        here=here,
        rows=jax.tree.map(lambda x: jnp.zeros((points, *x.shape)).at[0].set(x), here),
        row=jnp.ones((), jnp.int32),
        status=jnp.zeros((), jnp.int32),
        accepted=jnp.zeros((), jnp.int32),
        rejected=jnp.zeros((), jnp.int32),
    )
    state = state.replace(status=status(state, 1.0))
    state = jax.lax.while_loop(lambda s: s.status == Stop.RUNNING, body, state)
    reached = jnp.arange(points) < state.row
    rows = jax.tree.map(
        lambda rows, x: jnp.where(reached.reshape(-1, *[1] * x.ndim), rows, x), state.rows, state.here
    )
    z = rows.pop("z")
    return Path(
        p=p + (z if problem.basis is None else z @ problem.basis),
        **rows,
        status=state.status,
        accepted=state.accepted,
        rejected=state.rejected,
    )


def _log_mean_exp(x, y):
    """Log of the mean of exp over the straight line from x to y."""
    drop = jnp.abs(x - y)
    small = drop < 1e-3
    safe = jnp.where(small, 1.0, drop)
    return jnp.maximum(x, y) + jnp.where(small, -drop / 2 + drop**2 / 24, jnp.log(-jnp.expm1(-safe) / safe))
