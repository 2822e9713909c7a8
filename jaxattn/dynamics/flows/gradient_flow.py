"""Gradient flow dθ/dt = -∂L/∂θ for any model and loss, integrated by diffrax.

L is the mean loss on the training data or on new examples, or a custom objective.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import msgspec
from jax import Array
from jax.flatten_util import ravel_pytree

from jaxattn.base import Goal, Params, Task
from jaxattn.base.from_function import declare, settings_class
from jaxattn.core import backend
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import floats_to_float64, gradients_by_name, numpy_if_concrete, replace, selected
from jaxattn.core.scales import NOT_NEGATIVE, Scale
from jaxattn.core.settings import ImportPath, ImportPaths, Names, Positive, PositiveInt, Static
from jaxattn.core.spec import StudyParts
from jaxattn.dynamics.flows.arc_length import Stop
from jaxattn.dynamics.flows.flow_phase import FlowPhase, RecordedPath
from jaxattn.dynamics.objective import check_fresh, check_objective, value_of
from jaxattn.models.activations import check_clamps, with_clamps
from jaxattn.models.gradients import loss as mean_loss

_Tolerance = Static[Annotated[float, msgspec.Meta(gt=0, lt=1)]]
# (params, k) -> (), the function that the flow decreases in the interval after row k of the path.
_Value = Callable[[Params, Array], Array]


@checked
@declare(
    failure="gradient flow met NaN or took max_steps steps; raise max_steps, try solver = 'implicit', or use "
    "exact_flow where scores are linear in the trained parameter",
    failing=(Stop.FAILED, Stop.STEP_BUDGET),
    refines=("log_gradient_norm",),
    not_settings=frozenset({"key"}),
    goal=property(lambda settings: Goal("time", "t", settings.until_time), doc="Time t at which to stop."),
)
def gradient_flow(
    params: Params,
    task: Task,
    *,
    train: Names,
    until_time: Static[Positive],
    until_norm: Static[Positive] | None = None,
    until_log_loss: Static[float] | None = None,
    fresh: PositiveInt | None = None,
    objective: ImportPath = None,
    clamps: ImportPaths = {},  # noqa: B006  msgspec copies it, and nothing changes it
    solver: Literal["explicit", "implicit"] = "explicit",
    rtol: _Tolerance = 1e-8,
    atol: _Tolerance = 1e-10,
    max_steps: PositiveInt = 100_000,
    points: Annotated[int, msgspec.Meta(ge=2)] = 64,
    key: Array | None = None,
) -> RecordedPath:
    """Integrate gradient flow on the parameters in `train`, for any model and loss.

        dθ/dt = -∂L/∂θ,   integrated in log(1 + t)

    L is the mean loss on all training data, in float64. Row k is at time
    t_k = (1 + until_time)^(k/(points - 1)) - 1.

    With `fresh`, L is the mean loss on new examples, which are sampled again after each row. The loss at row
    k is computed on the next examples, which the flow has not used yet. Parameters that the examples of a
    single interval do not determine follow the average over many intervals, and all other parameters fit the
    examples of the interval. `fresh` should therefore exceed the number of trained entries. More `points`
    make the intervals shorter.

    Args:
        params: the initial parameters.
        task: the model, the loss and the data for one seed.
        train: names or patterns of the trained parameters.
        until_time: time t at which to stop.
        until_norm: joint norm of all trained parameters at which to stop.
        until_log_loss: log L at which to stop.
        fresh: number of new examples to sample after each row, in place of the training data.
        objective: function (params, task) that returns L as a scalar, or its import path. Examples are an
            expected loss in closed form, and a quadrature.
        clamps: functions (value, data) -> value, or their import paths, by the name of the activation of the
            model that each one replaces during the phase; see `ja.models.activation`.
        solver: "explicit" (Tsit5), or "implicit" (Kvaerno5) for stiff problems, for example near a
            minimum of the loss. An implicit step solves a linear system with one unknown per trained
            parameter entry.
        rtol: relative error tolerance per step.
        atol: absolute error tolerance per step.
        max_steps: maximum number of steps, accepted or rejected.
        points: number of rows in the path, including the start.
        key: () PRNG key for sampling new examples; required with `fresh`.

    Returns:
        The path, with the metrics time, log_time, log_loss, log_gradient_norm, trained_norm and solver_steps.

    Raises:
        InputError: `until_time` is infinite, the task cannot sample new examples, or there is no key.

    Source:
        Tsitouras 2011 and Kværnø 2004, as implemented by diffrax.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> task = ja.dynamics.Task(data=corpus)
        >>> path = ja.dynamics.gradient_flow(params, task, train=["p"], until_time=1.0, points=3)
        >>> path.params['p'].shape
        (3, 4)
    """
    if not math.isfinite(until_time):
        raise InputError(f"until_time: must be finite, got {until_time}")
    check_objective(objective, fresh=fresh)
    ends = until_time, until_norm, until_log_loss
    with backend.float64():
        value = _value(with_clamps(task, clamps), objective, fresh, key)
        settings = train, ends, solver, rtol, atol, max_steps, points, fresh
        # One program, not one for each operation before and after the call of diffrax.
        path = jax.jit(lambda params: _integrate(value, params, *settings))(params)
    return numpy_if_concrete(path)


def _integrate(
    value: "_Value",
    params: Params,
    train: Names,
    ends: tuple[float, float | None, float | None],
    solver: str,
    rtol: float,
    atol: float,
    max_steps: int,
    points: int,
    fresh: int | None,
) -> RecordedPath:
    import diffrax  # slow to import
    import optimistix

    from jaxattn.dynamics.flows.implicit import kvaerno5

    until_time, until_norm, until_log_loss = ends
    params = floats_to_float64(params)
    start, unravel = ravel_pytree(selected(params, train))
    end = math.log1p(until_time)
    marks = jnp.linspace(0, end, points)

    def evaluate(theta: Array, row: Array) -> tuple[Array, Array]:
        moved = replace(params, **unravel(theta))
        found, gradients = gradients_by_name(lambda params: value(params, row), moved, train)
        return found, ravel_pytree(gradients)[0]

    # Custom code raises its errors here: diffrax would wrap them in its own.
    jax.eval_shape(evaluate, start, jnp.zeros((), jnp.int32))

    distances = _distances(evaluate, until_norm, until_log_loss)

    def row_before(t: Any) -> Array:
        return jnp.clip(jnp.searchsorted(marks, t, side="right") - 1, 0, points - 2)

    def least(t: Array, y: Array, args: Any, **others: Any) -> Array:
        return jnp.minimum(*distances(y, row_before(t)))

    moves = jnp.minimum(*distances(start, jnp.zeros((), jnp.int32))) > 0
    steps: Any = diffrax.PIDController(rtol=rtol, atol=atol)
    if fresh:
        steps = diffrax.ClipStepSizeController(steps, jump_ts=marks[1:-1])
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, theta, args: -jnp.exp(t) * moves * evaluate(theta, row_before(t))[1]),
        diffrax.Tsit5() if solver == "explicit" else kvaerno5(),
        0.0,
        end,
        None,
        start,
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=marks), diffrax.SubSaveAt(t1=True)]),
        stepsize_controller=steps,
        event=diffrax.Event(least, optimistix.Bisection(1e-12, 1e-12)),  # type: ignore[call-arg]
        max_steps=max_steps,
        throw=False,
    )
    return _record_path(solution, marks, evaluate, unravel, distances, moves)


def _distances(
    evaluate: Callable[[Array, Array], tuple[Array, Array]],
    until_norm: float | None,
    until_log_loss: float | None,
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Return a function for the distances of the norm and the log loss from their targets.

    The path ends when one of them is 0.
    """

    def distances(theta: Array, row: Array) -> tuple[Array, Array]:
        norm = math.inf if until_norm is None else until_norm - jnp.linalg.norm(theta)
        loss = math.inf if until_log_loss is None else jnp.log(evaluate(theta, row)[0]) - until_log_loss
        return jnp.asarray(norm), jnp.asarray(loss)

    return distances


def _value(task: Task, objective: Any, fresh: int | None, key: Array | None) -> _Value:
    """Return the function that the flow decreases, for the settings `objective` and `fresh`."""
    if objective is not None:
        given = value_of(objective, task)
        return lambda params, row: given(params)
    train = floats_to_float64(task.data.train)
    if fresh and task.fresh is None:
        raise InputError("fresh: the task cannot sample new examples; pass fresh=... to ja.dynamics.Task")
    if fresh and key is None:
        raise InputError("key: sampling new examples requires one; pass a key such as jax.random.key(0)")

    def value(params: Params, row: Array) -> Array:
        data = train
        if fresh and task.fresh is not None and key is not None:
            data = floats_to_float64(task.fresh(jax.random.fold_in(key, row), examples=fresh))
        return mean_loss(params, data, task.model.outputs, per_sequence=task.loss)

    return value


def _record_path(
    solution: Any, marks: Array, evaluate: Any, unravel: Any, distances: Any, moves: Array
) -> RecordedPath:
    """Return the rows of the path for a diffrax solution. Rows after the path's end repeat its last state.

    `moves` is False if the norm or the loss has already reached its target at the start.
    """
    import diffrax

    (times, rows), (last_time, last_row) = zip(solution.ts, solution.ys, strict=True)
    known = jnp.isfinite(times)
    rows = jnp.where(known[:, None], rows, last_row)
    log_times = jnp.where(moves, jnp.where(known, times, last_time), 0)
    last = jnp.where(moves, jnp.minimum(known.sum(), len(marks) - 1), 0)
    numbers = jnp.minimum(jnp.arange(len(marks)), last)
    losses, gradients = jax.lax.map(lambda given: evaluate(*given), (rows, numbers))
    by_event = diffrax.is_event(solution.result) | ~moves
    # The event is found with the examples of the interval in which it happens.
    norm, loss = distances(rows[-1], jnp.maximum(last - 1, 0))
    spent = (solution.result == diffrax.RESULTS.max_steps_reached) & jnp.isfinite(losses[-1])
    status = jnp.where(spent & jnp.isfinite(gradients[-1]).all(), Stop.STEP_BUDGET, Stop.FAILED)
    status = jnp.where(diffrax.is_successful(solution.result), Stop.TIME, status)
    status = jnp.where(by_event, jnp.where(norm <= loss, Stop.NORM, Stop.LOSS), status)
    time = jnp.expm1(log_times)
    return RecordedPath(
        params=jax.vmap(unravel)(rows),
        status=status,
        metrics={
            "time": time,
            "log_time": jnp.log(time),
            "log_loss": jnp.log(losses),
            "log_gradient_norm": jnp.log(jnp.linalg.norm(gradients, axis=1)),
            "trained_norm": jnp.linalg.norm(rows, axis=1),
            "solver_steps": jnp.full(len(marks), solution.stats["num_steps"], float),
        },
        last=last,
    )


class _GradientFlow(FlowPhase, frozen=True, kw_only=True):
    """Phase that runs `gradient_flow`, which takes a key if it samples new examples."""

    scales: ClassVar[Mapping[str, Scale]] = {"trained_norm": NOT_NEGATIVE, "solver_steps": NOT_NEGATIVE}

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """True if the flow samples new examples."""
        return self._settings()["fresh"] is not None

    @property
    def rotation_invariant(self) -> bool:
        """True unless the objective or a clamp is custom."""
        settings = self._settings()
        return settings["objective"] is None and not settings["clamps"]

    def check(self, *context: StudyParts) -> None:
        """Raise InputError if `objective` is not a function, or if the data cannot be sampled again."""
        settings = self._settings()
        check_objective(settings["objective"], fresh=settings["fresh"])
        check_clamps(settings["clamps"])
        for setting in context if settings["fresh"] else ():
            check_fresh(setting.data)


GradientFlow = settings_class(gradient_flow, _GradientFlow, "GradientFlow")
