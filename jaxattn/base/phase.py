"""Base class for training phases: the trained parameters, the dynamics and the number of steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree

from jaxattn.base.data import Dataset, Splits
from jaxattn.base.model import Loss, Model, Params
from jaxattn.base.state import State
from jaxattn.core import pytrees
from jaxattn.core.scales import NOT_NEGATIVE, Scale
from jaxattn.core.spec import Spec


class Task(NamedTuple):
    """Model, loss and data for one seed: the arguments of a phase. `ja.dynamics.Task` has default values.

    Attributes:
        model: the model.
        loss: per-example loss, (outputs, targets) -> (n,), or a loss for the whole batch.
        data: training, validation and test data for one seed.
        fresh: function (key, examples) that samples this number of new training examples; None if the
            data source cannot.
    """

    model: Model[Any]
    loss: Loss
    data: Splits
    fresh: Callable[..., Dataset] | None = None


class Goal(NamedTuple):
    """Target value of a metric, for a phase whose progress is not measured in steps.

    Attributes:
        metric: name of the metric in `Phase.metrics` that approaches the target.
        label: printed name of the metric.
        value: value of the metric at which the phase ends.
    """

    metric: str
    label: str
    value: float


class Phase(Spec, frozen=True, kw_only=True):
    """Base class for training phases: pure functions for one seed.

    Subclasses define `train`, `steps`, and either `step`, which `advance` repeats, or `advance`. A
    subclass whose state is not a `State` also defines `init`, which must return a pytree with at least
    `params`, `step` and `failed_at`.

    Attributes:
        name: name of the phase in tables and figures.
        train: names or patterns of the trained parameters, such as `head.*`, or names of submodules, such
            as `head`. An entry after `!` excludes parameters: `["*", "!head"]` trains all others. Integer
            arrays are not trained.
        steps: number of steps.
        failure: reason recorded for a failed seed.
        dtype: dtype of the state in every study; None for the dtype of the study.
        seeds_per_core: number of seeds that a CPU core computes at a time; None for as many as fit in its
            cache.
        labels: printed name of each metric in figures.
        scales: scale of each metric, as in `Measurement.scales`.
        refines: metrics of standard probes that the phase replaces with more precise metrics of its own.
        one_step: True for a single full gradient step of size `step_size`, as described by the one-step
            law.
        batch_size: number of examples per step; None for all.
        end_key: name of a setting, such as a schedule, that makes earlier steps depend on the end of the
            phase, so that a finished phase cannot be extended; "" if there is no such setting.
        is_random: True if the phase uses random numbers, for example to sample minibatches.
        rotation_invariant: True if the phase commutes with rotations of R^d, so that it can run in
            coordinates of the span of the parameters.

    A subclass of a phase that defines a method does not inherit `one_step` and `rotation_invariant`.
    """

    overridable: ClassVar[frozenset[str]] = frozenset(
        {"train", "steps", "batch_size", "step_size", "seeds_per_core"}
    )
    about_methods: ClassVar[frozenset[str]] = frozenset({"one_step", "rotation_invariant"})
    failure: ClassVar[str] = "loss or gradient is not finite"
    dtype: ClassVar[str | None] = None
    labels: ClassVar[Mapping[str, str]] = {}
    scales: ClassVar[Mapping[str, Scale]] = {"evaluations": NOT_NEGATIVE}
    refines: ClassVar[tuple[str, ...]] = ()
    one_step: ClassVar[bool] = False

    name: str

    @property
    def train(self) -> Sequence[str]:
        """Names or patterns of the trained parameters."""
        raise NotImplementedError(f"{type(self).__name__}.train")

    @property
    def steps(self) -> int:
        """Number of steps."""
        raise NotImplementedError(f"{type(self).__name__}.steps")

    @property
    def step_size(self) -> float:
        """Step size of a one-step phase."""
        raise NotImplementedError(f"{type(self).__name__}.step_size")

    @property
    def batch_size(self) -> int | None:
        """Number of examples per step; None for all."""
        return None

    @property
    def seeds_per_core(self) -> int | None:
        """Number of seeds that a CPU core computes at a time; None for as many as fit in its cache."""
        return None

    @property
    def end_key(self) -> str:
        """Name of the setting that makes earlier steps depend on the end of the phase, or "" if none."""
        return ""

    @property
    def is_random(self) -> bool:
        """True if the phase uses random numbers; by default, if it defines `init`, which takes a key."""
        return type(self).init is not Phase.init

    @property
    def rotation_invariant(self) -> bool:
        """True if the phase can run in coordinates of the span of the parameters."""
        return False

    @property
    def goal(self) -> Goal | None:
        """Target of a phase whose progress is not measured in steps; None for other phases."""
        return None

    def probe_steps(self, per_decade: int) -> list[int]:
        """Return the steps at which to measure, in ascending order, including step 0 and the last step.

        By default, there are about `per_decade` steps per factor of 10.
        """
        return log_spaced(self.steps, per_decade)

    def init(self, task: Task, params: Params, key: Array) -> PyTree:
        """Return the initial state of the phase.

        Args:
            task: the model, the loss and the data for one seed.
            params: the final parameters of the previous phase.
            key: () PRNG key for the phase. Store it in the state if the phase uses random numbers.
        """
        zero = jnp.zeros((), jnp.int32)
        return State(params, (), zero, zero - 1)

    def step(self, task: Task, state: PyTree) -> PyTree:
        """Take one step. The new state must have the same structure, shapes and dtypes as `state`.

        `state.step` is the number of earlier steps. `advance` increases it, so this method need not.
        """
        raise NotImplementedError(f"{type(self).__name__}.step")

    def advance(self, task: Task, state: PyTree, steps: int | Array) -> PyTree:
        """Take `steps` steps; `steps` may be traced.

        Taking k steps and then l steps must be equivalent to taking k + l steps. A phase that overrides this
        method must add `steps` to `state.step`.
        """

        def numbered(_: Array, here: PyTree) -> PyTree:
            return pytrees.replace(self.step(task, here), step=here.step + 1)

        return jax.lax.fori_loop(0, steps, numbered, state)

    def parameter(self, state: PyTree, name: str) -> Array:
        """Return a parameter at full precision."""
        found: Array = pytrees.get(state.params, name)
        return found

    def metrics(self, state: PyTree) -> dict[str, Array]:
        """Return the metrics that are stored in the state, as scalars by name."""
        return {"evaluations": state.step}


def log_spaced(steps: int, per_decade: int) -> list[int]:
    """Return log-spaced steps, about `per_decade` per factor of 10, including 0 and the last step.

    Example:
        >>> ja.base.log_spaced(100, per_decade=1)
        [0, 1, 10, 100]
    """
    count = int(np.ceil(np.log10(max(steps, 1)) * per_decade)) + 1
    spaced = np.unique(np.rint(np.geomspace(1, steps, count)).astype(int))
    return sorted({0, *spaced.tolist(), steps})
