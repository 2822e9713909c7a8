"""Findings: numbers that a check measures, with the published value, the criterion and the verdict."""

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from jaxattn.core.errors import InputError, counted
from jaxattn.core.settings import Count
from jaxattn.lab.refute.search import NONE
from jaxattn.lab.results import judge
from jaxattn.lab.results.judge import AGREES, ANYTHING, DIFFERS, INCONCLUSIVE, Criterion, Estimate
from jaxattn.lab.results.labels import format_number

# Origin of a criterion: a publication, the theory that is tested, or an expectation that no source states.
Basis = Literal["published", "theory", "beyond"]
# Settings of an item relative to those of its claim; see `claim_verdict`.
Settings = Literal["own", "chosen", "reduced"]
# What was read of the statement of a claim: the paper, a quotation by others, or an abstract or summary.
Read = Literal["source", "transcription", "abstract"]
VERIFIED, FALSIFIED, TOY = "verified", "falsified", "toy"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Number measured in the results of an item, with the criterion that it should satisfy.

    `mean`, `share` and `leave_one_out` build findings from values of all seeds.

    Attributes:
        id: name that identifies the finding within its item, without spaces, such as "slope" or "adam.slope".
        text: description of the number for readers.
        value: the number; NaN if it could not be measured.
        interval: 95 % interval, or None if there is none.
        counts: (hits, seeds) if the number is a fraction of seeds, else None.
        expected: the criterion, such as `around(0.5, 0.02)`; None if nothing is expected.
        published: the published value as text.
        source: place of the published value, such as "Figure 2"; by default that of the item.
        basis: origin of the criterion: "published", "theory" for a consequence of the theory that is tested,
            or "beyond" for an expectation that no source states, which does not count for the claim.
        seeds: number of seeds with a value.
        missing: number of seeds without a value.
        why: reason why seeds have no value.
        unit: what is counted as a seed, if it is something else, such as "run" or "draw".
        resolution: smallest difference that the measurement resolves, such as the width of a bin.
        claim: the statement that the number tests, if the item has several.
        setting: description of the data and sizes, if the item has several.
        certificate: certificate of the reference value.
        sensitivity: (hits, draws); in how many random choices of unpublished settings the number satisfies
            its criterion.
        search: verdict of a search for counterexamples to the claim, such as "falsified"; "" if the number
            was measured. See `jaxattn.lab.refute.Refutation`.
    """

    id: str
    text: str
    value: float
    interval: tuple[float, float] | None = None
    counts: tuple[Count, Count] | None = None
    expected: Criterion | None = None
    published: str = ""
    source: str = ""
    basis: Basis = "published"
    seeds: Count = 0
    missing: Count = 0
    why: str = ""
    unit: str = "seed"
    resolution: float = 0.0
    claim: str = ""
    setting: str = ""
    certificate: str = ""
    sensitivity: tuple[Count, Count] | None = None
    search: str = ""

    def __post_init__(self) -> None:
        """Raise InputError unless the id is not empty and has no spaces."""
        if not self.id or re.search(r"\s", self.id):
            raise InputError(f"{self.id!r}: an id has no spaces, such as slope or adam.slope; see `slug`")

    @property
    def estimate(self) -> Estimate:
        """Return the number, its interval and its seeds as an estimate."""
        low, high = self.interval or (np.nan, np.nan)
        hits = self.counts[0] if self.counts else None
        return Estimate(self.value, low, high, self.seeds, self.missing, hits)

    @property
    def verdict(self) -> str:
        """Return "agrees", "differs" or "inconclusive"; "" if nothing is expected.

        A consequence of the theory without a criterion is inconclusive: it is a limit that no finite run
        reaches.
        """
        if self.expected is None:
            return INCONCLUSIVE if self.basis == "theory" else ""
        return judge.verdict(self.estimate, self.expected, resolution=self.resolution)

    @property
    def measured(self) -> str:
        """Format the number: "-0.499 [-0.518, -0.481]", "64 of 64 [0.944, 1.00]" or "0.11, bins of 0.097"."""
        low, high = self.interval or (np.nan, np.nan)
        if not (self.seeds or np.isfinite(self.value)):
            return "no value"
        if self.counts and self.seeds:
            return f"{self.counts[0]} of {self.seeds} [{format_number(low)}, {format_number(high)}]"
        if low == high:  # an exact number
            return format_number(self.value)
        text = self.estimate.text(f"(no spread over {counted(self.seeds, self.unit)})")
        return f"{text}, bins of {format_number(self.resolution)}" if self.resolution else text

    @property
    def counted(self) -> str:
        """Return the sample size as text, such as "64 seeds" or "60 of 64 seeds: in 4 REASON"."""
        if not self.seeds and math.isfinite(self.value):
            return self.unit  # an exact number, such as that of a certificate
        if not self.missing:
            return counted(self.seeds, self.unit)
        some = f"{self.seeds} of {counted(self.seeds + self.missing, self.unit)}"
        return f"{some}: in {self.missing} {self.why}" if self.why else f"{some} have a value"


def mean(
    id: str, text: str, samples: ArrayLike, *, between: tuple[float, float] = ANYTHING, **about: Any
) -> Finding:
    """Build a finding for the mean over seeds, with Student's t interval.

    Args:
        id: id of the finding.
        text: description of the quantity.
        samples: (S,) float; NaN or inf for a seed without a value.
        between: possible range of the quantity; the interval is clipped to it.
        about: further fields of `Finding`.

    Example:
        >>> from jaxattn.lab import books
        >>> slope = books.mean("slope", "slope of E·v", [0.4, 0.5, 0.6], expected=books.around(0.5, 0.5))
        >>> slope.measured, slope.verdict
        ('0.50 [0.25, 0.75]', 'agrees')
    """
    return of_estimate(id, text, judge.mean(samples, between), **about)


def share(id: str, text: str, satisfied: ArrayLike, *, known: ArrayLike = True, **about: Any) -> Finding:
    """Build a finding for the fraction of seeds that satisfy a condition, with a Clopper-Pearson interval.

    Args:
        id: id of the finding.
        text: description of the condition.
        satisfied: (S,) bool.
        known: (S,) bool; False for seeds to exclude.
        about: further fields of `Finding`.

    Example:
        >>> from jaxattn.lab import books
        >>> books.share("limit", "p converges", [True, True, False]).measured
        '2 of 3 [0.0943, 0.992]'
    """
    return of_estimate(id, text, judge.share(satisfied, np.asarray(known, bool)), **about)


def leave_one_out(
    id: str, text: str, rows: ArrayLike, *, between: tuple[float, float] = ANYTHING, **about: Any
) -> Finding:
    """Build a finding for a statistic of all seeds together, with a jackknife interval.

    Args:
        id: id of the finding.
        text: description of the statistic.
        rows: (1 + S,) float; the statistic over all seeds, followed by its value with each seed left out;
            (1,) for one seed.
        between: possible range of the statistic; the interval is clipped to it.
        about: further fields of `Finding`. A `resolution` is used only if all rows are finite.

    Example:
        >>> from jaxattn.lab import books
        >>> books.leave_one_out("rank", "Spearman", [0.9, 0.8, 0.9, 1.0]).measured
        '0.90 [0.40, 1.40]'
    """
    if not np.isfinite(rows).all():
        about["resolution"] = 0.0
    return of_estimate(id, text, judge.jackknifed(rows, between), **about)


def of_estimate(id: str, text: str, estimate: Estimate, **about: Any) -> Finding:
    """Build a finding from an estimate with its interval.

    Example:
        >>> from jaxattn.lab import books
        >>> from jaxattn.lab.results import judge
        >>> books.of_estimate("x", "a mean", judge.mean([1.0, 1.0, 1.0])).value
        1.0
    """
    value, low, high, seeds, missing, hits = estimate
    interval = (low, high) if np.isfinite([low, high]).all() else None
    counts = None if hits is None else (hits, seeds)
    return Finding(id, text, value, interval, counts, seeds=seeds, missing=missing, **about)


_LETTERS = {"α": "alpha", "β": "beta", "ε": "epsilon", "η": "eta", "λ": "lambda", "ρ": "rho", "∞": "inf"}


def slug(text: str) -> str:
    """Convert text, such as the name of a cell, to a part of an id: "n = 3, SGD" becomes "n=3-sgd".

    Example:
        >>> from jaxattn.lab import books
        >>> books.slug("n = 3, SGD")
        'n=3-sgd'
    """
    for letter, name in _LETTERS.items():
        text = text.replace(letter, name)
    text = re.sub(r"\s*=\s*", "=", text.lower())
    return re.sub(r"[^a-z0-9=.]+", "-", text).strip("-")


def claim_verdict(findings: Sequence[Finding], settings: Settings, read: Read = "source") -> str:
    """Return the verdict on a claim: "verified", "falsified", "toy" or "inconclusive"; "" without a test.

    Numbers without a criterion, and those with the basis "beyond", do not count. The verdict of a search for
    counterexamples is that on the claim if it is "falsified", or if nothing else tests the claim. A claim is

    - toy if the settings are far below its own (`settings` is "reduced");
    - falsified if a number differs in its own settings ("own"): the published ones, or settings that meet all
      assumptions of a theorem;
    - verified if all numbers agree;
    - inconclusive otherwise. In particular, a number that differs in settings that were chosen here, because
      they are not published ("chosen"), falsifies nothing. A claim that was read in an abstract alone is
      neither verified nor falsified.

    Args:
        findings: the numbers that test the claim.
        settings: the settings of the runs, relative to those of the claim.
        read: what was read of the statement.

    Example:
        >>> from jaxattn.lab import books
        >>> one = books.mean("one", "mean", [1.0, 1.1, 0.9], expected=books.at_least(2.0))
        >>> books.claim_verdict([one], "own"), books.claim_verdict([one], "chosen")
        ('falsified', 'inconclusive')
    """
    searched = [finding.search for finding in findings if finding.search]
    own = [finding for finding in findings if not finding.search and finding.basis != "beyond"]
    verdicts = [finding.verdict for finding in own if finding.verdict]
    if read == "abstract" and (verdicts or any(search != NONE for search in searched)):
        return TOY if settings == "reduced" else INCONCLUSIVE
    if FALSIFIED in searched or not verdicts:
        return FALSIFIED if FALSIFIED in searched else next(iter(searched), "")
    if settings == "reduced":
        return TOY
    if DIFFERS in verdicts and settings == "own":
        return FALSIFIED
    return VERIFIED if all(verdict == AGREES for verdict in verdicts) else INCONCLUSIVE


def tally(findings: Sequence[Finding]) -> str:
    """Count verdicts on numbers, such as "7 of 9 numbers agree, 1 differs; beyond the claim 1 of 2 agrees".

    Numbers without a criterion are not counted, unless all are. Searches are described by their instances.
    """
    searched = [f"{'in' if x.search == NONE else 'after'} {x.counted}" for x in findings if x.search]
    findings = [finding for finding in findings if not finding.search]
    own = _counts([finding for finding in findings if finding.basis != "beyond"], "number")
    beyond = _counts([finding for finding in findings if finding.basis == "beyond"], "")
    parts = [*searched, own, f"beyond the claim {beyond}" if beyond else ""]
    return "; ".join(filter(None, parts)) or f"{counted(len(findings), 'number')} without a criterion"


def _counts(findings: Sequence[Finding], noun: str) -> str:
    verdicts = [finding.verdict for finding in findings if finding.verdict]
    if not verdicts:
        return ""
    agree, differ, unknown = (verdicts.count(word) for word in (AGREES, DIFFERS, INCONCLUSIVE))
    total = counted(len(verdicts), noun) if noun else str(len(verdicts))
    parts = [f"{agree} of {total} {'agrees' if agree == 1 else 'agree'}"]
    parts += [f"{differ} {'differs' if differ == 1 else 'differ'}"] if differ else []
    return ", ".join([*parts, *([f"{unknown} inconclusive"] if unknown else [])])
