"""The built-in flows as phases, with settings from the signatures of the flows."""

from typing import Any, ClassVar

from jax import Array

from jaxattn.attention.scores import Scores
from jaxattn.base import Params, Task
from jaxattn.base.functions import settings_class
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import get
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.arc_length import Ends, FlowPath
from jaxattn.dynamics.flows.exact_flow import Path, begin_path, continue_path, ends_of, exact_flow
from jaxattn.dynamics.flows.flow_phase import FlowPhase, FlowState
from jaxattn.dynamics.flows.full_flow import full_flow
from jaxattn.dynamics.flows.joint_flow import joint_flow


class _TheoryFlow(FlowPhase, frozen=True, kw_only=True):
    """Base class of the built-in flows."""

    refines: ClassVar[tuple[str, ...]] = ("p_norm", "log_gradient_norm")
    rotation_invariant: ClassVar[bool] = True


class _LinearFlow(_TheoryFlow, frozen=True, kw_only=True):
    """Flow of one parameter that the scores of the model are linear in.

    Attributes:
        linear_in: name of the trained parameter, in which the scores must be linear; defaults to p.
    """

    not_settings: ClassVar[frozenset[str]] = frozenset({"gradient_rtol", "width"})

    linear_in: str | None = None

    @property
    def train(self) -> tuple[str]:
        """The trained parameter."""
        return (self.linear_in or "p",)

    @property
    def ends(self) -> Ends:
        """The stopping conditions and error tolerances."""
        settings = self._settings()
        return ends_of(**{name: x for name, x in settings.items() if name not in ("max_steps", "points")})

    def check(self, *context: Any) -> None:
        """Raise InputError unless model and loss are those of the theory and a stopping point is finite."""
        _ = self.ends
        require_linear_scores(self.train[0], *context)

    def follow(self, task: Task, params: Params) -> FlowPath:
        """Compute the path, or only its start if steps are expensive."""
        scores = _scores(task, params)
        start = get(params, self.train[0]).reshape(-1)
        if min(scores.keys.shape) > stiff.LARGE:
            return begin_path(scores, start, self.ends, self.points)
        path: Path = self._call(scores, start)
        return path

    def advance(self, task: Task, state: FlowState, steps: int | Array) -> FlowState:
        """Advance by a number of rows."""
        if isinstance(state.path, Path):
            return super().advance(task, state, steps)
        scores, row = _scores(task, state.params), state.step + steps
        path = continue_path(scores, state.path, self.ends, self._settings()["max_steps"], row)
        return self.at(state.params, path, row)


class _OneLayerFlow(_TheoryFlow, frozen=True, kw_only=True):
    """Flow of several parameters of the one-layer model."""

    not_settings: ClassVar[frozenset[str]] = frozenset({"width"})

    def check(self, *context: Any) -> None:
        """Raise InputError unless the model and loss are those of the theory."""
        require_one_layer(*context)

    def follow(self, task: Task, params: Params) -> FlowPath:
        """Compute the path."""
        path: FlowPath = self._call(params, task.data.train)
        return path


ExactFlow = settings_class(exact_flow, _LinearFlow, "ExactFlow")
JointFlow = settings_class(joint_flow, _OneLayerFlow, "JointFlow", train=("p", "v"))
FullFlow = settings_class(full_flow, _OneLayerFlow, "FullFlow", train=("E", "p", "v"))


def _scores(task: Task, params: Params) -> Scores:
    found = task.model.scores(params, task.data.train)
    return Scores(found.keys, found.corpus, found.values)


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
