"""Descent phases, with optimisers and schedules chosen by name."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, get_args, get_origin

import jax
import jax.numpy as jnp
import msgspec
import optax
import optax.contrib
from jax import Array

from jaxattn.base import Dataset, Phase, State, Task
from jaxattn.base.model import Params
from jaxattn.core.errors import InputError, nearest
from jaxattn.core.settings import (
    Count,
    ImportPath,
    ImportPaths,
    Named,
    Names,
    NotNegative,
    Positive,
    PositiveInt,
)
from jaxattn.core.spec import StudyParts
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.descents import early_stop
from jaxattn.dynamics.descents.descent import gradient_step, initial_state, minibatch, objective_step
from jaxattn.dynamics.objective import check_fresh, check_objective, value_of
from jaxattn.models.activations import check_clamps, with_clamps
from jaxattn.models.gradients import loss

Factory = Callable[..., optax.GradientTransformation]
ScheduleName = Literal["constant", "cosine", "linear", "exponential", "inverse_sqrt"]
# The steps of these optimisers are linear combinations of gradients, with coefficients that depend only on
# inner products.
ROTATION_INVARIANT = ("sgd", "normalized", "polyak", "lbfgs")


class Descent(Phase, frozen=True, kw_only=True):
    """Descent with an optax optimiser on the parameters in `train`, which minimises the mean loss.

    Each step uses all examples, a minibatch of `batch_size` examples, or `fresh` new examples. It minimises
    their mean loss, or `objective`.

    Attributes:
        optimizer: name of a built-in or optax optimiser, or the import path of a function (step_size, *,
            options) that returns an optax transformation.
        options: additional arguments of the optimiser. In a sweep file, they are keys of the phase.
        step_size: η, the learning rate; if there is a schedule, its largest value.
        schedule: learning-rate schedule: constant, cosine, linear, exponential or inverse_sqrt.
        warmup: number of initial steps over which the learning rate increases linearly from 0.
        batch_size: minibatch size; examples are reshuffled in every epoch. Defaults to the full batch.
        fresh: number of new examples sampled for each step, as in online learning, in place of the training
            data.
        objective: function (params, task) that returns the scalar to minimise in place of the mean loss, or
            its import path. Examples are an expected loss in closed form, and a quadrature.
        clamps: functions (value, data) -> value, or their import paths, by the name of the activation of the
            model that each one replaces during the phase; see `ja.models.activation`.
        patience: number of consecutive checks without a new best validation loss after which the phase stops
            with the best parameters; 0 disables early stopping.
        check_every: number of steps between checks of the validation loss.
        seeds_per_core: number of seeds that a CPU core trains at a time; by default, as many as fit in its
            cache.
    """

    options_field: ClassVar[str] = "options"

    train: Names
    optimizer: ImportPath
    step_size: Positive
    steps: PositiveInt
    schedule: ScheduleName = "constant"
    warmup: Count = 0
    batch_size: PositiveInt | None = None
    fresh: PositiveInt | None = None
    objective: ImportPath = None
    clamps: ImportPaths = {}  # noqa: RUF012
    patience: Count = 0
    check_every: PositiveInt = 10
    seeds_per_core: PositiveInt | None = None
    options: dict[str, Any] = {}  # noqa: RUF012  msgspec copies it

    @property
    def end_key(self) -> str:
        """Setting (schedule or patience) that makes earlier steps depend on the phase's end, or ""."""
        if self.schedule in ("cosine", "linear", "exponential"):
            return "schedule"
        return "patience" if self.patience else ""

    @property
    def is_random(self) -> bool:
        """True if the phase samples minibatches or new examples."""
        return bool(self.batch_size or self.fresh)

    @property
    def rotation_invariant(self) -> bool:
        """True if steps depend on gradients of the loss only through inner products, unlike those of Adam."""
        built_in = isinstance(self.optimizer, str) and self.optimizer in ROTATION_INVARIANT
        return built_in and self.objective is None and not self.clamps

    def check(self, *context: StudyParts) -> None:
        """Raise InputError for an unknown optimiser or option, or for `patience` without validation data."""
        if not isinstance(made := _target(self.optimizer), str) and not callable(made):
            is_fixed = isinstance(made, optax.GradientTransformation)
            got = "an optax transformation, whose step size is fixed" if is_fixed else f"{made!r:.60}"
            raise InputError(
                "optimizer: expected a name or a function of the step size, such as `def custom(step_size): "
                f"return optax.adam(step_size)`, got {got}"
            )
        suggestions = set(self.__struct_fields__) - {self.options_field}
        check_options(_target(self.optimizer), self.options, suggestions)
        if (self.schedule != "constant" or self.warmup) and not _takes_schedule(_target(self.optimizer)):
            key = "warmup" if self.schedule == "constant" else "schedule"
            raise InputError(f"{key}: {self.optimizer} requires a constant step size; remove this setting")
        if self.fresh and self.batch_size:
            raise InputError("fresh: cannot be combined with batch_size; remove one of them")
        check_objective(self.objective, fresh=self.fresh, batch_size=self.batch_size)
        check_clamps(self.clamps)
        for setting in context:
            self._check_batch(msgspec.structs.asdict(setting.data).get("sequences"))
            if self.patience and not setting.data.held_out:
                key = "validation" if setting.data.shared else "validation_sequences"
                raise InputError(f"patience: there is no validation corpus; set data.{key}")
            if self.fresh:
                check_fresh(setting.data)

    def _check_batch(self, examples: Any) -> None:
        if self.batch_size and isinstance(examples, int) and self.batch_size > examples:
            raise InputError(
                f"batch_size: {self.batch_size} exceeds the {examples} examples; "
                "use a smaller value, or omit it "
                "for the full batch"
            )

    def init(self, task: Task, params: Params, key: Array) -> State:
        """Return the initial state. The key is used for sampling batches."""
        self._check_batch(task.data.train.num_examples)
        if self.patience and task.data.validation is None:
            raise InputError("patience: the task has no validation data; add a validation split to its data")
        if self.fresh and task.fresh is None:
            raise InputError("fresh: the task cannot sample new examples; use batch_size instead")
        state = initial_state(self._optimizer(), params, self.train, key if self.is_random else None)
        return early_stop.begin(state) if self.patience else state

    def step(self, task: Task, state: State) -> State:
        """Return the state after one step."""
        task = with_clamps(task, self.clamps)
        return early_stop.step(self._stopping(task), state) if self.patience else self._move(task, state)

    def advance(self, task: Task, state: State, steps: int | Array) -> State:
        """Return the state after the given number of steps, which may be traced."""
        if self.patience:
            return early_stop.advance(self._stopping(with_clamps(task, self.clamps)), state, steps)
        advanced: State = super().advance(task, state, steps)
        return advanced

    def metrics(self, state: State) -> dict[str, Array]:
        """Return the number of gradient evaluations, which excludes the steps after an early stop."""
        return {"evaluations": state.early_stop.evaluations if self.patience else state.step}

    def _move(self, task: Task, state: State) -> State:
        if self.objective is not None:
            value = value_of(self.objective, task)
            return objective_step(self._optimizer(), state, value, train=self.train)
        data, weights = self._batch(task, state)
        given: dict[str, Any] = {"outputs": task.model.outputs, "per_sequence": task.loss}
        return gradient_step(self._optimizer(), state, data, weights, train=self.train, **given)

    def _batch(self, task: Task, state: State) -> tuple[Dataset, Array | None]:
        train = task.data.train
        if self.fresh and task.fresh:
            key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
            return task.fresh(key, examples=self.fresh), None
        if not self.batch_size:
            return train, None
        # Weighting all examples avoids building new bags for a minibatch. A coupled loss takes no weights, so
        # its minibatch is extracted.
        extract = task.model.cuts_batches or task.loss.coupled or not isinstance(train, Corpus)
        return minibatch(state, train, self.batch_size, extract)

    def _stopping(self, task: Task) -> early_stop.Stopping:
        def held_out_loss(params: Any) -> Array:
            return loss(params, task.data.validation, task.model.outputs, per_sequence=task.loss)

        move = partial(self._move, task)
        return early_stop.Stopping(move, held_out_loss, self.steps, self.check_every, self.patience)

    def _optimizer(self) -> optax.GradientTransformation:
        # A schedule adds a step counter to the state, so pass a constant step size as a float where possible.
        step_size: Any = self.step_size
        constant = self.schedule == "constant" and self.warmup == 0 and self.optimizer in ("sgd", "adam")
        if not constant and _takes_schedule(_target(self.optimizer)):
            step_size = schedule(self.schedule, self.step_size, self.steps, self.warmup)
        return optimizer(_target(self.optimizer), step_size, **self.options)


class OneStep(Phase, frozen=True, kw_only=True):
    """One full-batch gradient step of size `step_size` on the parameters in `train`.

    Attributes:
        step_size: η0.
    """

    one_step: ClassVar[bool] = True
    end_key: ClassVar[str] = "kind"
    is_random: ClassVar[bool] = False
    rotation_invariant: ClassVar[bool] = True
    steps: ClassVar[int] = 1

    step_size: NotNegative
    train: Names = ("E",)

    def init(self, task: Task, params: Params, key: Array) -> State:
        """Return the initial state."""
        return initial_state(optimizer("sgd", self.step_size), params, self.train)

    def step(self, task: Task, state: State) -> State:
        """Return the state after the gradient step. A non-finite result is recorded as a failure."""
        given: dict[str, Any] = {"outputs": task.model.outputs, "per_sequence": task.loss}
        sgd = optimizer("sgd", self.step_size)
        return gradient_step(sgd, state, task.data.train, train=self.train, **given)


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
    name: str | Factory, step_size: optax.ScalarOrSchedule | Array, **options: Any
) -> optax.GradientTransformation:
    """Build an optax optimiser from its name.

    Args:
        name: sgd, θ - η g; normalized, θ - η g/‖g‖ (norm over all trained parameters; θ where g = 0); polyak,
            θ - min(η, (L - loss_floor)/‖g‖²) g; any optimiser of the module optax that takes a learning rate
            and one gradient per step (adam, nadam, adamw, lion, lbfgs, ...); or a function
            (step_size, **options) that returns an optax transformation.
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


def _takes_schedule(name: Any) -> bool:
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


def _target(name: Any) -> Any:
    return name.target if isinstance(name, Named) else name
