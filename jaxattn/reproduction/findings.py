"""Findings: the numbers of an item, each held against what is published, and their verdicts together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from jaxattn.results import judge
from jaxattn.results.judge import ENOUGH_SEEDS, VERDICTS, Criterion, Estimate

AGREES, DIFFERS, CANNOT_TELL, MEASURED = VERDICTS["published"]
RULE = (
    "A number agrees if its whole 95 % interval lies within the criterion, differs if none of it does, and "
    "cannot tell if it straddles the criterion or has no interval. It is only measured if nothing is "
    "published to hold it against. Intervals are over seeds: Student's t, with the jackknife's standard "
    "error where all seeds together make a number; of shares those of Clopper and Pearson. One seed has "
    "none. Nor has a number that is the same whichever seed is left out, which is held against the "
    f"criterion itself from {ENOUGH_SEEDS} seeds on. An interval of a bin is never narrower than the bin."
)
OLD = (
    "Not so yet on this page: intervals of shapes are percentile bootstrap intervals, which cover less than "
    "95 % with few seeds; with fewer than six, tokens within bins were resampled as well. They will be made "
    "again."
)


@dataclass(frozen=True)
class Finding:
    """One measured number beside what is published.

    Attributes:
        measured: the number's name.
        estimate: the number.
        over: what the interval is over, in words.
        criterion: where it has to lie; None if nothing is published.
        published: the published number, "-" if there is none.
        old: whether it was made by an earlier version, whose intervals were others.
    """

    measured: str
    estimate: Estimate
    over: str
    criterion: Criterion | None = None
    published: str = "-"
    old: bool = False

    @property
    def verdict(self) -> str:
        """What interval and criterion say."""
        return judge.verdict(self.estimate, self.criterion, "published")

    @property
    def text(self) -> str:
        """The number with its interval."""
        return self.estimate.text(f"whichever of {self.estimate.seeds} seeds is left out")


class Measured(NamedTuple):
    """What a run says about an item.

    Attributes:
        findings: numbers.
        tables: further tables by title.
    """

    findings: list[Finding]
    tables: dict[str, pd.DataFrame]


def verdict(findings: Sequence[Finding]) -> str:
    """Put the verdicts of an item together: "agrees", or how many of its findings say what."""
    said = [finding.verdict for finding in findings if finding.criterion is not None]
    if not said:
        return MEASURED
    if len(set(said)) == 1:
        return said[0]
    counts = [f"{word} in {said.count(word)}" for word in (AGREES, DIFFERS, CANNOT_TELL) if word in said]
    return ", ".join(counts)
