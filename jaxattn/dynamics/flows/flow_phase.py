"""Exact flows as phases: the rows of a path are the steps of its phase."""

import math
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import msgspec
from flax import struct
from jax import Array

from jaxattn.attention.scores import Scores
from jaxattn.base import Goal, Params, Phase, Task
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Brief, Leaf, get, replaced
from jaxattn.core.settings import NotNegative, Positive, PositiveInt, Static
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.arc_length import ASKED_FOR, GRADIENT_RTOL, Stop
from jaxattn.dynamics.flows.exact_flow import Path, PathSoFar, begin_path, continue_path, exact_flow
from jaxattn.dynamics.flows.full_flow import full_flow
from jaxattn.dynamics.flows.joint_flow import joint_flow

# The parameters of a row store a longer v with this length, because its square would overflow float32.
_LONGEST = 1e15


@struct.dataclass(repr=False)
class FlowState(Brief):
    """Position of a seed on its path.

    Attributes:
        params: the parameters at this row, in the precision of the study.
        path: the path, float64, complete or as far as it was computed.
        step: () int32; the row.
        failed_at: () int32; the row at which the integration failed, -1 if it has not.
        columns: () int32; columns of the Jacobian of a step, each of which costs one gradient.
    """

    params: Leaf
    path: Leaf
    step: Leaf
    failed_at: Leaf
    columns: Leaf


class _Flow(Phase, frozen=True, kw_only=True):
    """Base class of exact-flow phases; subclasses define `train`, `points` and the methods that raise.

    Attributes:
        progress: the quantity that grows from row to row until the path ends.
        until_norm: stop at this ‖p‖.
        max_steps: stop after this many steps, accepted or rejected.
        rtol: relative error tolerance of a step.
        points: number of log-spaced points to record along the path, including its start.
    """

    failure: ClassVar[str] = "the flow met NaN or a step too short to represent"
    dtype: ClassVar[str] = "float64"
    # The arrays of one seed fit into a core's cache, and a slow seed does not delay others.
    seeds_per_core: ClassVar[int] = 1
    refines: ClassVar[tuple[str, ...]] = ("p_norm", "log_gradient_norm")
    rotation_invariant: ClassVar[bool] = True
    progress: ClassVar[str] = "steps"
    overridable: ClassVar[frozenset[str]] = Phase.overridable | {"points"}

    @property
    def points(self) -> int:
        """Number of rows of the path, including the start."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Number of rows after the start."""
        return self.points - 1

    def check(self, *context: Any) -> None:
        """Raise InputError unless the model and loss are those of the theory."""
        require_one_layer(*context)

    def probe_steps(self, per_decade: int) -> list[int]:
        """Return all rows of the path."""
        return list(range(self.steps + 1))

    def init(self, task: Task, params: Any, key: Array) -> FlowState:
        """Compute the path, and return the state at its start."""
        keys = self.keys(task, params)
        # Zero rows are padding of the vocabulary.
        columns = jnp.minimum((keys != 0).any(axis=1).sum(), keys.shape[1])
        return self.at(params, self.follow(task, params), jnp.zeros((), jnp.int32), columns)

    def advance(self, task: Task, state: FlowState, steps: int | Array) -> FlowState:
        """Advance by a number of rows."""
        return self.at(state.params, state.path, state.step + steps, state.columns)

    def at(self, params: Params, path: Any, row: Array, columns: Array) -> FlowState:
        """Return the state at a row of a path."""
        reached = self.reached(path)
        failed = (path.status == Stop.FAILED) & (row >= reached)
        moved = {
            name: x.reshape(get(params, name).shape).astype(get(params, name).dtype)
            for name, x in self.moved(path, row).items()
        }
        failed_at = jnp.where(failed, reached, -1).astype(jnp.int32)
        return FlowState(replaced(params, **moved), path, row, failed_at, columns)

    def reached(self, path: Any) -> Array:
        """Return the row at which the path has ended, or up to which it was computed."""
        progress = getattr(path, self.progress)
        return (progress < progress[-1]).sum()

    def keys(self, task: Task, params: Params) -> Array:
        """Return the keys of the scores, (m, D)."""
        keys: Array = params.E
        return keys

    def follow(self, task: Task, params: Params) -> Any:
        """Compute the path."""
        raise NotImplementedError

    def moved(self, path: Any, row: Array) -> dict[str, Array]:
        """Return the parameters that the flow trains."""
        raise NotImplementedError

    def measured(self, state: FlowState) -> dict[str, Array]:
        """Return the quantities of the path at the state's row."""
        raise NotImplementedError

    def parameter(self, state: FlowState, name: str) -> Array:
        """Return a parameter at the state's row; trained ones in float64, as one row."""
        moved = self.moved(state.path, state.step)
        return moved[name] if name in moved else super().parameter(state, name)

    def metrics(self, state: FlowState) -> dict[str, Array]:
        """Return the quantities of the path at the state's row, and whether a requested end was reached."""
        asked_for = jnp.isin(state.path.status, jnp.array(ASKED_FOR, state.path.status.dtype))
        came = asked_for & (state.step >= self.reached(state.path))
        return {**self.measured(state), "came_to_end": 1.0 * came}


class ExactFlow(_Flow, frozen=True, kw_only=True):
    """Exact gradient flow on p until a stopping condition holds.

    With `linear_in` on another parameter that the scores of a model are linear in, such as W.

    Attributes:
        linear_in: name of the trained parameter, in which the scores must be linear; defaults to p.
        until_arc_length: stop at this arc length.
        until_direction: stop when the sine of the angle between p and dp/dt is at most this.
    """

    linear_in: str | None = None
    until_norm: Static[Positive] = 1e6
    until_arc_length: Static[Positive] | None = None
    until_direction: Static[NotNegative] = 0.0
    max_steps: PositiveInt = 10_000
    rtol: Static[Annotated[float, msgspec.Meta(gt=0, lt=1)]] = 1e-5
    points: Annotated[int, msgspec.Meta(ge=3)] = 64

    @property
    def beginning(self) -> str:
        """Description of the phase for progress messages."""
        return f"follows the path to {self.goal.label} = {self.goal.value:g}"

    @property
    def goal(self) -> Goal:
        """The arc length or ‖p‖, whichever limit ends the path first."""
        if (length := self.until_arc_length) is not None and length <= self.until_norm:
            return Goal("arc_length", "arc length", length)
        return Goal("p_norm", "‖p‖", self.until_norm)

    def check(self, *context: Any) -> None:
        """Raise InputError unless model and loss are those of the theory and a stopping point is finite."""
        if not math.isfinite(self.goal.value):
            raise InputError("until_norm and until_arc_length are both infinite; give one of them")
        require_linear_scores(self.train[0], *context)

    @property
    def train(self) -> tuple[str]:
        """The trained parameter."""
        return (self.linear_in or "p",)

    def keys(self, task: Task, params: Params) -> Array:
        """Return the keys of the scores, (m, D)."""
        keys: Array = _scores(task, params).keys
        return keys

    def follow(self, task: Task, params: Params) -> Path | PathSoFar:
        """Compute the path, or only its start if steps are expensive."""
        scores = _scores(task, params)
        start = get(params, self.train[0]).reshape(-1)
        if min(scores.keys.shape) > stiff.LARGE:
            return begin_path(scores, start, self.ends, self.points)
        norm, arc_length, direction, rtol, gradient_rtol = self.ends
        return exact_flow(
            scores,
            start,
            until_norm=norm,
            until_arc_length=arc_length,
            until_direction=direction,
            max_steps=self.max_steps,
            rtol=rtol,
            gradient_rtol=gradient_rtol,
            points=self.points,
        )

    def advance(self, task: Task, state: FlowState, steps: int | Array) -> FlowState:
        """Advance by a number of rows."""
        if isinstance(state.path, Path):
            return super().advance(task, state, steps)
        scores, row = _scores(task, state.params), state.step + steps
        path = continue_path(scores, state.path, self.ends, self.max_steps, row)
        return self.at(state.params, path, row, state.columns)

    @property
    def ends(self) -> tuple[float, ...]:
        """The stopping conditions and error tolerances, as in `Ends`."""
        arc_length = math.inf if self.until_arc_length is None else self.until_arc_length
        return self.until_norm, arc_length, self.until_direction, self.rtol, GRADIENT_RTOL

    def moved(self, path: Any, row: Array) -> dict[str, Array]:
        """Return the trained parameter."""
        return {self.train[0]: path.p[row]}

    def measured(self, state: FlowState) -> dict[str, Array]:
        """Return ‖p‖, the arc length, log ‖∂L/∂p‖, log t, and the number of gradient evaluations so far."""
        found = _at_row(state, "arc_length", "log_gradient_norm", "log_time")
        return {"p_norm": state.path.norm[state.step], **found, "evaluations": _evaluations(state)}


class JointFlow(_Flow, frozen=True, kw_only=True):
    """Exact gradient flow on p and v, with E fixed.

    ‖v‖ grows like e^(margin ‖p‖ / 2) and overflows float32. Beyond ‖v‖ = 1e15 the parameters store v with
    length 1e15, and `log_v_norm` is the log of the true ‖v‖.
    """

    train: ClassVar[tuple[str, ...]] = ("p", "v")

    until_norm: Static[Positive] = 1e4
    max_steps: PositiveInt = 10_000
    rtol: Static[Annotated[float, msgspec.Meta(gt=0, lt=1)]] = 1e-5
    points: Annotated[int, msgspec.Meta(ge=5)] = 64

    @property
    def beginning(self) -> str:
        """Description of the phase for progress messages."""
        return f"follows the path to ‖p‖ = {self.until_norm:g}"

    def follow(self, task: Task, params: Params) -> Any:
        """Compute the path."""
        return joint_flow(
            params,
            task.data.train,
            until_norm=self.until_norm,
            max_steps=self.max_steps,
            rtol=self.rtol,
            points=self.points,
        )

    def moved(self, path: Any, row: Array) -> dict[str, Array]:
        """Return p and v."""
        length = jnp.exp(jnp.minimum(path.log_v_norm[row], math.log(_LONGEST)))
        return {"p": path.p[row], "v": path.v[row] * length}

    def measured(self, state: FlowState) -> dict[str, Array]:
        """Return ‖p‖, log ‖v‖, the mismatch of the two descriptions, and the number of evaluations so far."""
        found = {"p_norm": state.path.norm[state.step], **_at_row(state, "log_v_norm")}
        return found | {"mismatch": state.path.mismatch, "evaluations": 2 * _evaluations(state)}


class FullFlow(_Flow, frozen=True, kw_only=True):
    """Exact gradient flow on E, p and v.

    Attributes:
        until_log_loss: stop at this value of log L.
    """

    train: ClassVar[tuple[str, ...]] = ("E", "p", "v")
    progress: ClassVar[str] = "arc_length"

    until_log_loss: Static[float] = math.log(1e-12)
    max_steps: Static[PositiveInt] = 100_000
    rtol: Static[Annotated[float, msgspec.Meta(gt=0, lt=1)]] = 1e-8
    points: Annotated[int, msgspec.Meta(ge=3)] = 64

    @property
    def beginning(self) -> str:
        """Description of the phase for progress messages."""
        return f"follows the path to log L = {self.until_log_loss:g}"

    def follow(self, task: Task, params: Params) -> Any:
        """Compute the path."""
        return full_flow(
            params,
            task.data.train,
            until_log_loss=self.until_log_loss,
            max_steps=self.max_steps,
            rtol=self.rtol,
            points=self.points,
        )

    def moved(self, path: Any, row: Array) -> dict[str, Array]:
        """Return E, p and v."""
        return {name: getattr(path, name)[row] @ path.basis.T for name in self.train}

    def measured(self, state: FlowState) -> dict[str, Array]:
        """Return ‖p‖, log L, the arc length, log t and the drift of the conserved quantity."""
        found = _at_row(state, "log_loss", "arc_length", "log_time", "drift")
        return {"p_norm": jnp.linalg.norm(state.path.p[state.step]), **found}


def _scores(task: Task, params: Params) -> Scores:
    found = task.model.scores(params, task.data.train)
    return Scores(found.keys, found.corpus, found.values)


def _at_row(state: FlowState, *names: str) -> dict[str, Array]:
    return {name: getattr(state.path, name)[state.step] for name in names}


def _evaluations(state: FlowState) -> Array:
    """Return the number of gradient evaluations of one parameter: six per step, and those of one Jacobian.

    The Jacobian counts as one evaluation for each of its min(m, D) columns, m keys of D numbers.
    """
    return state.path.steps[state.step] * (6 + state.columns)


def require_linear_scores(parameter: str, *context: Any) -> None:
    """Raise InputError unless the model's scores are linear in the parameter and the loss is logistic."""
    for setting in context:
        if (found := setting.model.linear_in) != parameter:
            actual = f"those of this model are linear in {found!r}" if found else "this model has none"
            raise InputError(
                f"this phase requires scores that are linear in {parameter!r} (linear_in), but {actual}; use "
                "kind = 'descent'"
            )
        _require_logistic(setting)


def require_one_layer(*context: Any) -> None:
    """Raise InputError unless the model is one-layer, the loss logistic and classes are two."""
    for setting in context:
        if not setting.model.is_one_layer:
            raise InputError("this phase requires model.kind = 'one_layer'; use kind = 'descent'")
        _require_logistic(setting)
        if (classes := setting.data.num_classes) != 2:
            raise InputError(f"this phase requires two classes, got {classes}; use kind = 'descent'")


def _require_logistic(setting: Any) -> None:
    if not setting.loss.is_logistic:
        raise InputError(
            "this phase requires the logistic loss without label smoothing; use kind = 'descent'"
        )
