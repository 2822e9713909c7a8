"""What a study measures on the way: the settings of the standard probes, and which others it has."""

from typing import Any

from jaxattn.base import Measurement, Phase, PhaseProbe, Probe
from jaxattn.errors import InputError
from jaxattn.probes.fit import Fit
from jaxattn.probes.importance import Importance
from jaxattn.probes.max_margin import MaxMarginDirection
from jaxattn.probes.one_step_law import OneStepError
from jaxattn.probes.selection import Selected
from jaxattn.spec import Count, Share, Spec


class Probes(Spec, frozen=True, kw_only=True):
    """What is measured on the way, at log-spaced steps.

    Attributes:
        per_decade: probe steps in every factor of ten of the steps; 0 for both ends of a phase alone.
        bins: equal bins of the posterior difference over [`low`, `high`]; none for 0.
        low: lower end of the first bin.
        high: upper end of the last bin.
        min_count: tokens that occur less often are in no correlation over tokens, and not important.
        important: tokens with |posterior difference| of at least this are important.
        max_margin: whether every phase that moves p alone ends by finding the max-margin direction of its
            selection, against which every probe's p is held.
        tokens: whether attention on tokens, and what E·v and E·p know of their importance, is measured.
        own: further probes, built in or the user's.
    """

    per_decade: Count = 8
    bins: Count = 20
    low: float = -1.0
    high: float = 1.0
    min_count: Count = 50
    important: Share = 0.5
    max_margin: bool = False
    tokens: bool = True
    own: tuple[Measurement, ...] = ()

    def check(self, *context: Any) -> None:
        """Raise InputError if the bins have no width."""
        if self.low >= self.high:
            raise InputError(f"probes.low: {self.low} is not below probes.high = {self.high}")

    def steps(self, phase: Phase) -> list[int]:
        """List the steps of a phase to measure at, 0 and the last among them."""
        return phase.probe_steps(self.per_decade) if self.per_decade else sorted({0, phase.steps})

    @property
    def at_steps(self) -> tuple[Probe, ...]:
        """The probes of single steps: each has `measure(seen)`."""
        binned = Importance(bins=self.bins, low=self.low, high=self.high, min_count=self.min_count)
        selected = Selected(important=self.important, min_count=self.min_count)
        of_tokens = (selected, binned) if self.tokens else ()
        own = tuple(probe for probe in self.own if isinstance(probe, Probe))
        return Fit(), *of_tokens, OneStepError(), *own

    @property
    def of_phases(self) -> tuple[PhaseProbe, ...]:
        """The probes of whole phases: each has `observe(phase, state)` and `conclude(history, ...)`."""
        own = tuple(probe for probe in self.own if isinstance(probe, PhaseProbe))
        return (*((MaxMarginDirection(),) if self.max_margin else ()), *own)
