"""The exact flow as a phase: the path is found at once, and its rows are the steps of the phase."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxattn.dynamics import Path, exact_flow
from jaxattn.dynamics.exact_flow import Stop
from jaxattn.study.config import ExactFlow
from jaxattn.study.probes import Corpora
from jaxattn.trees import Leaf


@struct.dataclass
class FlowState:
    """Where on its path every seed stands; all arrays have a leading seed axis.

    Attributes:
        params: the parameters at this row, p in the precision of the study.
        path: the whole path, float64.
        row: (S,) int32; the row, the same for all seeds.
        failed_at: (S,) int32; the row at which the integration failed, -1 if it did not or is not there yet.
    """

    params: Leaf
    path: Leaf
    row: Leaf
    failed_at: Leaf


def init(phase: ExactFlow, params: Any, corpora: Corpora) -> FlowState:
    """Find the path of every seed and stand at its start."""
    path = exact_flow(
        params,
        corpora.train,
        until_norm=phase.until_norm,
        until_arc_length=jnp.inf if phase.until_arc_length is None else phase.until_arc_length,
        until_direction=phase.until_direction,
        max_steps=phase.max_steps,
        rtol=phase.rtol,
        points=phase.points,
    )
    return _at(params, path, jnp.zeros(path.status.shape, jnp.int32))


def advance(state: FlowState, rows: Array) -> FlowState:
    """Go on by some rows."""
    return _at(state.params, state.path, state.row + rows)


def query(state: FlowState) -> Array:
    """Look up p at the state's row, (S, d) float64."""
    return _row(state.path.p, state.row)


def measure(state: FlowState) -> dict[str, Array]:
    """Look up what the path says of a row, (S,) each.

    A step of the integrator counts as six evaluations of the gradient and one Jacobian, and the Jacobian
    as one evaluation for each of its min(V, d) columns.
    """
    path, row = state.path, state.row
    # Rows of zeros are padding of the vocabulary.
    tokens = (state.params.E != 0).any(axis=2).sum(axis=1)
    columns = jnp.minimum(tokens, state.params.E.shape[2])
    return {
        "p_norm": _row(path.norm, row),
        "arc_length": _row(path.arc_length, row),
        "log_gradient_norm": _row(path.log_gradient_norm, row),
        "log_time": _row(path.log_time, row),
        "evaluations": _row(path.steps, row) * (6 + columns),
    }


def _row(rows: Array, number: Array) -> Array:
    return jax.vmap(lambda of_seed, k: of_seed[k])(rows, number)


def _at(params: Any, path: Path, row: Array) -> FlowState:
    reached = (path.arc_length[:, 1:] > path.arc_length[:, :-1]).sum(axis=1)
    failed = (path.status == Stop.FAILED) & (row >= reached)
    p = _row(path.p, row).astype(params.p.dtype)
    return FlowState(params.replace(p=p), path, row, jnp.where(failed, reached, -1).astype(jnp.int32))
