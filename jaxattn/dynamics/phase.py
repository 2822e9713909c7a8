"""A phase of a study: which parameters move, by which dynamics, until when."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxattn.data.splits import Splits
from jaxattn.dynamics.algorithm import State
from jaxattn.errors import InputError
from jaxattn.spec import Spec


class Task(NamedTuple):
    """What a phase works on.

    Attributes:
        model: `logits(params, corpus)` and `scores_and_values(params)`.
        loss: per sequence, (logits, labels) -> (n,).
        corpora: training, validation and test corpus of one seed.
    """

    model: Any
    loss: Any
    corpora: Splits


class Phase(Spec, frozen=True, kw_only=True):
    """Base of all phases: pure functions of one seed. Subclasses have `train` and `steps`, and write `step`.

    A state is a pytree with at least `params`, `step` and `failed_at`, the step at which it failed or -1;
    `State` is one.

    Attributes:
        name: the phase's name in tables.
        failure: what it means that a seed failed.
        dtype: the precision of its state in every study; that of the study if None.
        seeds_per_core: how many seeds a core of a CPU takes at a time; as many as its cache holds if None.
        refines: metrics of standard probes that its own ones replace: its state knows them to more digits.
        rotation_invariant: whether a rotation of R^d before it is the same as one after it, so that it may
            run in coordinates of a span.
    """

    failure: ClassVar[str] = "loss or gradient is not finite"
    dtype: ClassVar[str | None] = None
    seeds_per_core: ClassVar[int | None] = None
    refines: ClassVar[tuple[str, ...]] = ()
    rotation_invariant: ClassVar[bool] = False

    name: str

    def check(self, *context: Any) -> None:
        """Raise InputError, naming the setting, if the phase does not fit `model` and `data`."""

    def probe_steps(self, per_decade: int) -> list[int]:
        """List the steps to measure at, 0 and the last among them."""
        return log_spaced(self.steps, per_decade)  # type: ignore[attr-defined]

    def init(self, task: Task, params: Any, key: Array) -> Any:
        """Make the state that the phase starts with; the key is for what is drawn on the way."""
        zero = jnp.zeros((), jnp.int32)
        return State(params, (), zero, zero - 1)

    def step(self, task: Task, state: Any) -> Any:
        """Take one step."""
        raise NotImplementedError(f"{type(self).__name__}.step")

    def advance(self, task: Task, state: Any, steps: int | Array) -> Any:
        """Take a number of steps, which may be traced."""
        return jax.lax.fori_loop(0, steps, lambda _, here: self.step(task, here), state)

    def query(self, state: Any) -> Array:
        """Return p in its full precision."""
        return state.params.p

    def metrics(self, state: Any) -> dict[str, Array]:
        """Tell what the state itself knows."""
        return {"evaluations": state.step}


def log_spaced(steps: int, per_decade: int) -> list[int]:
    """List steps to probe at: 0, log-spaced in between, and the last."""
    count = int(np.ceil(np.log10(max(steps, 1)) * per_decade)) + 1
    spaced = np.unique(np.rint(np.geomspace(1, steps, count)).astype(int))
    return sorted({0, *spaced.tolist(), steps})


def require_one_layer(*context: Any) -> None:
    """Raise InputError unless a setting has the one-layer model, the logistic loss and two classes."""
    for setting in context:
        if not getattr(setting.model, "is_one_layer", False):
            raise InputError("it follows p of model.kind = 'one_layer' only; use kind = 'descent'")
        if not getattr(setting.loss, "is_logistic", False):
            raise InputError("it is the flow of the logistic loss, without smoothing; use kind = 'descent'")
        if (classes := getattr(setting.data, "classes", 2)) != 2:
            raise InputError(
                f"{classes} classes, but this is the flow of the logistic loss of two; use kind = 'descent'"
            )
