"""Probes: how well the data are fitted, and how large parameters and gradients are."""

from typing import ClassVar

import jax.numpy as jnp
import optax
from jax import Array

from jaxattn import losses
from jaxattn.base import Phase, Probe, Task
from jaxattn.core.pytrees import get, names
from jaxattn.probes.probe_context import ProbeContext

# What the engine adds to them: test accuracies, by the accuracy whose best value so far chooses the step.
BEST = {
    "test_accuracy_best_on_test": "test_accuracy",
    "test_accuracy_best_on_validation": "validation_accuracy",
}


class Fit(Probe, frozen=True, kw_only=True):
    """Loss on all data, log of the gradient's norm, and ‖p‖."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "loss": "loss",
        "test_loss": "test loss",
        "validation_loss": "validation loss",
        "p_norm": r"$\Vert p\Vert$",
        "log_gradient_norm": r"$\log\,\Vert\nabla L\Vert$",
        "evaluations": "gradient evaluations",
    }

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure one seed."""
        loss, gradients = context.loss_and_gradients
        found = {"loss": loss}
        if "p" in names(context.params):
            found["p_norm"] = jnp.linalg.norm(get(context.params, "p"))
        found["log_gradient_norm"] = jnp.log(optax.tree.norm(gradients))
        for name, held_out in (("test", context.sampled.test), ("validation", context.sampled.validation)):
            if held_out is not None:
                found[f"{name}_loss"] = losses.mean(context.loss, context.outputs(held_out), held_out.targets)
        return found


class Accuracy(Probe, frozen=True, kw_only=True):
    """Accuracy on all data of targets that are classes, with an output of each, or one for two."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "accuracy": "accuracy",
        "train_accuracy": "training accuracy",
        "test_accuracy": "test accuracy",
        "test_accuracy_best_on_test": "best test accuracy so far, chosen on the test set",
        "test_accuracy_best_on_validation": "test accuracy where the validation accuracy was best so far",
        "validation_accuracy": "validation accuracy",
    }

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants classes, and a loss of single examples, whose outputs are theirs."""
        if task.data.train.num_classes is None:
            return "wants targets that are classes"
        return "wants a loss of single examples" if task.loss.coupled else None

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure one seed."""
        every = {
            "train": context.sampled.train,
            "test": context.sampled.test,
            "validation": context.sampled.validation,
        }
        return {
            f"{name}_accuracy": losses.accuracy(context.outputs(data), data.targets)
            for name, data in every.items()
            if data is not None
        }
