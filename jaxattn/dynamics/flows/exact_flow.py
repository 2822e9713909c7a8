"""Gradient flow on p, followed by arc length: the same path as dp/dt = -∂L/∂p, without its clock.

The flow slows down like e^(-margin ‖p‖), but its path does not depend on the clock:

    dp/ds = -∂L/∂p / ‖∂L/∂p‖,   t(s) = ∫ ds / ‖∂L/∂p‖.

Late in the path p is almost straight, so the steps grow like ‖p‖ and the last factor of 100 is nearly free.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores, require_values
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Leaf
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import (
    GRADIENT_RTOL,
    Ended,
    Ends,
    Stop,
    Trajectory,
    beginning,
    integrate,
)
from jaxattn.dynamics.flows.balance import Balance, back_on_curve, find_ties
from jaxattn.dynamics.flows.conditions import when
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.seeds import of_seeds, over_seeds
from jaxattn.dynamics.flows.ties import Ties, no_ties, tied_coordinates, top_class
from jaxattn.theory.selection import Selection

# Most times that ties are found or dissolved.
_STAGES = 256


@struct.dataclass(repr=False)
class Path(Ended):
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
        selection: the highest token of every sequence where the path stopped, and the tokens that tie with
            it in the limit: those that differ by a bounded score while ‖p‖ grows.
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
    selection: Selection


def exact_flow(
    scores: Scores,
    p: Float[Array | np.ndarray, "..."],
    *,
    until_norm: float = 1e6,
    until_arc_length: float = math.inf,
    until_direction: float = 0.0,
    max_steps: int = 10_000,
    rtol: float = 1e-5,
    gradient_rtol: float = GRADIENT_RTOL,
    points: int = 64,
    width: int | None = None,
) -> Path:
    """Follow the exact path of gradient flow on p, keys and values fixed, until the first of its ends.

    Of two classes the loss is logistic, of K > 2 it is cross-entropy:

        L = (1/n) Σ_X ℓ(f(X), y_X),   f(X) = Σ_s q_s γ_s,   q = softmax of a = Φ p over X.

    Everything is computed in float64, whatever the inputs and the session's setting.

    Args:
        scores: keys (m, D), values (m,), or (m, K) for K > 2 classes, and bags of n sequences; any of them
            may have a leading axis of B seeds. `theory.scores.one_layer` makes them of E and v.
        p: (D,), or (B, D); the start.
        until_norm: end at this ‖p‖.
        until_arc_length: end at this length of the path; finite if `until_norm` is not.
        until_direction: end when the sine of the angle between p and its velocity is this small; it is the
            change of p/‖p‖ per e-fold of ‖p‖, about as large as the distance left to the limit.
        max_steps: end after this many steps, tried or taken.
        rtol: error allowed per step, relative to ‖p‖ + 1/max ‖E_s‖.
        gradient_rtol: relative error of ‖∂L/∂p‖ that the error of a step may make, so that `log_time` is
            right; infinite where only the path counts, which saves steps if it winds among many tokens.
        points: number of rows k ≥ 3 of the path.
        width: seeds integrated side by side; chosen for the backend by default.

    Returns:
        The path. A seed that fails (NaN, a step too short to represent) says so in `status`, keeps its
        last state and does not stop the others.

    Raises:
        InputError: no values, shapes that do not fit, ends that are never reached.

    Source:
        Lemma 4.2 and Theorem 4.3 of arXiv 2505.17282; the method is this library's.
    """
    if not (math.isfinite(until_norm) or math.isfinite(until_arc_length)):
        raise InputError("until_norm and until_arc_length are both infinite; give one of them")
    check_ends(until_norm=until_norm, until_arc_length=until_arc_length)
    check_settings(rtol, points)
    if not gradient_rtol > 0:
        raise InputError(f"gradient_rtol: {gradient_rtol}; give a relative error above 0")
    ends = (until_norm, until_arc_length, until_direction, rtol, gradient_rtol)
    classes = scores.corpus.num_classes
    require_values(scores)
    parts = {"keys": (scores.keys, 2), "p": (p, 1), "values": (scores.values, 1 + (classes > 2))}
    inputs = of_seeds(parts, scores.corpus)
    return over_seeds(_follow, inputs, ends, max_steps, points=points, width=width)


def check_ends(**ends: float) -> None:
    """Raise InputError unless ends are lengths."""
    for name, end in ends.items():
        if not isinstance(end, jax.core.Tracer) and not end >= 0:
            raise InputError(f"{name}: {end}; give a length of 0 or more")


def check_settings(rtol: float, points: int, least: int = 3) -> None:
    """Raise InputError unless a path can have so many points and so small an error."""
    if points < least:
        raise InputError(f"points: {points}; a path has at least {least}")
    if not 0 < rtol < 1:
        raise InputError(f"rtol: {rtol}; give a relative error between 0 and 1")


class _Stage(NamedTuple):
    """A path that goes on from one description of the flow to the next.

    Attributes:
        start: p where this stage starts, (d,).
        p: of the rows so far, (k, d).
        norm: of the rows so far, (k,).
        path: the rest of them; its coordinates are those of the last stage.
        ties: which tokens tie in this stage.
        tied: whether there are any, () bool.
        left: stages that may follow, () int32.
    """

    start: Array
    p: Array
    norm: Array
    path: Trajectory
    ties: Ties
    tied: Array
    left: Array


def _follow(
    E: Array, p: Array, values: Array, corpus: Corpus, numbers: Array, max_steps: Array, points: int
) -> Path:
    """Follow the path of one seed."""
    ends = Ends(*numbers)
    reach = jnp.minimum(ends.norm, ends.arc_length)
    ties = no_ties(E, values, corpus)
    first = tied_coordinates(E, p, corpus, ties)
    empty = jnp.zeros(points)
    begin = _Stage(
        start=p,
        p=jnp.broadcast_to(p, (points, len(p))),
        norm=empty,
        path=beginning(first, points),
        ties=ties,
        tied=jnp.asarray(False),
        left=jnp.asarray(_STAGES),
    )

    def stage(state: _Stage) -> _Stage:
        flow = tied_coordinates(E, state.start, corpus, state.ties)
        path = integrate(flow, ends, reach, max_steps, points, state.path)
        old = jnp.arange(points) < state.path.reached
        points_p = jnp.where(old[:, None], state.p, _points(flow, path.rows.z, state))
        norm = jnp.where(old, state.norm, jax.vmap(partial(flow.norm, multiple=1.0))(path.rows.z))
        return _next_stage(E, values, corpus, state, state._replace(p=points_p, norm=norm, path=path))

    end = jax.lax.while_loop(lambda state: state.left > 0, stage, begin)
    path = end.path
    return Path(
        p=end.p,
        arc_length=path.rows.arc_length,
        norm=end.norm,
        log_gradient_norm=path.rows.log_gradient_norm,
        log_time=path.rows.log_time,
        steps=path.rows.steps,
        status=path.status,
        accepted=path.accepted,
        rejected=path.rejected,
        selection=Selection(top_class(E, end.start, corpus, end.ties.leader)),
    )


def _points(flow: Coordinates, z: Array, state: _Stage) -> Array:
    """Look up points; coordinates of p itself gather rounding in the differences of tied tokens."""
    p = flow.p(z)
    if flow.basis is not None:
        return p
    moved = p - state.start
    return state.start + (moved - (moved @ state.ties.normals.T) @ state.ties.normals)


def _next_stage(E: Array, values: Array, corpus: Corpus, before: _Stage, after: _Stage) -> _Stage:
    """Decide how the path goes on, if it does."""
    path, ties = after.path, before.ties
    slides = before.tied & ties.watch.slides
    p = when(slides, lambda p: back_on_curve(E, p, values, corpus, ties), after.p[-1])
    balances = path.status == Stop.BALANCED
    looks = balances & (~before.tied | slides)
    # Without progress the next stage would begin and end here too.
    stuck = balances & before.tied & (path.accepted == before.path.accepted)
    found = when(
        looks,
        lambda _: find_ties(E, p, values, corpus),
        Balance(no_ties(E, values, corpus), p, jnp.asarray(False)),
    )
    lost = balances & ~before.tied & ~found.settled
    status = jnp.where(stuck | lost | (balances & (before.left == 1)), Stop.UNRESOLVED, path.status)
    # All that is left to move is tied: p stays where it is.
    status = jnp.where(before.tied & (status == Stop.STATIONARY), Stop.BALANCED, status)
    goes_on = balances & ~stuck & ~lost
    return _Stage(
        start=jnp.where(goes_on, found.p, p),
        p=after.p.at[-1].set(p),
        norm=after.norm,
        path=path._replace(status=status.astype(jnp.int32)),
        ties=jax.tree.map(partial(jnp.where, goes_on), found.ties, ties),
        tied=jnp.where(goes_on, found.settled, before.tied),
        left=jnp.where(goes_on, before.left - 1, 0),
    )
