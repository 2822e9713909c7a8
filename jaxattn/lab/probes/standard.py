"""Standard probes used in every study, such as loss and accuracy, and the settings for all measurements."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import optax
from jax import Array

from jaxattn import losses
from jaxattn.base import Measurement, Phase, PhaseProbe, Probe, Task
from jaxattn.base.probe import ProbeContext
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import get, names
from jaxattn.core.scales import FRACTION, NOT_NEGATIVE, Scale
from jaxattn.core.settings import Count, Fraction, PositiveInt
from jaxattn.core.spec import Spec, StudyParts
from jaxattn.lab.probes.directions import MaxMarginDirection
from jaxattn.lab.probes.importance import Importance, OneStepError
from jaxattn.lab.probes.selection import Selected

# Metrics that are means of the study's loss, with its bounds.
LOSSES = ("loss", "test_loss", "validation_loss")
# Metrics added by the engine, mapped to the metric that selects the step. Each is the test accuracy at the
# step at which the selecting metric has its best value so far.
BEST = {
    "test_accuracy_best_on_test": "test_accuracy",
    "test_accuracy_best_on_validation": "validation_accuracy",
}


class Probes(Spec, frozen=True, kw_only=True):
    """Settings for all measurements, and for the steps at which they are taken.

    The first and the last step of a phase are always measured.

    Attributes:
        per_decade: number of log-spaced measurements per decade of steps; with 0, only the first and last
            step of a phase are measured.
        steps: steps at which to measure, instead of `per_decade`: a list for all phases, or a table with one
            list per phase.
        every: number of steps between measurements, instead of `per_decade`: one number for all phases, or a
            table with one number per phase.
        bins: number of equal-width bins between `low` and `high` for the posterior difference; 0 for none.
        low: lower end of the first bin.
        high: upper end of the last bin.
        min_count: minimum number of occurrences for a token to be included in correlations, or to count as
            important.
        important: minimum |posterior difference| for a token to count as important.
        max_margin: True to compare p with the max-margin direction in each phase that trains only p.
        sample: number of evenly spaced sequences per corpus used for losses, accuracies and gradients;
            defaults to all.
        tokens: True to measure attention on tokens, and correlations of E·v and E·p with token importance.
        own: additional probes, built-in or custom.
    """

    per_decade: Count = 8
    steps: tuple[Count, ...] | dict[str, tuple[Count, ...]] | None = None
    every: PositiveInt | dict[str, PositiveInt] | None = None
    bins: Count = 20
    low: float = -1.0
    high: float = 1.0
    min_count: Count = 50
    important: Fraction = 0.5
    max_margin: bool = False
    sample: PositiveInt | None = None
    tokens: bool = True
    own: tuple[Measurement, ...] = ()

    def check(self, *context: StudyParts) -> None:
        """Raise InputError if `low` is not below `high`, or if a phase has both `steps` and `every`."""
        if self.low >= self.high:
            raise InputError(f"probes.low: must be below probes.high = {self.high}, got {self.low}")
        named = _names(self.steps) & _names(self.every)
        if named or (self.steps and self.every and not _names(self.steps) | _names(self.every)):
            key = "".join(f".{name}" for name in sorted(named)[:1])
            raise InputError(
                f"probes.every{key}: cannot be combined with probes.steps{key}; remove one of them"
            )

    def check_phases(self, phases: Sequence[Phase]) -> None:
        """Raise InputError if an option names an unknown phase, or a listed step is beyond the last step."""
        known = {phase.name: phase for phase in phases}
        for key, value in (("steps", self.steps), ("every", self.every)):
            if unknown := sorted(_names(value) - known.keys()):
                raise InputError(
                    f"probes.{key}.{unknown[0]}: no such phase; choose one of {', '.join(known)}"
                )
        listed = self.steps if isinstance(self.steps, dict) else {"": self.steps}
        for name, steps in listed.items():
            ends = [_end(phase) for phase in ([known[name]] if name else phases)] if steps else []
            if steps and max(steps) > max(ends):
                key, whose = (f".{name}", "the phase") if name else ("", "the longest phase")
                raise InputError(
                    f"probes.steps{key}: {max(steps)} is past the last step; {whose} ends at step {max(ends)}"
                )

    def steps_of(self, phase: Phase) -> list[int]:
        """Return the steps at which to measure a phase, in ascending order, including 0 and the last step."""
        steps, every, end = _of(self.steps, phase), _of(self.every, phase), _end(phase)
        if phase.name in _names(self.every) or (every and not steps):
            return sorted({*range(0, end, every), end})
        if steps:
            return sorted({0, *(step for step in steps if step < end), end})
        return phase.probe_steps(self.per_decade) if self.per_decade else sorted({0, end})

    @property
    def at_steps(self) -> tuple[Probe, ...]:
        """Probes evaluated at individual steps, through `measure(context)`."""
        binned = Importance(bins=self.bins, low=self.low, high=self.high, min_count=self.min_count)
        selected = Selected(important=self.important, min_count=self.min_count)
        of_tokens = (selected, binned) if self.tokens else ()
        own = tuple(probe for probe in self.own if isinstance(probe, Probe))
        return Fit(), Accuracy(), *of_tokens, OneStepError(), *own

    @property
    def of_phases(self) -> tuple[PhaseProbe, ...]:
        """Probes for whole phases, evaluated through `observe(phase, state)` and `conclude(history, ...)`."""
        own = tuple(probe for probe in self.own if isinstance(probe, PhaseProbe))
        return (*((MaxMarginDirection(),) if self.max_margin else ()), *own)


class Fit(Probe, frozen=True, kw_only=True):
    """Losses, logarithm of the gradient norm, and norm of p."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "loss": "loss",
        "test_loss": "test loss",
        "validation_loss": "validation loss",
        "p_norm": r"$\Vert p\Vert$",
        "log_gradient_norm": r"$\log\,\Vert\nabla L\Vert$",
        "evaluations": "gradient evaluations",
    }
    scales: ClassVar[dict[str, Scale]] = {"p_norm": NOT_NEGATIVE}

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed."""
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
    """Accuracy on training, test and validation data.

    An example is predicted correctly if its output has the sign of the label, or, for K > 2 classes, if the
    output for its class is larger than all others. An output of 0, or a tie for the largest output, counts as
    wrong. Differences of at most 16 machine epsilons times the largest output count as ties.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {
        "accuracy": "accuracy",
        "train_accuracy": "training accuracy",
        "test_accuracy": "test accuracy",
        "test_accuracy_best_on_test": "best test accuracy so far, chosen on the test set",
        "test_accuracy_best_on_validation": "test accuracy where the validation accuracy was best so far",
        "validation_accuracy": "validation accuracy",
    }
    scales: ClassVar[dict[str, Scale]] = dict.fromkeys(labels, FRACTION)

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped in this phase, or None if it applies.

        The probe requires class labels as targets, and a loss that is a sum over examples.
        """
        if task.data.train.num_classes is None:
            return "requires targets that are classes"
        return "requires a per-example loss" if task.loss.coupled else None

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed."""
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


def _names(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


def _of(value: Any, phase: Any) -> Any:
    """Return the value of a setting for a phase, or None if the setting applies only to other phases."""
    return value.get(phase.name) if isinstance(value, dict) else value


def _end(phase: Any) -> int:
    return int(phase.probe_steps(1)[-1])
