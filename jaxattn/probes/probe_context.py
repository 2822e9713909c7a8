"""What a probe sees of one seed; what several probes need is computed once."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.base import Dataset, Loss, Model, Params, Phase, Task
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Splits
from jaxattn.models.gradients import loss_and_gradients


class Columns(NamedTuple):
    """Scores and values of the V tokens with one column for each class: one for two classes, else K."""

    scores: Array
    values: Array


class ProbeContext:
    """The parameters of one seed at one step, and where they are.

    Attributes:
        params: the model's parameters.
        model: the model.
        loss: of every example, (outputs, targets) -> (n,), or of a batch.
        data: the training, test and validation data of the seed.
        phase: the phase that moves the parameters.
        memory: what the probe that looks remembers of the phase's start.
        sample: how many sequences of each corpus losses and gradients are computed on; None for all.
    """

    def __init__(
        self,
        params: Params,
        task: Task,
        phase: Phase,
        memory: Any = None,
        sample: int | None = None,
    ) -> None:
        """Look at parameters; nothing is computed yet."""
        self.params, self.phase, self.memory = params, phase, memory
        self.model: Model[Any] = task.model
        self.loss: Loss = task.loss
        self.data: Splits = task.data
        self.sample = sample
        self._outputs: dict[int, Array] = {}

    @property
    def train(self) -> Sequence[str]:
        """The parameters that the phase moves."""
        return self.phase.train

    @cached_property
    def scores_and_values(self) -> tuple[Array, Array]:
        """The model's scores (V,), and values (V,) or (V, K)."""
        return self.model.scores_and_values(self.params)

    @cached_property
    def columns(self) -> Columns:
        """Scores and values as (V, C)."""
        scores, values = self.scores_and_values
        values = values[:, None] if values.ndim == 1 else values
        return Columns(jnp.broadcast_to(scores[:, None], values.shape), values)

    @cached_property
    def sampled(self) -> Splits:
        """The data that losses, accuracies and gradients are computed on, `sample` examples of each."""
        return self.data.sampled(self.sample)

    @cached_property
    def loss_and_gradients(self) -> tuple[Array, dict[str, Array]]:
        """The training loss and its gradients by the parameters that the phase moves."""
        return loss_and_gradients(
            self.params, self.sampled.train, self.train, self.model.outputs, per_sequence=self.loss
        )

    def outputs(self, data: Dataset) -> Array:
        """Outputs of the model on some data."""
        if id(data) not in self._outputs:
            self._outputs[id(data)] = self.model.outputs(self.params, data)
        return self._outputs[id(data)]

    def with_memory(self, memory: Any) -> "ProbeContext":
        """Look with another memory; what has been computed stays."""
        other = object.__new__(ProbeContext)
        other.__dict__ = self.__dict__ | {"memory": memory}
        return other


def over_classes(function: Callable[..., Array], *columns: Array) -> Array:
    """Average a statistic of columns (V, C) over the classes."""
    return jax.vmap(function, in_axes=1)(*columns).mean()


def wants_bags(task: Task) -> str | None:
    """Say that something wants bags of tokens with a class; None if the data are."""
    return None if isinstance(task.data.train, Corpus) else "wants bags of tokens with classes"


def wants_scores(task: Task) -> str | None:
    """Say that something wants bags, and a model with scores and values of their tokens."""
    if not task.model.has_scores:
        return "wants a model with scores_and_values"
    return wants_bags(task)


def wants_attention(task: Task) -> str | None:
    """Say that something wants attention that is softmax over scores of the tokens of bags."""
    if not task.model.attends_to_tokens:
        return "wants a model with attends_to_tokens = True"
    return wants_scores(task)


def wants_one_layer(task: Task, phase: Phase, train: Sequence[str]) -> str | None:
    """Say that something wants the one-layer model, the logistic loss, and a phase that moves `train`."""
    if not task.model.is_one_layer:
        return "wants the one-layer model"
    if not task.loss.is_logistic:
        return "wants the logistic loss"
    if set(phase.train) != set(train):
        return f"wants a phase that moves {' and '.join(train)} alone"
    return wants_bags(task)
