"""Base classes for figures and for probes, which record measurements during and after training."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from jaxattn.base.data import Dataset, Loaded, Splits
from jaxattn.base.from_function import FromFunction
from jaxattn.base.model import HasTokenScores, Loss, Model, Params
from jaxattn.base.phase import Phase, Task
from jaxattn.core.errors import InputError, shown
from jaxattn.core.pytrees import gradients_by_name, selected
from jaxattn.core.scales import Scale
from jaxattn.core.spec import Spec

Metrics = Mapping[str, np.ndarray]


class Columns(NamedTuple):
    """Scores and values of the V tokens, (V, C) each, with C = 1 for two classes and C = K for K > 2."""

    scores: Array
    values: Array


class ProbeContext:
    """Argument of a probe: the parameters for one seed at one step, with the model, loss, data and phase.

    Attributes:
        params: the model's parameters.
        model: the model.
        loss: per-example loss, (outputs, targets) -> (n,), or a loss for the whole batch.
        data: the training, test and validation data for the seed.
        phase: the current phase.
        memory: return value of `Probe.remember` at the start of the phase.
        sample: maximum number of examples per split for losses and gradients; None for all.
    """

    def __init__(
        self,
        params: Params,
        task: Task,
        phase: Phase,
        memory: PyTree = None,
        sample: int | None = None,
    ) -> None:
        self.params, self.phase, self.memory = params, phase, memory
        self.model: Model[Any] = task.model
        self.loss: Loss = task.loss
        self.data: Splits = task.data
        self.sample = sample
        self._outputs: dict[int, Array] = {}

    @property
    def train(self) -> Sequence[str]:
        """Names of the parameters trained by the phase."""
        return tuple(selected(self.params, self.phase.train))

    @cached_property
    def scores_and_values(self) -> tuple[Array, Array]:
        """Scores (V,) and values (V,) or (V, K) from the model."""
        return cast(HasTokenScores, self.model).scores_and_values(self.params)

    @cached_property
    def columns(self) -> Columns:
        """Scores and values, (V, C) each."""
        scores, values = self.scores_and_values
        values = values[:, None] if values.ndim == 1 else values
        return Columns(jnp.broadcast_to(scores[:, None], values.shape), values)

    @cached_property
    def sampled(self) -> Splits:
        """Data splits with at most `sample` examples each, for losses, accuracies and gradients."""
        return self.data.sampled(self.sample)

    @cached_property
    def loss_and_gradients(self) -> tuple[Array, dict[str, Array]]:
        """Training loss, and its gradients with respect to the trained parameters."""
        data = self.sampled.train

        def loss(params: Params) -> Array:
            return self.loss(self.model.outputs(params, data), data.targets).mean()

        return gradients_by_name(loss, self.params, self.train)

    def outputs(self, data: Dataset) -> Array:
        """Return the model's outputs on the given data."""
        if id(data) not in self._outputs:
            self._outputs[id(data)] = self.model.outputs(self.params, data)
        return self._outputs[id(data)]

    def with_memory(self, memory: PyTree) -> "ProbeContext":
        """Return a copy of the context with a different `memory`. The copy reuses all cached values."""
        other = object.__new__(ProbeContext)
        other.__dict__ = self.__dict__ | {"memory": memory}
        return other


class Measurement(Spec, frozen=True, kw_only=True):
    """Common base class of `Probe` and `PhaseProbe`. Derive from one of these two instead.

    Attributes:
        labels: printed name of each metric.
        scales: scale of each metric; linear and unbounded by default. A name that ends in `*` stands for all
            metrics that begin with the rest of it.
        rotation_invariant: True if the metrics are the same in coordinates of the span of the parameters. A
            subclass that defines a method does not inherit it.
    """

    about_methods: ClassVar[frozenset[str]] = frozenset({"rotation_invariant"})
    labels: ClassVar[Mapping[str, str]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {}
    rotation_invariant: ClassVar[bool] = False

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe does not apply to a phase, as shown in the plan, or None if it applies.

        Args:
            task: the model, the loss, and the data for one or many seeds. Only types and static sizes of the
                data may be used, not shapes.
            phase: the phase.

        Returns:
            The missing requirement, such as "requires targets that are classes", or None.
        """
        return None


class Probe(Measurement, frozen=True, kw_only=True):
    """Base class for probes that measure at individual steps.

    Attributes:
        from_step: first step of a phase at which the metrics are available.
    """

    from_step: ClassVar[int] = 0

    def remember(self, params: Params) -> PyTree:
        """Return a value that `measure` can access as `context.memory` during the phase, or None."""
        return None

    def measure(self, context: ProbeContext) -> Mapping[str, Array]:
        """Compute the metrics for one seed.

        Args:
            context: a `jaxattn.lab.probes.ProbeContext`: parameters, model, loss, data, phase, and derived
                quantities shared by all probes.

        Returns:
            Scalars (), or vectors (m,), by metric name. Names must be unique across all probes.
        """
        raise NotImplementedError(f"{type(self).__name__}.measure")


class PhaseProbe(Measurement, frozen=True, kw_only=True):
    """Base class for probes that measure a whole phase after it ends.

    Attributes:
        metrics: names of the metrics.
    """

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the metrics."""
        raise NotImplementedError(f"{type(self).__name__}.metrics")

    def observe(self, phase: Phase, state: PyTree) -> Array:
        """Compute an array from the state of one seed. Its shape must be the same at all probe steps."""
        raise NotImplementedError(f"{type(self).__name__}.observe")

    def conclude(
        self, history: np.ndarray, params: Params, model: Model[Any], loaded: Loaded
    ) -> tuple[Metrics, Metrics]:
        """Compute the metrics for all seeds on the host.

        Args:
            history: (S, k, ...) float64; return values of `observe` for S seeds at k probe steps.
            params: the final parameters, with a leading seed axis.
            model: the model.
            loaded: the data, either shared by all seeds or separate for each seed.

        Returns:
            Two dictionaries keyed by metric name: values at every probe step, (S, k), and values for the
            whole phase, (S,).
        """
        raise NotImplementedError(f"{type(self).__name__}.conclude")


def check_conclusions(probe: PhaseProbe, found: object, seeds: int, points: int) -> tuple[Metrics, Metrics]:
    """Validate the pair of dictionaries returned by `PhaseProbe.conclude` and convert their values to arrays.

    Args:
        probe: the probe.
        found: return value of `probe.conclude`.
        seeds: number of seeds S.
        points: number of probe steps k.

    Raises:
        InputError: `found` is not a pair of dictionaries with values of shape (S, k) and (S,), or contains
            undeclared metrics.
    """
    name = f"{probe.kind or type(probe).__name__}.conclude"
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(x, Mapping) for x in found)):
        raise InputError(
            f"{name} returns {shown(found)}; return two dictionaries, with arrays of shape (S, k) for the "
            "probe steps and of shape (S,) for the whole phase"
        )
    wanted = (seeds, points), (seeds,)
    if others := {metric for part in found for metric in part} - set(probe.metrics):
        raise InputError(
            f"{name} returns the metric {min(map(str, others))!r}, "
            "which is not declared in `metrics`; add it there"
        )
    made = tuple({metric: np.asarray(x) for metric, x in part.items()} for part in found)
    for part, shape in zip(made, wanted, strict=True):
        for metric, x in part.items():
            if x.shape != shape:
                raise InputError(
                    f"{name} returns {metric!r} with shape {x.shape}; expected {shape}, with one row per seed"
                )
    return made[0], made[1]


class Figure(Spec, frozen=True, kw_only=True):
    """Base class for figures, which are drawn on the host from the results of a finished run."""

    def __call__(self, results: Any) -> object:
        """Draw the figure.

        Args:
            results: a `jaxattn.Results`.

        Returns:
            A matplotlib figure, which is named after the class and captioned with the first line of its
            docstring; or a `jaxattn.lab.figures.rendered.RenderedFigure` with a custom name and caption.
        """
        raise NotImplementedError(f"{type(self).__name__}.__call__")


class ProbeFromFunction(FromFunction, Probe, frozen=True, kw_only=True):
    """Probe built from a function `(params, data, *, settings) -> number, (m,) or dictionary of such values`.

    Attributes:
        name: name of the metric; defaults to the name of the function.
    """

    name: str = ""

    def measure(self, context: ProbeContext) -> Mapping[str, Any]:
        """Compute the metric, or several metrics by name, on the training data of one seed."""
        found = self._call(context.params, context.data.train)
        return found if isinstance(found, dict) else {self.name or type(self).__name__: found}


class FigureFromFunction(FromFunction, Figure, frozen=True, kw_only=True):
    """Figure built from a function `(results, *, settings) -> matplotlib figure or RenderedFigure`."""

    def __call__(self, results: Any) -> object:
        """Draw the figure."""
        return self._call(results)
