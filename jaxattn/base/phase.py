"""Phases: which parameters move, by which dynamics, until when."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxattn.base.data import Dataset, Splits
from jaxattn.base.model import Loss, Model
from jaxattn.core import pytrees
from jaxattn.core.pytrees import Leaf
from jaxattn.core.settings import Spec


class Task(NamedTuple):
    """What a phase works on.

    Attributes:
        model: the model.
        loss: of every example, (outputs, targets) -> (n,), or of a batch.
        data: training, validation and test data of one seed.
        fresh: draws data like those of training, (key, examples=how many); None where they cannot be drawn.
    """

    model: Model[Any]
    loss: Loss
    data: Splits
    fresh: Callable[..., Dataset] | None = None


@struct.dataclass
class State:
    """What a descent carries.

    Attributes:
        params: the model's parameters.
        optimizer: optax's state.
        step: () int32; steps taken.
        failed_at: () int32; the first step whose loss or gradient was not finite, -1 if none. Where vectors
            move, gradients of matrices are left out: they show in the loss of the next step.
        key: (2,) uint32; data of the PRNG key that batches are drawn with, None for the full batch.
    """

    params: Leaf
    optimizer: Leaf
    step: Leaf
    failed_at: Leaf
    key: Leaf = None


class Goal(NamedTuple):
    """What steps lead to, where their number does not tell how far a phase is.

    Attributes:
        metric: the metric that grows, of the phase's own.
        label: how it is written.
        value: where it ends.
    """

    metric: str
    label: str
    value: float


class Phase(Spec, frozen=True, kw_only=True):
    """Which parameters move, by which dynamics, until when: pure functions of one seed.

    Subclasses have `train` and `steps`, and write `step`, which `advance` repeats, or `init` and `advance`. A
    state is a pytree with at least `params`, `step` and `failed_at`, the step at which it failed or -1;
    `State` is one.

    Attributes:
        name: name of the phase in tables and figures.
        train: names of the parameters that are trained.
        steps: number of steps.
        failure: what it means that a seed failed.
        dtype: the precision of its state in every study; that of the study if None.
        seeds_per_core: how many seeds a core of a CPU takes at a time; as many as its cache holds if None.
        refines: metrics of standard probes that its own ones replace: its state knows them to more digits.
        one_step: whether it is one full gradient step of `step_size`, of which the one-step law speaks.
        batch_size: examples of a step, None for all.
        rotation_invariant: whether a rotation of R^d before it is the same as one after it, so that it may
            run in coordinates of a span.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset({"train", "steps", "batch_size", "step_size"})
    failure: ClassVar[str] = "loss or gradient is not finite"
    dtype: ClassVar[str | None] = None
    seeds_per_core: ClassVar[int | None] = None
    refines: ClassVar[tuple[str, ...]] = ()
    one_step: ClassVar[bool] = False

    name: str

    @property
    def train(self) -> Sequence[str]:
        """Names of the parameters that move."""
        raise NotImplementedError(f"{type(self).__name__}.train")

    @property
    def steps(self) -> int:
        """How many steps it has."""
        raise NotImplementedError(f"{type(self).__name__}.steps")

    @property
    def step_size(self) -> float:
        """The size of its one step."""
        raise NotImplementedError(f"{type(self).__name__}.step_size")

    @property
    def batch_size(self) -> int | None:
        """Examples of a step, None for all."""
        return None

    @property
    def rotation_invariant(self) -> bool:
        """Whether it may run in coordinates of a span."""
        return False

    @property
    def goal(self) -> Goal | None:
        """What its steps lead to, if they are not alike: no time that is left is foretold from them."""
        return None

    @property
    def beginning(self) -> str:
        """What its start does, in words for whoever waits for it."""
        return "begins"

    def probe_steps(self, per_decade: int) -> list[int]:
        """List the steps to measure at, ascending, 0 and the last among them."""
        return log_spaced(self.steps, per_decade)

    def init(self, task: Task, params: Any, key: Array) -> Any:
        """Make the state that the phase starts with.

        Args:
            task: the model, the loss and the data of one seed.
            params: the parameters that the phase before left.
            key: () PRNG key, for what is drawn on the way; keep it in the state.

        Returns:
            The state.
        """
        zero = jnp.zeros((), jnp.int32)
        return State(params, (), zero, zero - 1)

    def step(self, task: Task, state: Any) -> Any:
        """Take one step: return a state of the same structure, shapes and dtypes."""
        raise NotImplementedError(f"{type(self).__name__}.step")

    def advance(self, task: Task, state: Any, steps: int | Array) -> Any:
        """Take a number of steps, which may be traced; one call with k + l equals two with k and l."""
        return jax.lax.fori_loop(0, steps, lambda _, here: self.step(task, here), state)

    def parameter(self, state: Any, name: str) -> Array:
        """Look up a parameter in its full precision."""
        found: Array = pytrees.get(state.params, name)
        return found

    def metrics(self, state: Any) -> dict[str, Array]:
        """Tell what the state itself knows: numbers () by name."""
        return {"evaluations": state.step}


def log_spaced(steps: int, per_decade: int) -> list[int]:
    """List steps to probe at: 0, log-spaced in between, and the last."""
    count = int(np.ceil(np.log10(max(steps, 1)) * per_decade)) + 1
    spaced = np.unique(np.rint(np.geomspace(1, steps, count)).astype(int))
    return sorted({0, *spaced.tolist(), steps})
