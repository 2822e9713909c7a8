"""Gradient flow dθ/dt = -∂L/∂θ for any model and loss, integrated by diffrax."""

import math
from typing import Annotated, Any, Literal

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
from jaxattn.core.pytrees import floats_to_float64, gradients_by_name, numpy_if_concrete, replaced, selected
from jaxattn.core.settings import Names, Positive, PositiveInt, Static
from jaxattn.dynamics.flows.arc_length import Stop
from jaxattn.dynamics.flows.flow_phase import FlowPhase, RecordedPath
from jaxattn.losses import mean

_Tolerance = Static[Annotated[float, msgspec.Meta(gt=0, lt=1)]]


@checked
@declare(
    failure="gradient flow met NaN or took max_steps steps; raise max_steps, try solver = 'implicit', or use "
    "exact_flow where scores are linear in the trained parameter",
    failing=(Stop.FAILED, Stop.STEP_BUDGET),
    rotation_invariant=True,
    refines=("log_gradient_norm",),
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
    solver: Literal["explicit", "implicit"] = "explicit",
    rtol: _Tolerance = 1e-8,
    atol: _Tolerance = 1e-10,
    max_steps: PositiveInt = 100_000,
    points: Annotated[int, msgspec.Meta(ge=2)] = 64,
) -> RecordedPath:
    """Integrate gradient flow on the parameters in `train`, for any model and loss.

        dθ/dt = -∂L/∂θ,   integrated in log(1 + t)

    The full training data are used, in float64. Row k is at time t_k = (1 + until_time)^(k/(points - 1)) - 1.

    Args:
        params: the initial parameters.
        task: the model, the loss and the data for one seed.
        train: names or patterns of the trained parameters.
        until_time: time t at which to stop.
        until_norm: joint norm of all trained parameters at which to stop.
        until_log_loss: log L at which to stop.
        solver: "explicit" (Tsit5), or "implicit" (Kvaerno5) for stiff problems, for example near a
            minimum of the loss. An implicit step solves a linear system with one unknown per trained
            parameter entry.
        rtol: relative error tolerance per step.
        atol: absolute error tolerance per step.
        max_steps: maximum number of steps, accepted or rejected.
        points: number of rows in the path, including the start.

    Returns:
        The path, with the metrics time, log_time, log_loss, log_gradient_norm, trained_norm and solver_steps.

    Raises:
        InputError: `until_time` is infinite.

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
    ends = until_time, until_norm, until_log_loss
    with backend.float64():
        path = _integrate(params, task, train, ends, solver, rtol, atol, max_steps, points)
    return numpy_if_concrete(path)


def _integrate(
    params: Params,
    task: Task,
    train: Names,
    ends: tuple[float, float | None, float | None],
    solver: str,
    rtol: float,
    atol: float,
    max_steps: int,
    points: int,
) -> RecordedPath:
    import diffrax  # slow to import
    import optimistix

    from jaxattn.dynamics.flows.implicit import kvaerno5

    until_time, until_norm, until_log_loss = ends
    params, data = floats_to_float64(params), floats_to_float64(task.data.train)
    start, unravel = ravel_pytree(selected(params, train))

    def evaluate(theta: Array) -> tuple[Array, Array]:
        def loss(params: Params) -> Array:
            return mean(task.loss, task.model.outputs(params, data), data.targets)

        value, gradients = gradients_by_name(loss, replaced(params, **unravel(theta)), train)
        return value, ravel_pytree(gradients)[0]

    def distances(theta: Array) -> tuple[Array, Array]:
        """Return the distances of the norm and the loss from their targets; the path ends if one is 0."""
        norm = math.inf if until_norm is None else until_norm - jnp.linalg.norm(theta)
        loss = math.inf if until_log_loss is None else jnp.log(evaluate(theta)[0]) - until_log_loss
        return jnp.asarray(norm), jnp.asarray(loss)

    def least(t: Array, y: Array, args: Any, **others: Any) -> Array:
        return jnp.minimum(*distances(y))

    moves = jnp.minimum(*distances(start)) > 0
    end = math.log1p(until_time)
    marks = jnp.linspace(0, end, points)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, theta, args: -jnp.exp(t) * moves * evaluate(theta)[1]),
        diffrax.Tsit5() if solver == "explicit" else kvaerno5(),
        0.0,
        end,
        None,
        start,
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=marks), diffrax.SubSaveAt(t1=True)]),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        event=diffrax.Event(least, optimistix.Bisection(1e-12, 1e-12)),  # type: ignore[call-arg]
        max_steps=max_steps,
        throw=False,
    )
    return _record_path(solution, marks, evaluate, unravel, distances, moves)


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
    losses, gradients = jax.lax.map(evaluate, rows)
    by_event = diffrax.is_event(solution.result) | ~moves
    norm, loss = distances(rows[-1])
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
        last=jnp.where(moves, jnp.minimum(known.sum(), len(marks) - 1), 0),
    )


GradientFlow = settings_class(gradient_flow, FlowPhase, "GradientFlow")
