"""Probe: how far one step on E is from the one-step law, in the embeddings themselves."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from jaxattn.probes.one_step_law import OneStepError
from jaxattn.probes.seen import Seen
from jaxattn.theory import predicted_values


class OneStepEmbeddings(OneStepError, frozen=True, kw_only=True):
    """Distance of E to the one-step law per unit of η0, max_s ‖E_s¹ - E_s⁰ - (η0/2) α_s v‖ / η0.

    For K classes the law is η0 Σ_k α_{s,k} v_k.
    """

    labels: ClassVar[dict[str, str]] = {"embedding_error": r"one-step error of $E$ per unit $\eta_0$"}

    def remember(self, params: Any) -> Array:
        """Remember E of the start."""
        return params.E

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure one seed after the step."""
        E, v, step_size = seen.params.E, seen.params.v, seen.phase.step_size
        predicted = predicted_values(seen.data.train, step_size)
        law = jnp.outer(predicted, v) if predicted.ndim == 1 else predicted @ v.T
        return {"embedding_error": jnp.linalg.norm(E - seen.memory - law, axis=1).max() / step_size}
