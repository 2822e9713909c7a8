"""Probe: how well the corpus is fitted, and how large parameters and gradients are."""

from typing import ClassVar

import jax.numpy as jnp
import optax
from jax import Array

from jaxattn import losses
from jaxattn.base import Probe
from jaxattn.probes.seen import Seen
from jaxattn.trees import get, names

# What the engine adds to them: test accuracies, by the accuracy whose best value so far chooses the step.
BEST = {
    "test_accuracy_best_on_test": "test_accuracy",
    "test_accuracy_best_on_validation": "validation_accuracy",
}


class Fit(Probe, frozen=True, kw_only=True):
    """Loss and accuracy on every corpus, log of the gradient's norm, and ‖p‖."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "loss": "loss",
        "accuracy": "accuracy",
        "train_accuracy": "training accuracy",
        "test_accuracy": "test accuracy",
        "test_accuracy_best_on_test": "best test accuracy so far, chosen on the test set",
        "test_accuracy_best_on_validation": "test accuracy where the validation accuracy was best so far",
        "test_loss": "test loss",
        "validation_accuracy": "validation accuracy",
        "validation_loss": "validation loss",
        "p_norm": r"$\Vert p\Vert$",
        "log_gradient_norm": r"$\log\,\Vert\nabla L\Vert$",
        "evaluations": "gradient evaluations",
    }

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure one seed."""
        loss, gradients = seen.loss_and_gradients
        train = seen.data.train
        found = {"loss": loss, "train_accuracy": losses.accuracy(seen.outputs(train), train.targets)}
        if "p" in names(seen.params):
            found["p_norm"] = jnp.linalg.norm(get(seen.params, "p"))
        found["log_gradient_norm"] = jnp.log(optax.tree.norm(gradients))
        for name, held_out in (("test", seen.data.test), ("validation", seen.data.validation)):
            if held_out is not None:
                outputs = seen.outputs(held_out)
                found[f"{name}_loss"] = losses.mean(seen.per_sequence, outputs, held_out.targets)
                found[f"{name}_accuracy"] = losses.accuracy(outputs, held_out.targets)
        return found
