"""Optimisers and step-size schedules, chosen by name."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import Array

from jaxattn.core.errors import InputError, nearest
from jaxattn.core.settings import (
    Named,
)

Factory = Callable[..., optax.GradientTransformation]
ScheduleName = Literal["constant", "cosine", "linear", "exponential", "inverse_sqrt"]
# The steps of these optimisers are linear combinations of gradients, with coefficients that depend only on
# inner products.
ROTATION_INVARIANT = ("sgd", "normalized", "polyak", "lbfgs")


def schedule(name: ScheduleName, step_size: float | Array, steps: int, warmup: int = 0) -> optax.Schedule:
    """Build the step-size schedule for a phase, as a function of the step number.

    Args:
        name: constant; cosine or linear to 0 at `steps`; exponential to 1% of `step_size` at `steps`;
            inverse_sqrt, η/√(1 + k) at step k after the warm-up.
        step_size: η, the largest value.
        steps: length of the phase.
        warmup: number of steps with a linear increase from 0 before the schedule begins.

    Example:
        >>> step_size = ja.dynamics.schedule("cosine", 1.0, steps=100)
        >>> [round(float(step_size(step)), 3) for step in (0, 50, 100)]
        [1.0, 0.5, 0.0]
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

            def made(count: Array | int) -> Array:
                return 1 / jnp.power(1 + count, 0.5)

    if warmup > 0:
        made = optax.join_schedules([optax.linear_schedule(0.0, 1.0, warmup), made], [warmup])
    # Optax compares its arguments with numbers, which is impossible if the step size is traced. It would
    # compute in float32 if the count were an integer.
    return lambda count: step_size * made(jnp.asarray(count, float))


def optimizer(
    name: str | Factory, step_size: optax.ScalarOrSchedule | Array, **options: object
) -> optax.GradientTransformation:
    """Build an optax optimiser from its name.

    Args:
        name: sgd, θ - η g; normalized, θ - η g/‖g‖ (norm over all trained parameters; θ where g = 0); polyak,
            θ - min(η, (L - loss_floor)/‖g‖²) g; any optax optimiser that takes a learning rate and one
            gradient per step (adam, nadam, adamw, lion, lbfgs, ...); or a function (step_size, **options)
            that returns an optax transformation.
        step_size: η, a number or a schedule. For polyak, it must be a number.
        options: further arguments of the optimiser by their optax names, such as momentum and nesterov for
            sgd and normalized, loss_floor for polyak, or weight_decay for adamw. `epsilon` is optax's eps. It
            noticeably affects adam on large corpora, where the gradient of E can be about 1e-6 per entry.

    Raises:
        InputError: see `check_options`; or the function does not return an optax transformation.

    Example:
        >>> sgd = ja.dynamics.optimizer("sgd", 0.5)
        >>> updates, _ = sgd.update(jnp.array([2.0]), sgd.init(jnp.zeros(1)))
        >>> updates.tolist()
        [-1.0]
    """
    check_options(name, options)
    factory = _factory(name)
    known = inspect.signature(factory).parameters
    made = factory(step_size, **{_optax_name(key, known): value for key, value in options.items()})
    if not isinstance(made, optax.GradientTransformation):
        raise InputError(f"optimizer: {_name_of(name)} returns {made!r:.60}; return an optax transformation")
    return made


def check_options(name: str | Factory, options: Iterable[str], suggestions: Iterable[str] = ()) -> None:
    """Raise InputError, with the closest valid name, unless the optimiser exists and accepts the options.

    Args:
        name: name of the optimiser, or a function.
        options: names of the options, or a mapping from names to values. In a mapping, an option with a
            numeric default must have a numeric value.
        suggestions: further names to suggest for a misspelt option.
    """
    factory = _factory(name)
    # A grid calls this function in every cell for the same few optimisers, so cache their signatures.
    signature = _signature if inspect.isfunction(factory) else inspect.signature
    called = _name_of(name)
    first, *others = signature(factory).parameters.values()
    known = {x.name: x for x in others if x.kind is not x.VAR_KEYWORD}
    allowed = {*known, *(("epsilon",) if "eps" in known else ())}
    takes_any = len(known) < len(others)
    for option in options:
        if option == first.name:
            raise InputError(
                f"{option}: not accepted as an option of {called}; set the phase's step_size instead"
            )
        if option not in allowed and not takes_any:
            raise InputError(
                f"{option}: not an option of {called}{nearest(option, sorted({*allowed, *suggestions}))}"
            )
        value = options[option] if isinstance(options, Mapping) else None
        like = known.get(_optax_name(option, known))
        if (
            isinstance(value, str | list | dict)
            and like is not None
            and isinstance(like.default, float | int)
        ):
            raise InputError(f"{option}: expected a number for {called}, got {value!r:.60}")
    given = {_optax_name(option, known) for option in options}
    missing = [x.name for x in known.values() if x.default is x.empty and x.name not in given]
    if missing:
        raise InputError(f"{missing[0]}: {called} requires this option; add it")


def _name_of(name: str | Factory) -> str:
    return name if isinstance(name, str) else getattr(name, "__name__", repr(name))


_signature = functools.cache(inspect.signature)


def _factory(name: str | Factory) -> Factory:
    return _built_in_factory(name) if isinstance(name, str) else name


@functools.cache
def _built_in_factory(name: str) -> Factory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if reason := _UNSUPPORTED.get(name):
        raise InputError(f"optimizer: '{name}' is not supported, because {reason}; choose another optimiser")
    # Some optimisers, such as nadam, are partial functions.
    found = {
        key: value
        for key, value in vars(optax).items()
        if (inspect.isfunction(value) or isinstance(value, partial))
        and not key.startswith(("_", "scale_by_"))
        and "learning_rate" in inspect.signature(value).parameters
        and key not in _UNSUPPORTED
    }
    if name in found:
        return found[name]
    if hasattr(optax.contrib, name) and not name.startswith(("_", "scale_by_")):
        raise InputError(
            f"optimizer: '{name}' is in optax.contrib, whose optimisers have no names here; use a function "
            f"of the step size that returns optax.contrib.{name}(step_size)"
        )
    raise InputError(f"optimizer: unknown optimiser '{name}'{nearest(name, sorted({*_BUILT_IN, *found}))}")


def takes_schedule(name: Any) -> bool:
    """Return False for an optimiser, given by name, whose step size must be a number."""
    if not isinstance(name, str):
        return True
    first, *_ = inspect.signature(_factory(name)).parameters.values()
    return any(get_origin(x) is Callable for x in get_args(first.annotation))


def _optax_name(option: str, known: Mapping[str, Any]) -> str:
    return "eps" if option == "epsilon" and "eps" in known and "epsilon" not in known else option


def _sgd(
    step_size: optax.ScalarOrSchedule, *, momentum: float | Array = 0.0, nesterov: bool = False
) -> optax.GradientTransformation:
    # Omit the momentum buffer if the momentum is 0. If the momentum is traced, keep the buffer, which does
    # not change the result.
    decay = None if isinstance(momentum, float) and momentum == 0 else momentum
    return optax.sgd(step_size, momentum=decay, nesterov=nesterov)


def _normalized(
    step_size: optax.ScalarOrSchedule, *, momentum: float | Array = 0.0, nesterov: bool = False
) -> optax.GradientTransformation:
    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # A gradient of exactly zero has no direction, so the parameters do not change.
        moves = jnp.stack([(g != 0).any() for g in jax.tree.leaves(gradients)]).any()
        norm = jnp.where(moves, optax.tree.norm(gradients), 1)
        return jax.tree.map(lambda g: g / norm, gradients), state

    scaled = _sgd(step_size, momentum=momentum, nesterov=nesterov)
    return optax.chain(optax.GradientTransformation(lambda _: optax.EmptyState(), update), scaled)


def _polyak(step_size: float | Array, *, loss_floor: float | Array = 0.0) -> optax.GradientTransformation:
    return optax.polyak_sgd(step_size, f_min=loss_floor)


# Optimisers that a step with one gradient and one loss cannot run, or whose result is not the parameters.
_NOISE = "it adds noise, which requires a PRNG key for each seed"
_AVERAGED = "its result is an average that differs from the parameters"
_UNSUPPORTED = {
    "sam": "it needs the gradient at a second point in every step",
    "lookahead": "it needs a second, slow copy of the parameters",
    "sophia": "it needs random estimates of the Hessian",
    "noisy_sgd": _NOISE,
    "dpsgd": _NOISE,
    "schedule_free": _AVERAGED,
    "schedule_free_sgd": _AVERAGED,
    "schedule_free_adamw": _AVERAGED,
}
_BUILT_IN: dict[Any, Factory] = {"sgd": _sgd, "normalized": _normalized, "polyak": _polyak}


def target(name: Any) -> Any:
    """Return the optimiser that a `Named` object refers to, or the argument itself."""
    return name.target if isinstance(name, Named) else name
