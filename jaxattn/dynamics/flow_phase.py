"""The exact flow as a phase: the path is found at once, and its rows are the steps of the phase."""

import math
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import msgspec
from flax import struct
from jax import Array

from jaxattn.dynamics.arc_length import Stop
from jaxattn.dynamics.exact_flow import Path, exact_flow
from jaxattn.dynamics.phase import Phase, Task, require_one_layer
from jaxattn.spec import NotNegative, Positive, PositiveInt, Static
from jaxattn.trees import Leaf


@struct.dataclass
class FlowState:
    """Where on its path a seed stands.

    Attributes:
        params: the parameters at this row, p in the precision of the study.
        path: the whole path, float64.
        step: () int32; the row.
        failed_at: () int32; the row at which the integration failed, -1 if it did not or is not there yet.
    """

    params: Leaf
    path: Leaf
    step: Leaf
    failed_at: Leaf


class ExactFlow(Phase, frozen=True, kw_only=True):
    """Exact gradient flow on p until the first of its ends; a step is one of `points` rows of its path."""

    failure: ClassVar[str] = "the flow met NaN or a step too short to represent"
    dtype: ClassVar[str] = "float64"
    # One seed's arrays fit a core's cache, and a slow seed holds up no other.
    seeds_per_core: ClassVar[int] = 1
    rotation_invariant: ClassVar[bool] = True
    train: ClassVar[tuple[str, ...]] = ("p",)

    until_norm: Static[Positive] = 1e6
    until_arc_length: Static[Positive] | None = None
    until_direction: Static[NotNegative] = 0.0
    max_steps: PositiveInt = 10_000
    rtol: Static[Annotated[float, msgspec.Meta(gt=0, lt=1)]] = 1e-5
    points: Annotated[int, msgspec.Meta(ge=3)] = 64

    @property
    def steps(self) -> int:
        """Rows after the start."""
        return self.points - 1

    def check(self, *context: Any) -> None:
        """Raise InputError unless the model and loss are those of the theory."""
        require_one_layer(*context)

    def probe_steps(self, per_decade: int) -> list[int]:
        """List all rows of the path."""
        return list(range(self.points))

    def init(self, task: Task, params: Any, key: Array) -> FlowState:
        """Find the path and stand at its start."""
        path = exact_flow(
            params,
            task.corpora.train,
            until_norm=self.until_norm,
            until_arc_length=math.inf if self.until_arc_length is None else self.until_arc_length,
            until_direction=self.until_direction,
            max_steps=self.max_steps,
            rtol=self.rtol,
            points=self.points,
        )
        return _at(params, path, jnp.zeros((), jnp.int32))

    def advance(self, task: Task, state: FlowState, steps: int | Array) -> FlowState:
        """Go on by some rows."""
        return _at(state.params, state.path, state.step + steps)

    def query(self, state: FlowState) -> Array:
        """Look up p at the state's row, (d,) float64."""
        return state.path.p[state.step]

    def metrics(self, state: FlowState) -> dict[str, Array]:
        """Look up what the path says of a row.

        A step of the integrator counts as six evaluations of the gradient and one Jacobian, and the Jacobian
        as one evaluation for each of its min(V, d) columns.
        """
        path, row, E = state.path, state.step, state.params.E
        # Rows of zeros are padding of the vocabulary.
        columns = jnp.minimum((E != 0).any(axis=1).sum(), E.shape[1])
        return {
            "p_norm": path.norm[row],
            "arc_length": path.arc_length[row],
            "log_gradient_norm": path.log_gradient_norm[row],
            "log_time": path.log_time[row],
            "evaluations": path.steps[row] * (6 + columns),
        }


def _at(params: Any, path: Path, row: Array) -> FlowState:
    reached = (path.arc_length[1:] > path.arc_length[:-1]).sum()
    failed = (path.status == Stop.FAILED) & (row >= reached)
    p = path.p[row].astype(params.p.dtype)
    return FlowState(params.replace(p=p), path, row, jnp.where(failed, reached, -1).astype(jnp.int32))
