"""A row of the scoreboard: one measured number of one claim, with its interval, criterion and verdict."""

import math
from dataclasses import dataclass
from typing import Any

from jaxattn.results import judge
from jaxattn.results.judge import Criterion, Estimate, at_least
from jaxattn.results.labels import format_number

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
