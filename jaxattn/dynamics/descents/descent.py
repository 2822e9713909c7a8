"""Descent on any subset of the parameters: one full-batch step, or an optax loop as an (init, step) pair.

One step on E is how training writes token importance into the embeddings. The loop takes minibatches too.
Small-step sgd on p is the loop's approximation of gradient flow.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import msgspec
import optax
from jax import Array

from jaxattn import losses
from jaxattn.base import Dataset, Phase, State, Task
from jaxattn.core import backend, pytrees
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import get, replaced
from jaxattn.core.settings import Count, Named, Names, NotNegative, Places, Positive, PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.descents.algorithm import Algorithm, Info, loop
from jaxattn.dynamics.descents.early_stop import early_stop
from jaxattn.dynamics.descents.optimizers import (
    ROTATION_INVARIANT,
    ScheduleName,
    check_options,
    optimizer,
    schedule,
)
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer
from jaxattn.models.gradients import Outputs, loss, loss_and_gradients


def descent(
    optimizer: optax.GradientTransformation,
    *,
    train: Sequence[str],
    outputs: Outputs = one_layer.outputs,
    batch_size: int | None = None,
    cuts_batches: bool = False,
    fresh: Callable[[Array], Dataset] | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Algorithm:
    """Make a descent of the mean loss on the named parameters.

    Args:
        optimizer: any optax transformation; one that takes `value` (a Polyak step), `grad` or `value_fn` (a
            line search) is given the loss, its gradient, and the loss as a function of what is trained.
        train: names of the parameters that move, a subset of the model's.
        outputs: the model.
        batch_size: examples per step, shuffled anew for every epoch, whose last ones are left out if they do
            not fill a batch; all of them by default.
        cuts_batches: take the batch out of the data for every step. Otherwise it is a matter of weights: a
            step costs what a full one does, which in token space is less than to lay out a corpus, and the
            loss must be one of single sequences.
        fresh: draws a batch, key -> data; every step then is on one of its own, and on no other data.
        per_sequence: (outputs, targets) -> (n,); logistic for two classes and cross-entropy for K by default.

    Returns:
        The (init, step) pair; both raise InputError for a name that the parameters do not have.
    """
    transformation = optax.with_extra_args_support(optimizer)
    is_full = batch_size is None and fresh is None

    def init(params: Any, key: Array | None = None) -> State:
        trained = {name: get(params, name) for name in train}
        return State(
            params,
            transformation.init(trained),
            jnp.zeros((), jnp.int32),
            -jnp.ones((), jnp.int32),
            None if is_full or key is None else jax.random.key_data(key),
        )

    def step(state: State, data: Dataset) -> tuple[State, Info]:
        weights = None
        if fresh is not None:
            data = fresh(jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step))
        elif batch_size is not None:
            data, weights = _minibatch(state, data, batch_size, cuts_batches)
        value, gradients = loss_and_gradients(state.params, data, train, outputs, weights, per_sequence)
        trained = {name: get(state.params, name) for name in train}

        def value_fn(trained: dict[str, Array]) -> Array:
            return loss(replaced(state.params, **trained), data, outputs, weights, per_sequence)

        updates, carried = transformation.update(
            gradients, state.optimizer, trained, value=value, grad=gradients, value_fn=value_fn
        )
        updates, fails = _checked(updates, value, gradients)
        moved = State(
            params=replaced(state.params, **optax.apply_updates(trained, updates)),
            optimizer=carried,
            step=state.step + 1,
            failed_at=jnp.where((state.failed_at < 0) & fails, state.step, state.failed_at),
            key=state.key,
        )
        return moved, Info(value, optax.tree.norm(gradients))

    return Algorithm(init, step)


def _minibatch(
    state: State, data: Dataset, batch_size: int, cuts_batches: bool
) -> tuple[Dataset, Array | None]:
    """Find the examples of a step: a part of the data, or all of them with the weights of that part."""
    size = min(batch_size, data.num_examples)
    position = deal(jax.random.wrap_key_data(state.key), state.step, size, data.num_examples)
    if not cuts_batches:
        return data, jnp.where(position < size, 1 / size, 0.0)
    own = jnp.zeros(size, jnp.int32).at[position]
    every = jnp.arange(data.num_examples, dtype=jnp.int32)
    return data.take(own.set(every, mode="drop", unique_indices=True)), None


def _checked(updates: Any, value: Array, gradients: dict[str, Array]) -> tuple[Any, Array]:
    """Tell whether a step fails: its loss or its gradient is not finite. Returns the updates too.

    The norm of a matrix would need it in memory, where otherwise ∂L/∂E never is; one that is not finite shows
    in the loss of the next step. For a CPU, XLA copies E in every step unless its update waits for the
    gradients of p and v; elsewhere waiting costs a launch, or more.
    """
    leaves = jax.tree.leaves(gradients)
    vectors = [leaf for leaf in leaves if leaf.ndim < 2]
    fails = ~(jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(vectors or leaves)))
    if vectors and backend.platform() == "cpu":
        updates = jax.tree.map(
            lambda leaf: jnp.where(fails, jnp.nan, leaf) if leaf.ndim > 1 else leaf, updates
        )
    return updates, fails


def deal(key: Array, step: Array, size: int, sequences: int) -> Array:
    """Deal sequences out to the minibatches of an epoch, from that of a step on.

    Every epoch of n // B steps deals them out in an order of its own.

    Args:
        key: () PRNG key.
        step: () int32.
        size: B ≤ n.
        sequences: n.

    Returns:
        (n,) int32, distinct; below B for the sequences of the step's minibatch.
    """
    epoch, number = jnp.divmod(step, sequences // size)
    position = jax.random.permutation(jax.random.fold_in(key, epoch), sequences)
    return (position - number * size) % sequences


class Descent(Phase, frozen=True, kw_only=True):
    """Descent with an optax optimiser on the parameters in `train`.

    `batch_size` examples a step, or all; or as many `fresh` ones, drawn anew for every step by the generator
    of the data, as in online and population training. With `patience`, the loss on the validation data is
    checked every `check_every` steps; after that many checks without a new best the descent stops, and the
    phase ends with the best parameters.

    Attributes:
        optimizer: a name that `optimizer` knows, or the import path of a function (step_size, *, options)
            that makes an optax transformation.
        options: what the optimiser takes beside the step size; in a sweep file beside the other settings.
        step_size: η, the largest of the schedule.
        schedule: how the step size changes along the phase.
        warmup: steps over which it rises from 0 before that.
        batch_size: examples of a step, dealt out anew in every epoch; all if none.
        fresh: examples drawn anew for every step, in place of the training data.
        patience: checks of the validation loss without a new best after which the phase stops; 0 never stops.
        check_every: steps between those checks.
    """

    takes_further: ClassVar[str] = "options"

    train: Names
    optimizer: Any
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
    def rotation_invariant(self) -> bool:
        """Whether the optimiser knows gradients by their inner products only, unlike Adam."""
        return isinstance(self.optimizer, str) and self.optimizer in ROTATION_INVARIANT

    def located(self, names: Places) -> "Descent":
        """Return it with the optimiser imported, if it is code of the user's."""
        if not (isinstance(self.optimizer, str) and ":" in self.optimizer):
            return self
        return msgspec.structs.replace(self, optimizer=Named(self.optimizer, names.load(self.optimizer)))

    def check(self, *context: Any) -> None:
        """Raise InputError for an unknown optimiser or option, or patience without a validation corpus."""
        if not isinstance(self.optimizer, str) and not callable(self.optimizer):
            raise InputError(f"optimizer: expected a name, got {self.optimizer!r:.60}")
        beside = set(self.__struct_fields__) - {self.takes_further}
        check_options(_factory(self.optimizer), self.options, beside)
        if self.fresh and self.batch_size:
            raise InputError("fresh: batch_size deals out the training data; leave one of them out")
        for setting in context:
            if self.patience and not setting.data.held_out:
                key = "validation" if setting.data.shared else "validation_sequences"
                raise InputError(f"patience: there is no validation corpus; give data.{key}")
            if self.fresh and not setting.data.draws_batches:
                raise InputError(
                    "fresh: the data cannot be drawn anew, as they are read, or drawn by a function without "
                    "the setting 'sequences'; use batch_size"
                )

    def init(self, task: Task, params: Any, key: Array) -> Any:
        """Make the state; batches are drawn with the key."""
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
        """Make the descent, and what its steps take."""
        # A Polyak step takes the largest step size as a number, the others follow the schedule. A schedule
        # counts the steps; a constant one does without if the optimiser is known to take any number.
        step_size: Any = self.step_size
        constant = self.schedule == "constant" and self.warmup == 0 and self.optimizer in ("sgd", "adam")
        if not constant and self.optimizer != "polyak":
            step_size = schedule(self.schedule, self.step_size, self.steps, self.warmup)
        of_model: dict[str, Any] = {"outputs": task.model.outputs, "per_sequence": task.loss}
        made = optimizer(_factory(self.optimizer), step_size, **self.options)
        # Weights save the laying out of bags, and leave a coupled loss all of them.
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


def _factory(name: Any) -> Any:
    return name.target if isinstance(name, Named) else name


P = TypeVar("P")


def one_step(
    params: P,
    data: Any,
    *,
    step_size: float | Array,
    train: Sequence[str] = ("E",),
    outputs: Outputs = one_layer.outputs,
    per_sequence: PerSequence = losses.DEFAULT,
) -> P:
    """Take one full-batch gradient step, θ¹ = θ⁰ - η0 ∂L/∂θ, on E alone unless told otherwise.

    Args:
        params: E (V, d), p (d,), v (d,) or (d, K), or what another model has.
        data: n examples.
        step_size: η0.
        train: names of the parameters that move.
        outputs: the model.
        per_sequence: see `loss`.

    Returns:
        The parameters after the step.

    Raises:
        InputError: a name that the parameters do not have.

    Source:
        Lemma 4.1 of arXiv 2505.17282: then E_s ≈ E_s⁰ + (η0/2) α_s v.
    """
    _, gradients = loss_and_gradients(params, data, train, outputs, per_sequence=per_sequence)
    moved = {name: pytrees.get(params, name) - step_size * g for name, g in gradients.items()}
    return pytrees.replaced(params, **moved)


class OneStep(Phase, frozen=True, kw_only=True):
    """One full-batch gradient step of size `step_size` on the parameters in `train`; none at all for 0.

    Attributes:
        step_size: η0.
    """

    one_step: ClassVar[bool] = True
    rotation_invariant: ClassVar[bool] = True
    steps: ClassVar[int] = 1

    step_size: NotNegative
    train: Names = ("E",)

    def init(self, task: Task, params: Any, key: Array) -> Any:
        """Make the state before the step."""
        return self._algorithm(task).init(params)

    def step(self, task: Task, state: Any) -> Any:
        """Take the step; one that is not finite is a failure, as in a descent."""
        return self._algorithm(task).step(state, task.data.train)[0]

    def _algorithm(self, task: Task) -> Algorithm:
        sgd = optimizer("sgd", self.step_size)
        return descent(sgd, train=self.train, outputs=task.model.outputs, per_sequence=task.loss)
