"""Gradient flow on p, integrated by arc length: the path of dp/dt = -∂L/∂p with another parametrisation.

The flow slows down like e^(-margin ‖p‖), but its path does not depend on the parametrisation:

    dp/ds = -∂L/∂p / ‖∂L/∂p‖,   t(s) = ∫ ds / ‖∂L/∂p‖.

For large ‖p‖ the path is almost straight, so the steps grow like ‖p‖ and the last factor of 100 is cheap.
"""

import math
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores
from jaxattn.base import Params, Task
from jaxattn.base.functions import settings_class
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import get
from jaxattn.core.settings import NotNegative, Positive, PositiveInt, Static
from jaxattn.dynamics.flows import stiff
from jaxattn.dynamics.flows.arc_length import GRADIENT_RTOL, Ends
from jaxattn.dynamics.flows.exact_path import Path, begin_path, continue_path, follow_path, inputs_of
from jaxattn.dynamics.flows.flow_phase import FlowState, TheoryFlow, require_linear_scores
from jaxattn.dynamics.flows.paths import FlowPath
from jaxattn.dynamics.flows.seeds import Tolerance, check_ends, check_settings, over_seeds


def exact_flow(
    scores: Scores,
    p: Float[Array | np.ndarray, "..."],
    *,
    until_norm: Static[Positive] = 1e6,
    until_arc_length: Static[Positive] | None = None,
    until_direction: Static[NotNegative] = 0.0,
    max_steps: PositiveInt = 10_000,
    rtol: Static[Tolerance] = 1e-5,
    gradient_rtol: float = GRADIENT_RTOL,
    points: Annotated[int, msgspec.Meta(ge=3)] = 64,
    width: int | None = None,
) -> Path:
    """Compute the exact path of gradient flow on p up to a stopping condition.

    Keys and values are fixed. The loss is logistic for two classes, and cross-entropy for K > 2:

        L = (1/n) Σ_X ℓ(f(X), y_X),   f(X) = Σ_s q_s γ_s,   q = softmax of a = Φ p over X.

    Everything is computed in float64, whatever the precision of the inputs and of JAX. The sine of the angle
    between p and dp/dt is the change of p/‖p‖ per e-fold of ‖p‖, and approximately the distance of p/‖p‖ to
    its limit.

    Args:
        scores: keys (m, D), values (m,), or (m, K) for K > 2 classes, and bags of n sequences; any of them
            may have a leading axis of B seeds. `theory.scores.one_layer` builds them from E and v.
        p: (D,), or (B, D); the start.
        until_norm: stop at this ‖p‖.
        until_arc_length: stop at this arc length; required if `until_norm` is infinite.
        until_direction: stop when the sine of the angle between p and dp/dt is at most this.
        max_steps: stop after this many steps, accepted or rejected.
        rtol: error tolerance per step, relative to ‖p‖ + 1/max ‖E_s‖.
        gradient_rtol: relative error of ‖∂L/∂p‖ that the error of a step may cause, which keeps `log_time`
            accurate. Pass infinity if only the path is needed; this saves steps on winding paths.
        points: number of recorded points k ≥ 3.
        width: number of seeds integrated at once with vmap; defaults to a value for the backend.

    Returns:
        The path. A seed that fails (NaN, or a step too short for float64) reports it in `status`, keeps its
        last state, and does not affect the other seeds.

    Raises:
        InputError: the scores have no values, shapes do not match, or no stopping condition is finite.

    Source:
        Lemma 4.2 and Theorem 4.3 of arXiv 2505.17282.
    """
    check_settings(rtol, points)
    ends = ends_of(until_norm, until_arc_length, until_direction, rtol, gradient_rtol)
    return over_seeds(follow_path, inputs_of(scores, p), ends, max_steps, points=points, width=width)


def ends_of(
    until_norm: float,
    until_arc_length: float | None,
    until_direction: float,
    rtol: float,
    gradient_rtol: float = GRADIENT_RTOL,
) -> Ends:
    """Return the stopping conditions and error tolerances of `exact_flow`.

    Raises:
        InputError: a number is out of range, or no stopping condition is finite.
    """
    arc_length = math.inf if until_arc_length is None else until_arc_length
    if not (math.isfinite(until_norm) or math.isfinite(arc_length)):
        raise InputError("until_norm and until_arc_length are both infinite; give one of them")
    check_ends(until_norm=until_norm, until_arc_length=arc_length)
    if not gradient_rtol > 0:
        raise InputError(f"gradient_rtol: {gradient_rtol}; give a relative error above 0")
    return Ends(until_norm, arc_length, until_direction, rtol, gradient_rtol)


class _LinearFlow(TheoryFlow, frozen=True, kw_only=True):
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


ExactFlow = settings_class(exact_flow, _LinearFlow, "ExactFlow")


def _scores(task: Task, params: Params) -> Scores:
    found = task.model.scores(params, task.data.train)
    return Scores(found.keys, found.corpus, found.values)
