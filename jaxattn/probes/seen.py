"""What a probe sees of one seed; what several probes need is computed once."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import Splits
from jaxattn.dynamics.gradients import loss_and_gradients


class Columns(NamedTuple):
    """Scores and values of the V tokens with one column for each class: one for two classes, else K."""

    scores: Array
    values: Array


class Seen:
    """The parameters of one seed at one step, and where they are.

    Attributes:
        params: the model's parameters.
        model: the model.
        per_sequence: the loss of every sequence, (outputs, targets) -> (n,).
        data: the training, test and validation data of the seed.
        phase: the phase that moves the parameters.
        memory: what the probe that looks remembers of the phase's start.
    """

    def __init__(
        self, params: Any, model: Any, per_sequence: Any, data: Splits, phase: Any, memory: Any = None
    ):
        """Look at parameters; nothing is computed yet."""
        self.params, self.model, self.per_sequence = params, model, per_sequence
        self.data, self.phase, self.memory = data, phase, memory
        self._logits: dict[int, Array] = {}

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
    def loss_and_gradients(self) -> tuple[Array, dict[str, Array]]:
        """The training loss and its gradients by the parameters that the phase moves."""
        return loss_and_gradients(
            self.params, self.data.train, self.train, self.model.outputs, per_sequence=self.per_sequence
        )

    def outputs(self, corpus: Corpus) -> Array:
        """Outputs of a corpus."""
        if id(corpus) not in self._logits:
            self._logits[id(corpus)] = self.model.outputs(self.params, corpus)
        return self._logits[id(corpus)]

    def with_memory(self, memory: Any) -> "Seen":
        """Look with another memory; what has been computed stays."""
        other = object.__new__(Seen)
        other.__dict__ = self.__dict__ | {"memory": memory}
        return other


def over_classes(function: Any, *columns: Array) -> Array:
    """Average a statistic of columns (V, C) over the classes."""
    return jax.vmap(function, in_axes=1)(*columns).mean()
