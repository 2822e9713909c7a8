"""Rows of the scoreboard: numbers of claims with their verdicts, and the cells that they are of."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jaxattn.lab.results import judge
from jaxattn.lab.results.judge import Criterion, Estimate, at_least
from jaxattn.lab.results.labels import brief, format_number, setting
from jaxattn.lab.results.run import Run


@dataclass(frozen=True)
class Cell:
    """One cell of a run; its phase `limit`, if it has one, is an exact flow on p.

    Attributes:
        run: the run.
        cell: the cell's number.
        seeds: how many of the run's seeds count, the first ones.
        texts: name and sizes of texts, empty for synthetic data.
    """

    run: Run
    cell: int
    seeds: int
    texts: str = ""

    def __getitem__(self, key: str) -> Any:
        """Look up a key of the cell's config."""
        return self.run.lookup(self.cell, key)

    def path(self, metric: str, phase: str = "limit") -> np.ndarray:
        """Look up a metric at every step it was measured at, (S, k) float64."""
        return self._paths[phase, metric]

    def last(self, metric: str, phase: str = "limit") -> np.ndarray:
        """Look up a metric at the end of a phase, (S,) float64."""
        return self.path(metric, phase)[:, -1]

    @cached_property
    def _paths(self) -> dict[tuple[str, str], np.ndarray]:
        records = self.run.records
        own = records[(records["cell"] == self.cell) & (records["seed"] < self.seeds)]
        grouped = own.sort_values(["seed", "step"], kind="stable").groupby(["phase", "metric"], sort=False)
        return {name: x.to_numpy().reshape(own["seed"].nunique(), -1) for name, x in grouped["value"]}

    @property
    def data(self) -> str:
        """The data and their sizes."""
        if self.texts:
            return self.texts
        kind = self["data.kind"]
        # Of a function the config has only what was given.
        classes = 2 if ":" in kind else self["data.num_classes"]
        kind = kind.rpartition(":")[2]
        if kind == "multi_relevant":
            kind = f"{self['data.relevant_per_sequence']} relevant tokens per sequence"
        letters = {"V": "vocab_size", "n": "sequences", "T": "length"}
        sizes = [f"{letter} = {self[f'data.{key}']}" for letter, key in letters.items()]
        return ", ".join([kind, *sizes, *([f"K = {classes}"] if classes > 2 else [])])

    @property
    def setting(self) -> str:
        """The data, d and η0."""
        return f"{self.data}, d = {setting(self['model.dim'])}, η0 = {self['phases.step.step_size']:g}"

    @property
    def until_norm(self) -> float:
        """‖p‖ that the flow is followed to."""
        return self["phases.limit.until_norm"]

    @property
    def reached(self) -> np.ndarray:
        """Whether the flow came to that ‖p‖, (S,) bool."""
        return self.last("p_norm") >= self.until_norm

    @property
    def ends(self) -> str:
        """Say where the flows end."""
        there, norm = self.reached, self.last("p_norm")
        before, total = norm[~there & np.isfinite(norm)], len(norm)
        texts = []
        if there.any():
            texts.append(f"‖p‖ = {brief(float(f'{norm[there].min():.2e}'))} in {there.sum()} of {total}")
        if before.size:
            low, high = (f"{end(before):.0f}" for end in (np.min, np.max))
            span = low if low == high else f"{low} to {high}"
            texts.append(f"{before.size} of {total} end at ‖p‖ = {span}")
        if lost := int(np.isnan(norm).sum()):
            texts.append(f"{lost} of {total} have no end: {self.why}")
        return ", ".join(texts)

    @property
    def why(self) -> str:
        """Say why seeds have no value: the reasons of those that failed, if any did."""
        failed = self.run.failures
        own = failed[(failed["cell"] == self.cell) & (failed["seed"] < self.seeds)]
        return " or ".join(own["reason"].unique())

    def certificate(self, prefix: str = "", phase: str = "limit") -> str:
        """Write the worst certificate of all seeds: duality gap, primal residual, how many are certified."""
        names = ("feasible", "duality_gap", "primal_residual")
        feasible, *bounds = (self.last(prefix + name, phase) for name in names)
        certified = feasible == 1
        total = f"{certified.sum()} of {len(certified)} certified"
        if not certified.any():
            return total
        gap, primal = (round_up(np.nanmax(x[certified])) for x in bounds)
        return f"gap ≤ {gap}, primal ≤ {primal}, {total}"


def worst(away: np.ndarray) -> str:
    """Write the largest 1 - cos of the seeds that have one, to go before a certificate; nothing for none."""
    found = away[np.isfinite(away)]
    return f"1 - cos ≤ {round_up(found.max())}, " if found.size else ""


def round_up(x: float) -> str:
    """Write a bound with one digit, never smaller than it is."""
    if x == 0 or not np.isfinite(x):
        return f"{x:g}"
    digit, _, exponent = f"{x:.0e}".partition("e")
    if float(f"{digit}e{exponent}") < x:
        digit, _, exponent = f"{(int(digit) + 1) * 10.0 ** int(exponent):.0e}".partition("e")
    return f"{digit}e{int(exponent)}"


REQUIRED = 0.9
# With so many seeds a yes/no claim can hold: if all of n do, its interval begins at 0.025^(1/n).
DECIDING_SEEDS = math.ceil(math.log(0.025) / math.log(REQUIRED))


@dataclass(frozen=True)
class Claim:
    """What a row is about.

    Attributes:
        name: the claim's id, such as "T4.3".
        statement: what it says of this row's number.
        setting: the data and sizes, in words.
        promised: whether the theory promises it in this setting.
    """

    name: str
    statement: str
    setting: str
    promised: bool = True


@dataclass(frozen=True)
class Row:
    """One line of the scoreboard.

    Attributes:
        claim: what it is about.
        measured: the name of the number.
        estimate: the number, a mean over seeds or a share of them.
        criterion: where the theory wants it; None where nothing is to be met.
        certificate: what proves the reference that was measured against, "-" if there is none.
        why: why seeds have no value.
    """

    claim: Claim
    measured: str
    estimate: Estimate
    criterion: Criterion | None = None
    certificate: str = "-"
    why: str = ""

    @property
    def verdict(self) -> str:
        """What the interval and the criterion say."""
        basis: judge.Basis = "promised" if self.claim.promised else "beyond"
        return judge.verdict(self.estimate, self.criterion, basis)

    @property
    def text(self) -> str:
        """The value with its interval, such as "-0.499 [-0.518, -0.481]" or "64 of 64 [0.944, 1.00]"."""
        _, low, high, seeds, _, hits = self.estimate
        if not seeds:
            return "no value"
        if hits is not None:
            return f"{hits} of {seeds} [{format_number(low)}, {format_number(high)}]"
        return self.estimate.text(f"in all {seeds}")

    @property
    def counted(self) -> str:
        """How many seeds have a value, such as "64" or "995 of 1000: in 5 the flow met NaN"."""
        seeds, missing = self.estimate.seeds, self.estimate.missing
        if not missing:
            return str(seeds)
        return f"{seeds} of {seeds + missing}: in {missing} {self.why or 'it is NaN'}"


def share(
    claim: Claim, measured: str, satisfied: Any, *, known: Any = True, certificate: str = "-", why: str = ""
) -> Row:
    """Make the row of a yes/no claim: the share of seeds that satisfy it, which has to be `REQUIRED` or more.

    Args:
        claim: what it is about.
        measured: what a seed has to satisfy.
        satisfied: (S,) bool.
        known: (S,) bool; which seeds have a value.
        certificate: see `Row`.
        why: see `Row`.
    """
    return Row(claim, measured, judge.share(satisfied, known), at_least(REQUIRED), certificate, why)


def mean(
    claim: Claim,
    measured: str,
    samples: Any,
    criterion: Criterion | None = None,
    *,
    between: tuple[float, float] = judge.ANYTHING,
    certificate: str = "-",
    why: str = "",
) -> Row:
    """Make the row of a number: its mean over the seeds that have one.

    Args:
        claim: what it is about.
        measured: the number's name.
        samples: (S,) float; one seed each, NaN or inf for one without a value.
        criterion: where the mean has to lie.
        between: what the number can be at all; the interval is cut there.
        certificate: see `Row`.
        why: see `Row`.
    """
    return Row(claim, measured, judge.mean(samples, between), criterion, certificate, why)
