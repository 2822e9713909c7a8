"""A row of the scoreboard: one measured number of one claim, with its interval, tolerance and verdict.

Every number has a 95 % interval over seeds: Student's for a mean, that of Clopper and Pearson for a share of
seeds. It has none where all seeds give the same number, which is then held against the tolerance itself, from
six seeds on. Where the theory says what the number should be it has a tolerance. The verdict is read off
these two, by one rule for every row:

    promised by the theory   not promised       when
    holds                    holds there too    the whole interval lies within the tolerance
    fails                    does not hold      none of it does
    undecided                undecided          it straddles, or there is no interval

Two cases are named apart. "holds for some": not promised, the share of seeds is below the tolerance and not
zero. A row without a tolerance is "undecided" if it is promised (a limit that no finite run reaches) and
"measured" if not. Every row is over the seeds that have a value; how many have none, and why, stands beside
their number.

The number of seeds is to be chosen before the run. Whoever adds seeds until a row holds, and stops there,
will see any row hold in the end.

A yes/no claim is a share of seeds and has to hold with high probability: its tolerance is a share of at
least 0.9. All of n seeds reach that from n = 36 on; with fewer seeds such a claim can fail but not hold.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxattn.results.intervals import clopper_pearson, held, student_t
from jaxattn.results.numbers import brief, format_number, with_interval

REQUIRED = 0.9
# With so many seeds a yes/no claim can hold: if all of n do, its interval begins at 0.025^(1/n).
DECIDING_SEEDS = math.ceil(math.log(0.025) / math.log(REQUIRED))

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
        low, high: its 95 % interval, NaN for none.
        seeds: how many seeds it comes from: those that have a value.
        hits: for a share, the number of seeds behind it.
        tolerance: where the theory wants it; None where nothing is to be met.
        certificate: what proves the reference that was measured against, "-" if there is none.
        missing: how many seeds have no value.
        why: why they have none.
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
    missing: int = 0
    why: str = ""

    @property
    def verdict(self) -> str:
        """What the interval and the tolerance say; the module lists all answers."""
        promised, tolerance = self.claim.promised, self.tolerance
        if tolerance is None:
            return UNDECIDED if promised or not self.seeds else MEASURED
        where = held(self.value, self.low, self.high, self.seeds, (tolerance.low, tolerance.high))
        if where == "inside":
            return HOLDS if promised else HOLDS_TOO
        if where != "outside":
            return UNDECIDED
        if promised:
            return FAILS
        return HOLDS_SOME if self.hits else HOLDS_NOT

    @property
    def text(self) -> str:
        """The value with its interval, such as "-0.499 [-0.518, -0.481]" or "64 of 64 [0.944, 1.00]"."""
        if not self.seeds:
            return "no value"
        if self.hits is not None:
            return f"{self.hits} of {self.seeds} [{format_number(self.low)}, {format_number(self.high)}]"
        same = f" in all {self.seeds}" if self.seeds > 1 and math.isnan(self.low) else ""
        return with_interval(self.value, self.low, self.high) + same

    @property
    def counted(self) -> str:
        """How many seeds have a value, such as "64" or "995 of 1000: the flow met NaN"."""
        if not self.missing:
            return str(self.seeds)
        return f"{self.seeds} of {self.seeds + self.missing}: in {self.missing} {self.why or 'it is NaN'}"


def share(
    claim: Claim, measured: str, satisfied: Any, *, known: Any = True, certificate: str = "-", why: str = ""
) -> Row:
    """Make the row of a yes/no claim: the share of seeds that satisfy it.

    Args:
        claim: what it is about.
        measured: what a seed has to satisfy.
        satisfied: (S,) bool.
        known: (S,) bool; which seeds have a value.
        certificate: see `Row`.
        why: see `Row`.

    Returns:
        The row, with the Clopper-Pearson interval of the share.
    """
    satisfied, known = np.broadcast_arrays(satisfied, known)
    hits, seeds = int(np.sum(satisfied & known)), int(known.sum())
    low, high = clopper_pearson(hits, seeds) if seeds else (math.nan, math.nan)
    value = hits / seeds if seeds else math.nan
    beside: Any = {"certificate": certificate, "missing": len(known) - seeds, "why": why}
    return Row(claim, measured, value, float(low), float(high), seeds, hits, at_least(REQUIRED), **beside)


def mean(
    claim: Claim,
    measured: str,
    samples: Any,
    tolerance: Tolerance | None = None,
    *,
    between: tuple[float, float] = (-math.inf, math.inf),
    certificate: str = "-",
    why: str = "",
) -> Row:
    """Make the row of a number: its mean over the seeds that have one.

    Args:
        claim: what it is about.
        measured: the number's name.
        samples: (S,) float; one seed each, NaN or inf for one without a value.
        tolerance: where the mean has to lie.
        between: what the number can be at all; the interval is cut there.
        certificate: see `Row`.
        why: see `Row`.

    Returns:
        The row, with Student's t interval of the mean (NaN for a single seed, and for equal ones).
    """
    samples = np.asarray(samples, float)
    found = samples[np.isfinite(samples)]
    low, high = np.clip(student_t(found), *between).tolist()
    value = float(found.mean()) if len(found) else math.nan
    beside: Any = {"certificate": certificate, "missing": len(samples) - len(found), "why": why}
    return Row(claim, measured, value, low, high, len(found), tolerance=tolerance, **beside)
