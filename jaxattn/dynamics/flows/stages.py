"""Stages of the exact flow on p: each stage follows the flow with fixed ties until a tie forms or breaks.

In exact arithmetic, the flow never stops. In float64, the forces of tied tokens cancel up to rounding long
before the smaller forces of all other tokens have an effect. A stage therefore integrates the flow in
coordinates in which tied scores are at rest (`tied_coordinates`), and the next stage adds the tokens whose
forces have cancelled in the meantime:

    stage ends as   the search finds     next
    BALANCED        a stable balance     a stage with these ties
    BALANCED        none                 the path ends: UNRESOLVED or UNDECIDED
    STATIONARY      (no search)          the path ends: BALANCED at a strict minimum, else UNRESOLVED
    any other                            the path ends with this status

Along a curve of balanced points, a stage follows a straight segment, whose end is first moved back to the
curve.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from jaxattn.core.arithmetic import power_of_two
from jaxattn.core.loops import cond_under_vmap
from jaxattn.core.pytrees import AnyArray, PathArray
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import (
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
from jaxattn.dynamics.flows.balance import Balance, find_ties, initial_balance
from jaxattn.dynamics.flows.coordinates import Coordinates, coordinates
from jaxattn.dynamics.flows.minimum import settles
from jaxattn.dynamics.flows.seeds import jacobian_columns, refuse_derivative
from jaxattn.dynamics.flows.ties import Ties, no_ties, tied_coordinates, zero_if_isolated

# Maximum number of stages.
_STAGES = 256


class LinearPath(FlowPath):
    """Path of a single parameter. Its last rows may not have been computed yet."""

    p: AnyArray
    norm: AnyArray
    columns: AnyArray

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, PathArray]:
        """Return p at a row, under the name of the trained parameter."""
        return dict.fromkeys(train, self.p[row])

    def metrics_at(self, row: Array) -> dict[str, PathArray]:
        """Return the recorded metrics at a row, as scalars by name."""
        found = self.at(row, "arc_length", "log_gradient_norm", "log_time")
        # Each step takes six evaluations, plus one per column of the Jacobian.
        evaluations = self.rows.steps[row] * (6 + self.columns)
        return {"p_norm": self.norm[row], **found, "evaluations": evaluations}


@struct.dataclass(repr=False)
class PathSoFar(LinearPath):
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
    def status(self) -> Array:  # type: ignore[override]
        """Status of the path: a `Stop`, as an int32 scalar. It is RUNNING until the path ends."""
        return self.integration.status


def unit_keys(E: Array, corpus: Corpus) -> tuple[Array, Array]:
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
def begin_stages(
    E: Array,
    p: Array,
    values: Array,
    corpus: Corpus,
    ends: Ends,
    points: int,
    evaluate_start: bool = False,
) -> PathSoFar:
    """Return a path that contains only its start, with the gradient norm there if `evaluate_start`."""
    E, scale = unit_keys(E, corpus)
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


def stages(
    E: Array,
    values: Array,
    corpus: Corpus,
    path: PathSoFar,
    ends: Ends,
    max_steps: Array,
    rows: int | Array,
) -> PathSoFar:
    """Compute stages until the path has reached the given number of rows or has ended."""
    E, scale = unit_keys(E, corpus)
    values = _relative_to_last(values)
    ends = _in_units(ends, scale)

    def stage(before: PathSoFar) -> PathSoFar:
        flow = tied_coordinates(E, before.start, corpus, before.ties)
        integration = integrate(
            flow, ends, _reach(ends), max_steps, before.integration, rows, flow.log_gradient_norm
        )
        old = jnp.arange(len(before.p)) < before.integration.reached
        z = integration.rows.z
        p = jnp.where(old[:, None], before.p, _points(flow, z, before) / scale)
        norm = jnp.where(old, before.norm, jax.vmap(partial(flow.norm, multiple=1.0))(z) / scale)
        after = before.replace(p=p, norm=norm, integration=integration)  # type: ignore[attr-defined]
        return _next_stage(E, values, corpus, ends, before, after)

    def going(path: PathSoFar) -> Array:
        return (path.left > 0) & (path.integration.reached < rows)

    return jax.lax.while_loop(going, stage, path)


extend = jax.custom_jvp(jax.jit(stages))
extend.defjvp(refuse_derivative)


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
    """Return the path at the start of its next stage, or at its end; see the table in the module docstring.

    `before` is the path at the start of the present stage, and `after` at its end.
    """
    slides = before.tied & before.ties.watch.slides & (after.status != Stop.RUNNING)
    p, found = _search(E, values, corpus, before, after, slides)
    status, goes_on = _outcome(E, values, corpus, before, after, found)

    def choose(x: Array, otherwise: Array) -> Array:
        return jnp.where(goes_on, x, otherwise)

    ended = after.integration.replace(status=status.astype(jnp.int32))  # type: ignore[attr-defined]
    reach = _reach(ends)
    again = restart(after.integration, first_step(1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()), ends, reach))
    runs = after.status == Stop.RUNNING
    return PathSoFar(
        p=after.p.at[-1].set(p / after.scale),
        norm=after.norm,
        scale=after.scale,
        integration=jax.tree.map(choose, again, ended),
        start=choose(found.p, jnp.where(runs, before.start, p)),
        ties=jax.tree.map(choose, found.ties, before.ties),
        tied=choose(found.stable, before.tied),
        left=choose(before.left - 1, jnp.where(runs, before.left, 0)),
        accepted_before=choose(after.integration.accepted, before.accepted_before),
        columns=after.columns,
    )


def _search(
    E: Array, values: Array, corpus: Corpus, before: PathSoFar, after: PathSoFar, slides: Array
) -> tuple[Array, Balance]:
    """Return p at the end of a stage, moved back to a curve of balanced points if it slides, and the balance.

    Ties are searched for where all forces cancel: at the first balance, and on a curve of balanced points.
    """
    looks = (after.status == Stop.BALANCED) & (~before.tied | slides)
    end = after.p[-1] * after.scale
    given = E, end, values, corpus, before.ties, slides, looks
    otherwise = end, initial_balance(E, end, values, corpus)
    p, found = cond_under_vmap(slides | looks, lambda _, *given: find_ties(*given), otherwise, *given)
    return p, found


def _outcome(
    E: Array, values: Array, corpus: Corpus, before: PathSoFar, after: PathSoFar, found: Balance
) -> tuple[Array, Array]:
    """Return the status of the path after a stage, and whether another stage follows."""
    balances = after.status == Stop.BALANCED
    # If no step was accepted, the next stage would end at the same point.
    stuck = balances & before.tied & (after.integration.accepted == before.accepted_before)
    lost = balances & ~before.tied & ~found.stable
    status = jnp.where(stuck | lost | (balances & (before.left == 1)), Stop.UNRESOLVED, after.status)
    status = jnp.where(lost & found.undecided, Stop.UNDECIDED, status)
    # Only tied scores could still change, and they are balanced. Unless a force is neglected, p stays at this
    # point; the loss with all tokens must show that it does.
    still = before.tied & (status == Stop.STATIONARY)
    nothing_neglected = before.ties.log_floor == -jnp.inf
    end = after.p[-1] * after.scale
    rests = cond_under_vmap(still & nothing_neglected, _settles, jnp.asarray(False), E, end, values, corpus)
    status = jnp.where(still, jnp.where(rests, Stop.BALANCED, Stop.UNRESOLVED), status)
    return status, balances & ~stuck & ~lost & (before.left > 1)
