"""Probe: how far one step on E is from the one-step law."""

from typing import Any, ClassVar

from jax import Array

from jaxattn.base import Phase, Probe, Task
from jaxattn.probes.seen import Seen, wants_one_layer
from jaxattn.theory import one_step_error


class OneStepError(Probe, frozen=True, kw_only=True):
    """Distance of E·v to the one-step law per unit of η0, max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0.

    Only where the law is: after one step on E alone in the one-layer model with the logistic loss.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {"one_step_error": r"one-step error per unit $\eta_0$"}
    from_step: ClassVar[int] = 1

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say what the law does not speak of."""
        return wants_one_layer(task, phase, ("E",)) if phase.one_step else "wants a phase of one full step"

    def remember(self, params: Any) -> Array:
        """Remember E v of the start."""
        return params.E @ params.v

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure one seed after the step."""
        change = seen.params.E @ seen.params.v - seen.memory
        train, alpha = seen.data.train, seen.data.tokens.alpha
        # Two classes share the one column.
        alpha = alpha[:, 0] if train.num_classes == 2 else alpha
        return {"one_step_error": one_step_error(change, train, seen.phase.step_size, alpha)}
