"""Flows as phases: a flow computes a whole path, whose rows are the steps of the phase."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import PyTree

from jaxattn.attention.scores import Scores
from jaxattn.base import Goal, Loss, Model, Params, Phase, Task
from jaxattn.base.from_function import FromFunction, Function, settings_class
from jaxattn.base.model import HasLinearScores, linear_in
from jaxattn.core.errors import InputError, shown
from jaxattn.core.pytrees import AnyArray, Brief, PathArray, floats_to_float64, get, replace, selected
from jaxattn.core.scales import ERROR, NOT_NEGATIVE, YES_NO, Scale
from jaxattn.core.spec import StudyParts
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.arc_length import Ends, FlowPath, Stop
from jaxattn.dynamics.flows.exact_flow import Path, begin_path, continue_path, ends_of, exact_flow
from jaxattn.dynamics.flows.full_flow import full_flow
from jaxattn.dynamics.flows.joint_flow import joint_flow
from jaxattn.losses import is_logistic
from jaxattn.models.one_layer import is_one_layer

# Stop reasons that correspond to a condition requested by the caller.
_ASKED_FOR = (Stop.NORM, Stop.ARC_LENGTH, Stop.DIRECTION, Stop.LOSS, Stop.TIME)
# Settings that end a path when a metric reaches a given value. Each is mapped to the name of this metric and
# its symbol in messages.
_GOALS = {
    "until_norm": ("p_norm", "‖p‖"),
    "until_arc_length": ("arc_length", "arc length"),
    "until_log_loss": ("log_loss", "log L"),
    "until_time": ("time", "t"),
}


@struct.dataclass(repr=False)
class FlowState(Brief):
    """State of a seed at a row of its path.

    Attributes:
        params: the parameters at the current row, in the precision of the study.
        path: the path computed so far, a `FlowPath`.
        step: () int32; the current row.
        failed_at: () int32; the row at which the integration failed, or -1.
    """

    params: Params
    path: PyTree
    step: Array
    failed_at: Array


@struct.dataclass(repr=False)
class RecordedPath(FlowPath):
    """Path with k rows, returned by a custom flow.

    Attributes:
        params: (k, ...) each; trained parameters by name.
        metrics: (k,) each; recorded metrics by name.
        status: () int32; why the path ended, a `ja.dynamics.Stop`.
        last: () int32; the row at which the path ended; all later rows repeat it. None if the path ended
            at row k - 1.
    """

    params: dict[str, AnyArray]
    status: AnyArray
    metrics: dict[str, AnyArray] = struct.field(default_factory=dict)
    last: AnyArray | None = None

    @property
    def reached(self) -> PathArray:
        """Row at which the path ended, a scalar."""
        return jnp.asarray(len(next(iter(self.params.values()))) - 1 if self.last is None else self.last)

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, PathArray]:
        """Return the trained parameters at a row."""
        return {name: self.params[name][row] for name in train}

    def metrics_at(self, row: Array) -> dict[str, PathArray]:
        """Return the recorded metrics at a row."""
        return {name: x[row] for name, x in self.metrics.items()}


class FlowPhase(FromFunction, Phase, frozen=True, kw_only=True):
    """Phase that runs a flow, built from a function `(params, task, *, points, settings) -> FlowPath`.

    The function computes the path for one seed, with `points` rows. In every study, it is called with
    parameters and training data in float64, and with a `key` if `is_random` is True. Declare the trained
    parameters with `@ja.declare(train=["p"])` or as a setting `train`.
    """

    failure: ClassVar[str] = "the flow met NaN or a step too short to represent"
    # Statuses that are recorded as a failure of the seed.
    failing: ClassVar[tuple[Stop, ...]] = (Stop.FAILED,)
    dtype: ClassVar[str | None] = "float64"
    is_random: ClassVar[bool] = False
    labels: ClassVar[Mapping[str, str]] = {
        "time": "$t$",
        "log_time": r"$\log\,t$",
        "log_loss": r"$\log\,L$",
        "came_to_end": "paths that reach their stopping condition",
    }
    scales: ClassVar[Mapping[str, Scale]] = {"time": NOT_NEGATIVE, "came_to_end": YES_NO}
    # The arrays for one seed fit into a core's cache, and a slow seed does not delay the other seeds.
    seeds_per_core: ClassVar[int | None] = 1
    overridable: ClassVar[frozenset[str]] = Phase.overridable - {"steps"} | {"points"}

    @property
    def points(self) -> int:
        """Number of rows in the path, including the start."""
        raise NotImplementedError(f"{type(self).__name__}.points")

    @property
    def steps(self) -> int:
        """Number of rows after the start."""
        return self.points - 1

    @property
    def goal(self) -> Goal | None:
        """Stopping condition with the smallest target value, for progress messages; None if none is set."""
        given = {name: x for name, x in self._settings().items() if x is not None}
        goals = [Goal(*_GOALS[name], x) for name, x in given.items() if name in _GOALS]
        return min(goals, key=lambda goal: goal.value, default=None)

    @property
    def end_key(self) -> str:
        """Name of a stopping condition, or "points" if none is set. Every row depends on this setting."""
        goals = [name for name, x in self._settings().items() if name in _GOALS and x is not None]
        return goals[0] if goals else "points"

    def probe_steps(self, per_decade: int) -> list[int]:
        """Return the indices of all rows of the path."""
        return list(range(self.points))

    def follow(self, task: Task, params: Params, key: Array) -> FlowPath:
        """Compute the path; if steps are expensive, compute only its start, and let `advance` continue it."""
        train = floats_to_float64(task.data.train)
        task = task._replace(data=task.data.replace(train=train))  # type: ignore[attr-defined]
        given = {"key": key} if self.is_random else {}
        return self._check_path(self._call(floats_to_float64(params), task, **given), params)

    def init(self, task: Task, params: Params, key: Array) -> FlowState:
        """Return the state at the start of the path."""
        path = self.follow(task, params, key)
        with jax.enable_x64(True):
            # Outside of a traced function, flows return NumPy arrays, which lack the indexing rules of JAX.
            path = jax.tree.map(jnp.asarray, path)
        return self.at(params, path, jnp.zeros((), jnp.int32))

    def advance(self, task: Task, state: FlowState, steps: int | Array) -> FlowState:
        """Return the state the given number of rows later."""
        return self.at(state.params, state.path, state.step + steps)

    def at(self, params: Params, path: FlowPath, row: Array) -> FlowState:
        """Return the state at the given row of a path."""
        failed = jnp.isin(path.status, jnp.array(self.failing, path.status.dtype)) & (row >= path.reached)
        moved = {
            name: x.reshape(get(params, name).shape).astype(get(params, name).dtype)
            for name, x in path.params_at(row, tuple(selected(params, self.train))).items()
        }
        failed_at = jnp.where(failed, path.reached, -1).astype(jnp.int32)
        return FlowState(replace(params, **moved), path, row, failed_at)

    def parameter(self, state: FlowState, name: str) -> Array:
        """Return a parameter at the current row. Trained parameters have the precision of the path."""
        moved = state.path.params_at(state.step, tuple(selected(state.params, self.train)))
        return moved[name] if name in moved else super().parameter(state, name)

    def metrics(self, state: FlowState) -> dict[str, Array]:
        """Return the metrics at the current row, including `came_to_end`.

        `came_to_end` is 1 if the path has met a requested stopping condition at or before this row, else 0.
        """
        path = state.path
        asked_for = jnp.isin(path.status, jnp.array(_ASKED_FOR, path.status.dtype))
        came = asked_for & (state.step >= path.reached)
        return {**path.metrics_at(state.step), "came_to_end": 1.0 * came}

    def _check_path(self, path: Any, params: Params) -> FlowPath:
        if not isinstance(path, FlowPath):
            raise InputError(f"the function returned {shown(path)}; return a ja.dynamics.RecordedPath")
        if not isinstance(path, RecordedPath):
            return path
        if not isinstance(path.params, Mapping):
            raise InputError(
                f"the path contains {shown(path.params)} as params; return a dictionary of arrays by name"
            )
        if not isinstance(path.status, int | np.integer | Array):
            raise InputError(f"the path has status {path.status!r:.40}; return a member of ja.dynamics.Stop")
        trained = selected(params, self.train)
        if path.params.keys() != trained.keys():
            names = ", ".join(path.params) or "no parameters"
            raise InputError(
                f"the path contains {names}, but train is {', '.join(trained)}; return the trained parameters"
            )
        wanted = [(name, path.params[name], np.shape(x)) for name, x in trained.items()]
        for name, x, shape in [*wanted, *((name, x, ()) for name, x in path.metrics.items())]:
            if np.shape(x) != (rows := (self.points, *shape)):
                raise InputError(
                    f"{name} in the path has shape {np.shape(x)}; expected {rows}, one row per point"
                )
        made: FlowPath = path.replace(status=jnp.asarray(path.status, jnp.int32))  # type: ignore[attr-defined]
        return made


def from_function(function: Function, kind: str) -> type[FlowPhase]:
    """Build the settings class of a custom flow from its function.

    Raises:
        InputError: the function does not declare its trained parameters, or has no setting `points`.
    """
    made: type[FlowPhase] = settings_class(function, FlowPhase, kind=kind)
    if made.train is Phase.train:
        raise InputError(
            f"{kind}: declares no trained parameters; add the decorator @ja.declare(train=['p'])"
        )
    if "points" not in made.arguments:
        raise InputError(f"{kind}: has no setting 'points' for the number of rows; add `points: int = 64`")
    return made


class _TheoryFlow(FlowPhase, frozen=True, kw_only=True):
    labels: ClassVar[Mapping[str, str]] = {
        **FlowPhase.labels,
        "arc_length": "length of the path",
        "log_v_norm": r"$\log\,\Vert v\Vert$",
        "drift": r"drift of $E^\top E - pp^\top - vv^\top$",
        "mismatch": "error of $dp/dt$ if $v$ is determined by $p$",
    }
    scales: ClassVar[Mapping[str, Scale]] = {"arc_length": NOT_NEGATIVE, "drift": ERROR, "mismatch": ERROR}
    refines: ClassVar[tuple[str, ...]] = ("p_norm", "log_gradient_norm")


class _LinearFlow(_TheoryFlow, frozen=True, kw_only=True):
    """Flow on one parameter, for models whose scores are linear in it.

    Attributes:
        linear_in: name of the trained parameter; the scores must be linear in it. Defaults to p.
    """

    not_settings: ClassVar[frozenset[str]] = frozenset({"gradient_rtol", "width"})
    rotation_invariant: ClassVar[bool] = True

    linear_in: str | None = None

    @property
    def train(self) -> tuple[str]:
        return (self.linear_in or "p",)

    @property
    def ends(self) -> Ends:
        settings = self._settings()
        return ends_of(**{name: x for name, x in settings.items() if name not in ("max_steps", "points")})

    def check(self, *context: StudyParts) -> None:
        _ = self.ends
        for setting in context:
            self._require(setting.model, setting.loss)

    def _require(self, model: Model[Any], loss: Loss) -> None:
        if (found := linear_in(model)) != self.train[0]:
            actual = f"those of this model are linear in {found!r}" if found else "this model has none"
            remedy = f"set linear_in = {found!r} in the phase" if found else "use kind = 'descent'"
            raise InputError(
                f"this phase requires scores that are linear in {self.train[0]!r} (linear_in), but "
                f"{actual}; {remedy}"
            )
        _require_logistic(loss)

    def follow(self, task: Task, params: Params, key: Array) -> FlowPath:
        self._require(task.model, task.loss)
        scores = _scores(task, params)
        start = get(params, self.train[0]).reshape(-1)
        if min(scores.keys.shape) > stiff.MANY_DIMS:
            return begin_path(scores, start, self.ends, self.points)
        path: Path = self._call(scores, start)
        return path

    def advance(self, task: Task, state: FlowState, steps: int | Array) -> FlowState:
        if isinstance(state.path, Path):
            return super().advance(task, state, steps)
        scores, row = _scores(task, state.params), state.step + steps
        path = continue_path(scores, state.path, self.ends, self._settings()["max_steps"], row)
        return self.at(state.params, path, row)


class _OneLayerFlow(_TheoryFlow, frozen=True, kw_only=True):
    """Flow on multiple parameters of a one-layer model."""

    not_settings: ClassVar[frozenset[str]] = frozenset({"width"})
    rotation_invariant: ClassVar[bool] = True

    def check(self, *context: StudyParts) -> None:
        for setting in context:
            require_one_layer(setting.model, setting.loss, setting.data.num_classes)

    def follow(self, task: Task, params: Params, key: Array) -> FlowPath:
        require_one_layer(task.model, task.loss, task.data.train.num_classes)
        path: FlowPath = self._call(params, task.data.train)
        return path


ExactFlow = settings_class(exact_flow, _LinearFlow, "ExactFlow")
JointFlow = settings_class(joint_flow, _OneLayerFlow, "JointFlow", train=("p", "v"))
FullFlow = settings_class(full_flow, _OneLayerFlow, "FullFlow", train=("E", "p", "v"))


def _scores(task: Task, params: Params) -> Scores:
    found = cast(HasLinearScores, task.model).scores(params, task.data.train)
    return Scores(found.keys, found.corpus, found.values)


def require_one_layer(model: Model[Any], loss: Loss, classes: int | None) -> None:
    """Raise InputError unless the model is one-layer, the loss is logistic, and there are two classes."""
    if not is_one_layer(model):
        raise InputError("this phase requires model.kind = 'one_layer'; use kind = 'descent'")
    _require_logistic(loss)
    if classes != 2:
        raise InputError(f"this phase requires two classes, got {classes}; use kind = 'descent'")


def _require_logistic(loss: Loss) -> None:
    if not is_logistic(loss):
        raise InputError(
            "this phase requires the logistic loss without label smoothing; use kind = 'descent'"
        )
