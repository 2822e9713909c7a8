"""Probes: how far one step on E is from the one-step law, in E·v and in E itself."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from jaxattn.base import Phase, Probe, Task
from jaxattn.probes.probe_context import ProbeContext, wants_one_layer
from jaxattn.theory import one_step_error, predicted_values


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

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure one seed after the step."""
        change = context.params.E @ context.params.v - context.memory
        train, alpha = context.data.train, context.data.tokens.alpha
        # Two classes share the one column.
        alpha = alpha[:, 0] if train.num_classes == 2 else alpha
        return {"one_step_error": one_step_error(change, train, context.phase.step_size, alpha)}


class OneStepEmbeddings(OneStepError, frozen=True, kw_only=True):
    """Distance of E to the one-step law per unit of η0, max_s ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0.

    For K classes the law is η0 Σ_k α_{s,k} v_k.
    """

    labels: ClassVar[dict[str, str]] = {"embedding_error": r"one-step error of $E$ per unit $\eta_0$"}

    def remember(self, params: Any) -> Array:
        """Remember E of the start."""
        return params.E

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure one seed after the step."""
        E, v, step_size = context.params.E, context.params.v, context.phase.step_size
        predicted = predicted_values(context.data.train, step_size)
        law = jnp.outer(predicted, v) if predicted.ndim == 1 else predicted @ v.T
        return {"embedding_error": jnp.linalg.norm(E - context.memory - law, axis=1).max() / step_size}
