"""What is measured on the way and at the end, and what is drawn of it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.base.data import Dataset, Loaded, Splits
from jaxattn.base.model import Loss, Model, Params
from jaxattn.base.phase import Phase, Task
from jaxattn.core.errors import InputError, shown
from jaxattn.core.pytrees import gradients_by_name
from jaxattn.core.scales import Scale
from jaxattn.core.settings import Spec

Metrics = Mapping[str, np.ndarray]


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
        data = self.sampled.train

        def loss(params: Params) -> Array:
            return self.loss(self.model.outputs(params, data), data.targets).mean()

        return gradients_by_name(loss, self.params, self.train)

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


class Measurement(Spec, frozen=True, kw_only=True):
    """What probes of single steps and of whole phases have in common: derive from one of these two.

    Attributes:
        labels: what figures call its metrics, by name.
        scales: the scales of its metrics, by name; linear without bounds for the others.
        rotation_invariant: whether it measures the same in coordinates of a span.
    """

    labels: ClassVar[Mapping[str, str]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {}
    rotation_invariant: ClassVar[bool] = False

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say what a phase lacks for it, of which it then measures nothing; None if it applies.

        Args:
            task: the model, the loss, and the data of one seed or of many, of which kinds and static sizes
                may be used, not shapes.
            phase: the phase.

        Returns:
            What is missing, for a plan, such as "wants targets that are classes".
        """
        return None


class Probe(Measurement, frozen=True, kw_only=True):
    """What is measured at single steps.

    Attributes:
        from_step: the first step of a phase that it speaks of.
    """

    from_step: ClassVar[int] = 0

    def remember(self, params: Any) -> Any:
        """Keep something of the start of a phase, which is `context.memory` in `measure`; None is nothing."""
        return None

    def measure(self, context: ProbeContext) -> Mapping[str, Array]:
        """Measure one seed.

        Args:
            context: a `jaxattn.lab.probes.ProbeContext`: parameters, model, loss, data, phase, and what
                follows from them, each computed once for all probes.

        Returns:
            Numbers (), or vectors (m,), by names that no other probe has.
        """
        raise NotImplementedError(f"{type(self).__name__}.measure")


class PhaseProbe(Measurement, frozen=True, kw_only=True):
    """What is measured of a whole phase when it has ended.

    Attributes:
        metrics: names of all that it measures.
    """

    @property
    def metrics(self) -> Sequence[str]:
        """Names of all that it measures."""
        raise NotImplementedError(f"{type(self).__name__}.metrics")

    def observe(self, phase: Phase, state: Any) -> Array:
        """Look at the state of one seed at a probe step; an array of any shape, the same at every step."""
        raise NotImplementedError(f"{type(self).__name__}.observe")

    def conclude(
        self, history: np.ndarray, params: Params, model: Model[Any], loaded: Loaded
    ) -> tuple[Metrics, Metrics]:
        """Measure all seeds, on the host.

        Args:
            history: (S, k, ...) float64; what was observed of S seeds at k probe steps.
            params: the parameters at the end, with a leading axis of seeds.
            model: the model.
            loaded: data, shared by the seeds or those of each.

        Returns:
            Two dictionaries by the names of metrics: what belongs to every probe step, (S, k) each, and to
            the phase as a whole, (S,) each.
        """
        raise NotImplementedError(f"{type(self).__name__}.conclude")


def concluded(probe: PhaseProbe, found: Any, seeds: int, points: int) -> tuple[Metrics, Metrics]:
    """Check what a probe concludes of a phase.

    Args:
        probe: the probe.
        found: what its `conclude` returned.
        seeds: S.
        points: probe steps k.

    Returns:
        The same, as arrays.

    Raises:
        InputError: not two dictionaries of (S, k) and (S,) numbers, or metrics that it does not name.
    """
    name = f"{probe.kind or type(probe).__name__}.conclude"
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(x, Mapping) for x in found)):
        raise InputError(
            f"{name} returns {shown(found)}; return two dictionaries, of (S, k) numbers at the probe steps "
            "and of (S,) numbers of the phase"
        )
    wanted = (seeds, points), (seeds,)
    if others := {metric for part in found for metric in part} - set(probe.metrics):
        raise InputError(f"{name} returns {min(map(str, others))!r}, none of its metrics; name it there")
    made = tuple({metric: np.asarray(x) for metric, x in part.items()} for part in found)
    for part, shape in zip(made, wanted, strict=True):
        for metric, x in part.items():
            if x.shape != shape:
                raise InputError(
                    f"{name}: {metric}: shape {x.shape}; return {shape}, a number for every seed"
                )
    return made[0], made[1]


class Figure(Spec, frozen=True, kw_only=True):
    """A figure of a finished run, drawn on the host."""

    def __call__(self, results: Any) -> Any:
        """Draw it.

        Args:
            results: a `jaxattn.Results`.

        Returns:
            A matplotlib figure, which gets the class's name and the first line of its docstring; or a
            `jaxattn.lab.results.drawn.Drawn` with words of its own.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")
