"""Path of gradient flow on p, integrated in stages; each stage describes the flow in its own coordinates.

A stage ends when forces cancel: the next one describes the flow with the tied tokens that it finds.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxattn.attention.scores import Scores, require_values
from jaxattn.core import backend
from jaxattn.core.pytrees import Leaf
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import Ends, Integration, Row, begin, first_step, integrate, restart
from jaxattn.dynamics.flows.balance import find_ties, no_balance
from jaxattn.dynamics.flows.conditions import cond_under_vmap
from jaxattn.dynamics.flows.coordinates import Coordinates
from jaxattn.dynamics.flows.paths import FlowPath, Stop, row_of
from jaxattn.dynamics.flows.seeds import Inputs, doubled, jacobian_columns, of_seeds, refuse_derivative
from jaxattn.dynamics.flows.ties import Ties, no_ties, selected, tied_coordinates
from jaxattn.theory.selection import Selection

# Largest number of times that ties are found or dissolved.
_STAGES = 256


class _LinearPath(FlowPath):
    """Path of one parameter, complete or so far; its `rows` hold the quantities of the integration."""

    rows: Any
    p: Leaf
    norm: Leaf
    columns: Leaf

    @property
    def reached(self) -> Array:
        """The row at which the path ended, or up to which it was computed."""
        return (self.rows.steps < self.rows.steps[-1]).sum()

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, Array]:
        """Return the trained parameter, p or another one that the scores are linear in."""
        return dict.fromkeys(train, self.p[row])

    def metrics_at(self, row: Array) -> dict[str, Array]:
        """Return ‖p‖, the arc length, log ‖∂L/∂p‖, log t, and the number of gradient evaluations so far."""
        found = row_of(self.rows, row, "arc_length", "log_gradient_norm", "log_time")
        # Six evaluations per step, and those of one Jacobian.
        evaluations = self.rows.steps[row] * (6 + self.columns)
        return {"p_norm": self.norm[row], **found, "evaluations": evaluations}


@struct.dataclass(repr=False)
class Path(_LinearPath):
    """Points along gradient flow on p, float64; with a leading seed axis B on every array for B seeds.

    Row 0 is the start, and the last row is the end of the path. The rows between are at log-spaced arc
    lengths. Rows that were not reached repeat the last state.

    Attributes:
        p: (k, d).
        arc_length: (k,); s, length of the path so far.
        norm: (k,); ‖p‖.
        log_gradient_norm: (k,); log ‖∂L/∂p‖, -inf where the gradient is exactly zero.
        log_time: (k,); log t of the flow dp/dt = -∂L/∂p, -inf at the start.
        steps: (k,) int32; number of attempted steps so far.
        status: () int32; the stopping condition, a `Stop`.
        accepted: () int32; number of accepted steps.
        rejected: () int32; number of rejected steps.
        columns: () int; columns of the Jacobian of a step, each of which costs one gradient evaluation.
        selection: the highest token of every sequence at the end of the path, and the tokens that tie with
            it in the limit: their scores differ by a bounded amount while ‖p‖ grows.
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
    columns: Leaf
    selection: Selection

    @property
    def rows(self) -> "Path":
        """The path itself, which holds the quantities of the integration."""
        return self


def inputs_of(scores: Scores, p: Array | np.ndarray) -> Inputs:
    """Check the shapes of scores and of the start, and return them as the input of `over_seeds`."""
    require_values(scores)
    columns = scores.corpus.num_classes > 2
    parts = {"keys": (scores.keys, 2), "p": (p, 1), "values": (scores.values, 1 + columns)}
    return of_seeds(parts, scores.corpus)


@struct.dataclass(repr=False)
class PathSoFar(_LinearPath):
    """State of a path so far, across successive descriptions of the flow (stages).

    Its rows are those of `Path`; rows that were not reached repeat the last state.

    Attributes:
        p: (k, d).
        norm: (k,); ‖p‖.
        integration: the integration, in coordinates of the last stage.
        start: p at the start of that stage, (d,).
        ties: the tied tokens in that stage.
        tied: True if there are any, () bool.
        left: number of stages that may follow, () int32; 0 once the path has ended.
        accepted_before: number of accepted steps before that stage, () int32.
        columns: columns of the Jacobian of a step, () int.
    """

    p: Leaf
    norm: Leaf
    integration: Integration
    start: Leaf
    ties: Ties
    tied: Leaf
    left: Leaf
    accepted_before: Leaf
    columns: Leaf

    @property
    def rows(self) -> Row:
        """The recorded quantities."""
        return self.integration.rows

    @property
    def status(self) -> Array:
        """The stopping condition, a `Stop`, () int32."""
        return self.integration.status


def begin_path(scores: Scores, p: Array, ends: Ends, points: int) -> PathSoFar:
    """Return the start of the path of one seed, as in `exact_flow`.

    Args:
        scores: keys, values and bags of one seed.
        p: (D,); the start.
        ends: the stopping conditions.
        points: number of rows k ≥ 3 of the path.

    Returns:
        The path with row 0.

    Raises:
        InputError: the scores have no values, or shapes do not match.
    """
    keys, start, values, corpus = inputs_of(scores, p).arrays
    with backend.float64():
        arrays = doubled((keys, start, values))
        return _begin(*arrays, corpus, doubled(ends), points, _log_gradient_norm(*arrays, corpus))


def continue_path(
    scores: Scores, path: PathSoFar, ends: Ends, max_steps: int | Array, row: int | Array
) -> PathSoFar:
    """Continue the path of one seed until it reaches a row or ends.

    Args:
        scores: those passed to `begin_path`.
        path: the path so far.
        ends: those passed to `begin_path`.
        max_steps: stop after this many steps, accepted or rejected.
        row: the row, ().

    Returns:
        The path, complete up to that row.

    Raises:
        InputError: the function is differentiated.
    """
    with backend.float64():
        arrays = *doubled((scores.keys, scores.values)), scores.corpus, path, doubled(ends)
        return _continued(*arrays, jnp.asarray(max_steps, jnp.int32), row + 1)


def follow_path(
    E: Array, p: Array, values: Array, corpus: Corpus, ends: Ends, max_steps: Array, points: int
) -> Path:
    """Compute the path of one seed in float64, for `over_seeds`."""
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
        selection=Selection(selected(E, path.start, corpus, path.ties.leader)),
    )


@partial(jax.jit, static_argnames="points")
def _begin(
    E: Array,
    p: Array,
    values: Array,
    corpus: Corpus,
    ends: Ends,
    points: int,
    log_gradient_norm: Array | float = math.nan,
) -> PathSoFar:
    """Return the start of the path of one seed."""
    ties = no_ties(E, values, corpus)
    flow = tied_coordinates(E, p, corpus, ties)
    return PathSoFar(
        p=jnp.broadcast_to(p, (points, len(p))),
        norm=jnp.broadcast_to(jnp.linalg.norm(p), (points,)),
        integration=begin(flow, ends, _reach(ends), points, log_gradient_norm),
        start=p,
        ties=ties,
        tied=jnp.asarray(False),
        left=jnp.asarray(_STAGES, jnp.int32),
        accepted_before=jnp.zeros((), jnp.int32),
        columns=jacobian_columns(E),
    )


@jax.jit
def _log_gradient_norm(E: Array, p: Array, values: Array, corpus: Corpus) -> Array:
    """Compute log ‖∂L/∂p‖, ()."""
    flow = tied_coordinates(E, p, corpus, no_ties(E, values, corpus))
    return flow.at(flow.zero).log_gradient_norm


def _continue(
    E: Array,
    values: Array,
    corpus: Corpus,
    path: PathSoFar,
    ends: Ends,
    max_steps: Array,
    rows: int | Array,
) -> PathSoFar:
    """Continue the path of one seed until this number of rows is reached, or it ends."""

    def stage(before: PathSoFar) -> PathSoFar:
        flow = tied_coordinates(E, before.start, corpus, before.ties)
        integration = integrate(flow, ends, _reach(ends), max_steps, before.integration, rows)
        old = jnp.arange(len(before.p)) < before.integration.reached
        p = jnp.where(old[:, None], before.p, _points(flow, integration.rows.z, before))
        norm = jnp.where(old, before.norm, jax.vmap(partial(flow.norm, multiple=1.0))(integration.rows.z))
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
    """Return p at points z; coordinates of p itself would add rounding to differences of tied tokens."""
    p = flow.p(z)
    if flow.basis is not None:
        return p
    moved = p - path.start
    return path.start + (moved - (moved @ path.ties.normals.T) @ path.ties.normals)


def _next_stage(
    E: Array, values: Array, corpus: Corpus, ends: Ends, before: PathSoFar, after: PathSoFar
) -> PathSoFar:
    """Return the next stage: the same description if it has not ended, another one, or the path's end."""
    integration, ties = after.integration, before.ties
    runs = integration.status == Stop.RUNNING
    slides = before.tied & ties.watch.slides & ~runs
    balances = integration.status == Stop.BALANCED
    looks = balances & (~before.tied | slides)
    end = after.p[-1]
    given = E, end, values, corpus, ties, slides, looks
    otherwise = end, no_balance(E, end, values, corpus)
    p, found = cond_under_vmap(slides | looks, lambda _, *given: find_ties(*given), otherwise, *given)
    # Without an accepted step the next stage would end at the same point.
    stuck = balances & before.tied & (integration.accepted == before.accepted_before)
    lost = balances & ~before.tied & ~found.settled
    status = jnp.where(stuck | lost | (balances & (before.left == 1)), Stop.UNRESOLVED, integration.status)
    status = jnp.where(lost & found.undecided, Stop.UNDECIDED, status)
    # Only tied scores could still move, and they are balanced, so p stays where it is.
    status = jnp.where(before.tied & (status == Stop.STATIONARY), Stop.BALANCED, status)
    goes_on = balances & ~stuck & ~lost & (before.left > 1)
    choose = partial(jnp.where, goes_on)
    ended = integration.replace(status=status.astype(jnp.int32))  # type: ignore[attr-defined]
    again = restart(
        integration, first_step(1 / jnp.sqrt(jnp.square(E).sum(axis=1).max()), ends, _reach(ends))
    )
    return PathSoFar(
        p=after.p.at[-1].set(p),
        norm=after.norm,
        integration=jax.tree.map(choose, again, ended),
        start=choose(found.p, jnp.where(runs, before.start, p)),
        ties=jax.tree.map(choose, found.ties, ties),
        tied=choose(found.settled, before.tied),
        left=choose(before.left - 1, jnp.where(runs, before.left, 0)),
        accepted_before=choose(integration.accepted, before.accepted_before),
        columns=after.columns,
    )
