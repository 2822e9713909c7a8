"""One full-batch gradient step: how training writes token importance into the embeddings."""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from jax import Array

from jaxattn import losses
from jaxattn.base import Phase, Task
from jaxattn.core import params_by_name
from jaxattn.core.settings import Names, NotNegative
from jaxattn.dynamics.descents.algorithm import Algorithm
from jaxattn.dynamics.descents.descent import descent
from jaxattn.dynamics.descents.gradients import Outputs, loss_and_gradients
from jaxattn.dynamics.descents.optimizers import optimizer
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer

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
    moved = {name: params_by_name.get(params, name) - step_size * g for name, g in gradients.items()}
    return params_by_name.replaced(params, **moved)


class OneStep(Phase, frozen=True, kw_only=True):
    """One full-batch gradient step of size `step_size` on the parameters in `train`; none at all for 0."""

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
