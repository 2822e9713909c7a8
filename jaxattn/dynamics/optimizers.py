"""The optimisers of the field by name, as optax transformations."""

from typing import Literal

import optax
from jax import Array

Name = Literal["sgd", "normalized", "polyak", "adam"]
ScheduleName = Literal["constant", "cosine", "linear", "exponential", "inverse_sqrt"]


def schedule(name: ScheduleName, step_size: float | Array, steps: int, warmup: int = 0) -> optax.Schedule:
    """Make a step-size schedule over a phase.

    Args:
        name: constant; cosine or linear to 0 at `steps`; exponential to 1 % of `step_size` at `steps`;
            inverse_sqrt, η/√(1 + k).
        step_size: η, the largest value.
        steps: length of the phase.
        warmup: steps of linear increase from 0 before the schedule begins.

    Returns:
        A function of the step.
    """
    length = max(steps - warmup, 1)
    made: optax.Schedule
    match name:
        case "constant":
            made = optax.constant_schedule(1.0)
        case "cosine":
            made = optax.cosine_decay_schedule(1.0, length)
        case "linear":
            made = optax.linear_schedule(1.0, 0.0, length)
        case "exponential":
            made = optax.exponential_decay(1.0, length, 0.01)
        case "inverse_sqrt":

            def made(count):
                return 1 / (1 + count) ** 0.5

    if warmup > 0:
        made = optax.join_schedules([optax.linear_schedule(0.0, 1.0, warmup), made], [warmup])
    # Optax compares its arguments with numbers, which a traced step size does not allow.
    return lambda count: step_size * made(count)


def optimizer(
    name: Name,
    step_size: optax.ScalarOrSchedule | Array,
    *,
    momentum: float | Array = 0.0,
    loss_floor: float | Array = 0.0,
    epsilon: float | Array = 1e-8,
) -> optax.GradientTransformation:
    """Make an optimiser.

    Args:
        name: sgd, θ - η g; normalized, θ - η g/‖g‖ (over all trained parameters); polyak,
            θ - min(η, (L - floor)/‖g‖²) g; adam.
        step_size: η, a number or a schedule.
        momentum: heavy-ball factor of sgd and normalized.
        loss_floor: the loss that a Polyak step aims for.
        epsilon: what adam adds to the root of the second moment; the gradient of E is of order 1e-6 per
            entry on a corpus of thousands of reviews, so this is not only a guard against division by 0.

    Returns:
        The optax transformation.
    """
    decay = None if isinstance(momentum, float) and momentum == 0 else momentum
    match name:
        case "sgd":
            return optax.sgd(step_size, momentum=decay)
        case "normalized":
            return optax.chain(optax.normalize_by_update_norm(eps=0.0), optax.sgd(step_size, momentum=decay))
        case "polyak":
            return optax.polyak_sgd(step_size, f_min=loss_floor)
        case "adam":
            return optax.adam(step_size, eps=epsilon)
