"""Descent phases."""

from functools import partial
from typing import Any, ClassVar

import jax
import msgspec
import optax
import optax.contrib
from jax import Array

from jaxattn.base import Dataset, Phase, State, Task
from jaxattn.base.model import Params
from jaxattn.core.errors import InputError
from jaxattn.core.settings import (
    Count,
    ImportPath,
    ImportPaths,
    Names,
    NotNegative,
    Positive,
    PositiveInt,
)
from jaxattn.core.spec import StudyParts
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.descents import early_stop
from jaxattn.dynamics.descents.descent import gradient_step, initial_state, minibatch, objective_step
from jaxattn.dynamics.descents.optimizers import (
    ROTATION_INVARIANT,
    ScheduleName,
    check_options,
    optimizer,
    schedule,
    takes_schedule,
    target,
)
from jaxattn.dynamics.objective import check_fresh, check_objective, value_of
from jaxattn.models.activations import check_clamps, with_clamps
from jaxattn.models.gradients import loss


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
        """True if steps depend on gradients of the loss only through inner products, unlike Adam's."""
        built_in = isinstance(self.optimizer, str) and self.optimizer in ROTATION_INVARIANT
        return built_in and self.objective is None and not self.clamps

    def check(self, *context: StudyParts) -> None:
        """Raise InputError for an unknown optimiser or option, or for `patience` without validation data."""
        if not isinstance(made := target(self.optimizer), str) and not callable(made):
            is_fixed = isinstance(made, optax.GradientTransformation)
            got = "an optax transformation, whose step size is fixed" if is_fixed else f"{made!r:.60}"
            raise InputError(
                "optimizer: expected a name or a function of the step size, such as `def custom(step_size): "
                f"return optax.adam(step_size)`, got {got}"
            )
        suggestions = set(self.__struct_fields__) - {self.options_field}
        check_options(target(self.optimizer), self.options, suggestions)
        if (self.schedule != "constant" or self.warmup) and not takes_schedule(target(self.optimizer)):
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
        # A subclass may define `step`, of which `early_stop.advance` makes no use.
        if self.patience and type(self).step is Descent.step:
            return early_stop.advance(self._stopping(with_clamps(task, self.clamps)), state, steps)
        advanced: State = super().advance(task, state, steps)
        return advanced

    def metrics(self, state: State) -> dict[str, Array]:
        """Return the number of gradient evaluations, excluding those after an early stop."""
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
        if not constant and takes_schedule(target(self.optimizer)):
            step_size = schedule(self.schedule, self.step_size, self.steps, self.warmup)
        return optimizer(target(self.optimizer), step_size, **self.options)


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
