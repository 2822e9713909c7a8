"""A row of the scoreboard: one measured number of one claim, with its interval, tolerance and verdict.

Every number carries a 95 % interval over seeds and, where the theory says what it should be, a tolerance.
The verdict is read off these two, by one rule for every row:

    promised by the theory   not promised       when
    holds                    holds there too    the whole interval lies within the tolerance
    fails                    does not hold      none of it does, or a number is not finite
    undecided                undecided          it straddles: more seeds would tell

Two cases are named apart. "holds for some": not promised, the share of seeds is below the tolerance and not
zero. A row without a tolerance is "undecided" if it is promised (a limit that no finite run reaches) and
"measured" if not.

A yes/no claim is a share of seeds and has to hold with high probability: its tolerance is a share of at
least 0.9. All of n seeds reach that from n = 36 on; with fewer seeds such a claim stays undecided.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxattn.results.intervals import clopper_pearson, student_t
from jaxattn.results.numbers import brief, format_number, with_interval

REQUIRED = 0.9

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
HOLDS_TOO, HOLDS_NOT, HOLDS_SOME, MEASURED = "holds there too", "does not hold", "holds for some", "measured"


@dataclass(frozen=True)
class Tolerance:
    """Where a number has to lie: low ≤ x ≤ high, and how to write that."""

    low: float
    high: float
    text: str


def around(value: float, distance: float) -> Tolerance:
    """Tolerate value ± distance."""
    return Tolerance(value - distance, value + distance, f"{brief(value)} ± {brief(distance)}")


def at_least(value: float) -> Tolerance:
    """Tolerate everything from a value up."""
    return Tolerance(value, math.inf, f"≥ {brief(value)}")


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
        value: the number, a mean over seeds or a share of them.
        low, high: its 95 % interval.
        seeds: how many seeds it comes from.
        hits: for a share, the number of seeds behind it.
        tolerance: where the theory wants it; None where nothing is to be met.
        certificate: what proves the reference that was measured against, "-" if there is none.
    """

    claim: Claim
    measured: str
    value: float
    low: float
    high: float
    seeds: int
    hits: int | None = None
    tolerance: Tolerance | None = None
    certificate: str = "-"

    @property
    def verdict(self) -> str:
        """What the interval and the tolerance say; the module lists all answers."""
        promised, tolerance = self.claim.promised, self.tolerance
        if not np.isfinite([self.value, self.low, self.high]).all():
            return FAILS if promised else HOLDS_NOT
        if tolerance is None:
            return UNDECIDED if promised else MEASURED
        if tolerance.low <= self.low and self.high <= tolerance.high:
            return HOLDS if promised else HOLDS_TOO
        if self.low <= tolerance.high and tolerance.low <= self.high:
            return UNDECIDED
        if promised:
            return FAILS
        return HOLDS_SOME if self.hits else HOLDS_NOT

    @property
    def text(self) -> str:
        """The value with its interval, such as "-0.499 [-0.518, -0.481]" or "64 of 64 [0.944, 1.00]"."""
        if self.hits is None:
            return with_interval(self.value, self.low, self.high)
        return f"{self.hits} of {self.seeds} [{format_number(self.low)}, {format_number(self.high)}]"


def share(claim: Claim, measured: str, satisfied: Any, *, certificate: str = "-") -> Row:
    """Make the row of a yes/no claim: the share of seeds that satisfy it.

    Args:
        claim: what it is about.
        measured: what a seed has to satisfy.
        satisfied: (S,) bool, S ≥ 1.
        certificate: see `Row`.

    Returns:
        The row, with the Clopper-Pearson interval of the share.
    """
    hits, seeds = int(np.sum(satisfied)), len(satisfied)
    low, high = clopper_pearson(hits, seeds)
    return Row(
        claim, measured, hits / seeds, low, high, seeds, hits, at_least(REQUIRED), certificate=certificate
    )


def mean(
    claim: Claim,
    measured: str,
    samples: Any,
    tolerance: Tolerance | None = None,
    *,
    between: tuple[float, float] = (-math.inf, math.inf),
    certificate: str = "-",
) -> Row:
    """Make the row of a number: its mean over seeds.

    Args:
        claim: what it is about.
        measured: the number's name.
        samples: (S,) float; one seed each. One that is not finite makes the row so.
        tolerance: where the mean has to lie.
        between: what the number can be at all; the interval is cut there.
        certificate: see `Row`.

    Returns:
        The row, with Student's t interval of the mean (NaN for a single seed).
    """
    samples = np.asarray(samples, float)
    low, high = np.clip(student_t(samples), *between).tolist()
    return Row(
        claim,
        measured,
        float(samples.mean()),
        low,
        high,
        len(samples),
        tolerance=tolerance,
        certificate=certificate,
    )
