"""Descents as phases of a sweep file, with their optimisers and schedules by name."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import msgspec
import optax
from jax import Array

from jaxattn.base import Phase, Task
from jaxattn.core.errors import InputError
from jaxattn.core.settings import Count, ImportPath, Named, Names, NotNegative, Positive, PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.descents.descent import Algorithm, descent, early_stop, loop

Factory = Callable[..., optax.GradientTransformation]
ScheduleName = Literal["constant", "cosine", "linear", "exponential", "inverse_sqrt"]
# Their steps are linear combinations of gradients with coefficients that depend on inner products only.
ROTATION_INVARIANT = ("sgd", "normalized", "polyak", "lbfgs")


class Descent(Phase, frozen=True, kw_only=True):
    """Descent with an optax optimiser on the parameters in `train`.

    Each step uses all examples, `batch_size` of them, or `fresh` new ones from the data generator.

    Attributes:
        optimizer: name of a built-in or optax optimiser, or the import path of a function (step_size, *,
            options) that returns an optax transformation.
        options: additional arguments of the optimiser. In a sweep file, they are written next to the other
            keys of the phase.
        step_size: η, the learning rate; the peak value if it follows a schedule.
        schedule: learning-rate schedule: constant, cosine, linear, exponential or inverse_sqrt.
        warmup: number of steps over which the learning rate first increases linearly from 0.
        batch_size: size of the minibatches, which are reshuffled in every epoch; defaults to the full batch.
        fresh: number of new examples for each step, as in online learning, in place of the training data.
        patience: number of consecutive checks without a new best validation loss after which the phase stops
            with the best parameters; 0 disables early stopping.
        check_every: number of steps between checks of the validation loss.
    """

    takes_further: ClassVar[str] = "options"

    train: Names
    optimizer: ImportPath
    step_size: Positive
    steps: PositiveInt
    schedule: ScheduleName = "constant"
    warmup: Count = 0
    batch_size: PositiveInt | None = None
    fresh: PositiveInt | None = None
    patience: Count = 0
    check_every: PositiveInt = 10
    options: dict[str, Any] = {}  # noqa: RUF012  msgspec copies it

    @property
    def end_key(self) -> str:
        """`schedule` or `patience`, if the step size or the last step depends on the number of steps."""
        if self.schedule in ("cosine", "linear", "exponential"):
            return "schedule"
        return "patience" if self.patience else ""

    @property
    def is_random(self) -> bool:
        """True if the phase samples minibatches or new examples."""
        return bool(self.batch_size or self.fresh)

    @property
    def rotation_invariant(self) -> bool:
        """True if the optimiser depends on gradients through inner products only, unlike Adam."""
        return isinstance(self.optimizer, str) and self.optimizer in ROTATION_INVARIANT

    def check(self, *context: Any) -> None:
        """Raise InputError for an unknown optimiser or option, or patience without a validation corpus."""
        if not isinstance(made := _target(self.optimizer), str) and not callable(made):
            is_fixed = isinstance(made, optax.GradientTransformation)
            got = "an optax transformation, whose step size is fixed" if is_fixed else f"{made!r:.60}"
            raise InputError(
                f"optimizer: expected a name, got {got}; or give a function of the step size, such as "
                "`def own(step_size): return optax.adam(step_size)`"
            )
        beside = set(self.__struct_fields__) - {self.takes_further}
        check_options(_target(self.optimizer), self.options, beside)
        if self.fresh and self.batch_size:
            raise InputError("fresh: cannot be combined with batch_size; remove one of them")
        for setting in context:
            self._check_batch(msgspec.structs.asdict(setting.data).get("sequences"))
            if self.patience and not setting.data.held_out:
                key = "validation" if setting.data.shared else "validation_sequences"
                raise InputError(f"patience: there is no validation corpus; give data.{key}")
            if self.fresh and not setting.data.draws_batches:
                raise InputError(
                    "fresh: no new batches can be sampled, because the data are read from files or sampled "
                    "by a function without the setting 'sequences'; use batch_size"
                )

    def _check_batch(self, examples: Any) -> None:
        if self.batch_size and isinstance(examples, int) and self.batch_size > examples:
            raise InputError(
                f"batch_size: {self.batch_size} of {examples} examples; give a smaller one, or omit it for "
                "the full batch"
            )

    def init(self, task: Task, params: Any, key: Array) -> Any:
        """Build the initial state; the key is used to sample batches."""
        self._check_batch(task.data.train.num_examples)
        algorithm, _ = self._algorithm(task)
        return algorithm.init(params, key) if self.batch_size or self.fresh else algorithm.init(params)

    def step(self, task: Task, state: Any) -> Any:
        """Take one step."""
        algorithm, on = self._algorithm(task)
        return algorithm.step(state, on)[0]

    def advance(self, task: Task, state: Any, steps: int | Array) -> Any:
        """Take a number of steps, which may be traced."""
        algorithm, on = self._algorithm(task)
        return loop(algorithm, state, on, steps)

    def _algorithm(self, task: Task) -> tuple[Algorithm, Any]:
        # A Polyak step takes the largest step size as a number; other optimisers follow the schedule. A
        # schedule needs a step counter, so a constant one is omitted if the optimiser is known to accept a
        # number.
        step_size: Any = self.step_size
        constant = self.schedule == "constant" and self.warmup == 0 and self.optimizer in ("sgd", "adam")
        if not constant and self.optimizer != "polyak":
            step_size = schedule(self.schedule, self.step_size, self.steps, self.warmup)
        of_model: dict[str, Any] = {"outputs": task.model.outputs, "per_sequence": task.loss}
        made = optimizer(_target(self.optimizer), step_size, **self.options)
        # Weights on all examples avoid building new bags. A coupled loss takes no weights, so its batch is
        # cut out.
        train = task.data.train
        cuts = task.model.cuts_batches or task.loss.coupled or not isinstance(train, Corpus)
        batches: dict[str, Any] = {"batch_size": self.batch_size, "cuts_batches": cuts}
        if self.fresh and task.fresh:
            batches["fresh"] = partial(task.fresh, examples=self.fresh)
        moving = descent(made, train=self.train, **batches, **of_model)
        if not self.patience:
            return moving, train
        limits: dict[str, Any] = {"steps": self.steps, "every": self.check_every, "patience": self.patience}
        return early_stop(moving, **limits, **of_model), (train, task.data.validation)


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

    def init(self, task: Task, params: Any, key: Array) -> Any:
        """Build the state before the step."""
        return self._algorithm(task).init(params)

    def step(self, task: Task, state: Any) -> Any:
        """Take the step; a nonfinite step is recorded as a failure, as in a descent."""
        return self._algorithm(task).step(state, task.data.train)[0]

    def _algorithm(self, task: Task) -> Algorithm:
        sgd = optimizer("sgd", self.step_size)
        return descent(sgd, train=self.train, outputs=task.model.outputs, per_sequence=task.loss)


def schedule(name: ScheduleName, step_size: float | Array, steps: int, warmup: int = 0) -> optax.Schedule:
    """Build a step-size schedule over a phase, a function of the step.

    Args:
        name: constant; cosine or linear to 0 at `steps`; exponential to 1 % of `step_size` at `steps`;
            inverse_sqrt, η/√(1 + k).
        step_size: η, the largest value.
        steps: length of the phase.
        warmup: steps of linear increase from 0 before the schedule begins.
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
    # Optax compares its arguments with numbers, which fails for a traced step size.
    return lambda count: step_size * made(count)


def optimizer(
    name: str | Factory, step_size: optax.ScalarOrSchedule | Array, **options: Any
) -> optax.GradientTransformation:
    """Build an optax optimiser from its name.

    Args:
        name: sgd, θ - η g; normalized, θ - η g/‖g‖ (over all trained parameters; θ where g = 0); polyak,
            θ - min(η, (L - loss_floor)/‖g‖²) g; any optimiser of optax that takes a learning rate (adam,
            adamw, lion, ...); or a function (step_size, **options) that makes a transformation.
        step_size: η, a number or a schedule; a number for polyak.
        options: further arguments of the optimiser by their optax names: momentum and nesterov of sgd and
            normalized, loss_floor of polyak, weight_decay of adamw, ... `epsilon` is optax's eps; it affects
            adam noticeably, because the gradient of E on thousands of reviews is about 1e-6 per entry.

    Raises:
        InputError: see `check_options`; or the function does not return an optax transformation.
    """
    check_options(name, options)
    factory = _factory(name)
    known = inspect.signature(factory).parameters
    made = factory(step_size, **{_optax_name(key, known): value for key, value in options.items()})
    if not isinstance(made, optax.GradientTransformation):
        raise InputError(f"optimizer: {_called(name)} returns {made!r:.60}; return an optax transformation")
    return made


def check_options(name: str | Factory, options: Iterable[str], beside: Iterable[str] = ()) -> None:
    """Raise InputError unless the optimiser exists and accepts these options, with the closest known name.

    `options` are their names; if it is a mapping, options with numeric defaults must have numeric values.
    `beside` are further names to suggest for a misspelled option.
    """
    factory = _factory(name)
    # A grid calls this for the same few optimisers in every cell, so signatures are cached.
    signature = _signature if inspect.isfunction(factory) else inspect.signature
    called = _called(name)
    first, *others = signature(factory).parameters.values()
    known = {x.name: x for x in others if x.kind is not x.VAR_KEYWORD}
    allowed = {*known, *(("epsilon",) if "eps" in known else ())}
    takes_any = len(known) < len(others)
    for option in options:
        if option == first.name:
            raise InputError(f"{option}: the key for this argument of {called} is step_size")
        if option not in allowed and not takes_any:
            raise InputError(f"{option}: not an option of {called}; {_nearest(option, {*allowed, *beside})}")
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


def _called(name: str | Factory) -> str:
    return name if isinstance(name, str) else getattr(name, "__name__", repr(name))


_signature = functools.cache(inspect.signature)


def _factory(name: str | Factory) -> Factory:
    return _named(name) if isinstance(name, str) else name


@functools.cache
def _named(name: str) -> Factory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    # Functions that add noise need a PRNG key per seed, which only a user-defined function can provide.
    found = {
        key: value
        for key, value in vars(optax).items()
        if inspect.isfunction(value)
        and not key.startswith(("_", "scale_by_"))
        and "learning_rate" in (parameters := inspect.signature(value).parameters)
        and "key" not in parameters
    }
    if name not in found:
        raise InputError(f"optimizer: '{name}' is not known; {_nearest(name, {*_BUILT_IN, *found})}")
    return found[name]


def _optax_name(option: str, known: Mapping[str, Any]) -> str:
    return "eps" if option == "epsilon" and "eps" in known and "epsilon" not in known else option


def _nearest(given: str, known: set[str]) -> str:
    near = difflib.get_close_matches(given, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known)) or 'none'}"


def _sgd(
    step_size: optax.ScalarOrSchedule, *, momentum: float | Array = 0.0, nesterov: bool = False
) -> optax.GradientTransformation:
    # A momentum of 0 needs no trace; where it is traced, a trace of zeros gives the same result.
    decay = None if isinstance(momentum, float) and momentum == 0 else momentum
    return optax.sgd(step_size, momentum=decay, nesterov=nesterov)


def _normalized(
    step_size: optax.ScalarOrSchedule, *, momentum: float | Array = 0.0, nesterov: bool = False
) -> optax.GradientTransformation:
    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # A gradient of exactly zero has no direction, so the parameters stay.
        moves = jnp.stack([(g != 0).any() for g in jax.tree.leaves(gradients)]).any()
        norm = jnp.where(moves, optax.tree.norm(gradients), 1)
        return jax.tree.map(lambda g: g / norm, gradients), state

    scaled = _sgd(step_size, momentum=momentum, nesterov=nesterov)
    return optax.chain(optax.GradientTransformation(lambda _: optax.EmptyState(), update), scaled)


def _polyak(step_size: float | Array, *, loss_floor: float | Array = 0.0) -> optax.GradientTransformation:
    return optax.polyak_sgd(step_size, f_min=loss_floor)


_BUILT_IN: dict[Any, Factory] = {"sgd": _sgd, "normalized": _normalized, "polyak": _polyak}


def _target(name: Any) -> Any:
    return name.target if isinstance(name, Named) else name
