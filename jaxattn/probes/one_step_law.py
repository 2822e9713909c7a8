"""Probe: how far one step on E is from the one-step law."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from jaxattn.probes.seen import Seen
from jaxattn.spec import Spec
from jaxattn.theory.one_step_law import values_by_law


class OneStepError(Spec, frozen=True, kw_only=True):
    """Distance of E·v to the one-step law per unit of η0, max_s |(E_s¹ - E_s⁰)·v - η0 α_s/2| / η0.

    Only where the law is: after one step on E alone in the one-layer model with the logistic loss.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {"one_step_error": r"one-step error per unit $\eta_0$"}
    from_step: ClassVar[int] = 1

    def applies(self, model: Any, loss: Any, phase: Any) -> bool:
        """Tell whether the law speaks of a phase."""
        return (
            getattr(phase, "one_step", False)
            and tuple(phase.train) == ("E",)
            and getattr(model, "is_one_layer", False)
            and getattr(loss, "is_logistic", False)
        )

    def remember(self, params: Any) -> Array:
        """Remember E v of the start."""
        return params.E @ params.v

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure one seed after the step."""
        change = seen.params.E @ seen.params.v - seen.memory
        step_size, tokens = seen.phase.step_size, seen.corpora.tokens
        # Two classes: α has one column. It is known, and takes long to compile.
        predicted = values_by_law(tokens.alpha[:, 0], 2, step_size)
        return {"one_step_error": jnp.abs(change - predicted).max() / step_size}
