"""Explanations for a results page: the meaning of the verdicts, and how many intervals miss by chance."""

import math
from collections.abc import Sequence

from jaxattn.lab.books.findings import Finding
from jaxattn.lab.results.intervals import LEVEL
from jaxattn.lab.results.judge import ENOUGH_SEEDS, Basis

# Fraction of seeds for which a yes/no statement must hold.
REQUIRED = 0.9
# Minimum number of seeds that can decide a yes/no statement: if it holds for all n seeds, the lower end of
# the interval is 0.025^(1/n).
DECIDING_SEEDS = math.ceil(math.log(0.025) / math.log(REQUIRED))

_INTERVALS = (
    "Intervals are 95 % intervals over seeds: Student's t interval for a mean, a jackknife interval for "
    "a statistic of all seeds together, and the Clopper-Pearson interval for a share of seeds. A single "
    "seed has no interval. If all seeds give the same number there is no interval either; from "
    f"{ENOUGH_SEEDS} seeds on the number itself is then compared with the criterion."
)
_RULES: dict[Basis, str] = {
    "published": "A number agrees if its whole interval is within the criterion, and differs if none of "
    "the interval is. It is inconclusive if a part of the interval is within the criterion, or if there "
    "is no interval. A number without a criterion is reported without a verdict. The interval of the centre "
    "of a bin is at least as wide as the bin.",
    "promised": "A number that the theory promises holds if its whole interval is within the criterion, "
    "and fails if none of the interval is. Otherwise it is inconclusive. A promise without a criterion "
    "is inconclusive too, because it is a limit that no finite run reaches. A yes/no statement is "
    f"measured by the share of seeds that satisfy it. Its criterion is a share of at least {REQUIRED:g}, "
    f"which {DECIDING_SEEDS} seeds or more can show. The number of seeds has to be chosen before the run: "
    "adding seeds until a statement holds makes any statement hold.",
    "beyond": "The same rule applies to numbers that the theory does not promise: such a number holds, "
    "does not hold, or is inconclusive. It holds for some seeds if the share of seeds is below the "
    "criterion but not zero. It is only measured if it has no criterion.",
}
_OLD = (
    "Some intervals of this page are percentile bootstrap intervals of an earlier version, which cover "
    "less than 95 % with few seeds. With fewer than six seeds that version also resampled the tokens "
    "within bins."
)
CERTIFICATES = (
    "A certificate is a numerical proof: a duality gap, which bounds the distance of the computed "
    "max-margin direction from the true one, and a primal residual. In settings, V is the size of the "
    "vocabulary, n the number of sequences, T their length, d the dimension, and η0 the size of the one "
    "step on E."
)
_FILES = {
    "cannot tell": "The files record an inconclusive number as `cannot tell`.",
    "undecided": "The files record an inconclusive number as `undecided`.",
    "holds there too": "The files record a number that holds without a promise as `holds there too`.",
}


def rules(findings: Sequence[Finding]) -> list[str]:
    """Return paragraphs that explain the verdicts and intervals of the findings."""
    bases = {finding.basis or "published" for finding in findings} or {"published"}
    return [
        *(
            text
            for basis, text in _RULES.items()
            if basis in bases or (not findings and basis == "published")
        ),
        _INTERVALS,
        *([CERTIFICATES] if any(finding.certificate != "-" for finding in findings) else []),
        *([expected_misses(findings)] if any(finding.criterion for finding in findings) else []),
        *(text for word, text in _FILES.items() if any(finding.verdict == word for finding in findings)),
        *([_OLD] if any(finding.old for finding in findings) else []),
    ]


def expected_misses(findings: Sequence[Finding]) -> str:
    """Return a sentence with the number of intervals that are expected to miss the true value by chance."""
    judged = sum(finding.criterion is not None for finding in findings)
    return (
        f"{judged} of {len(findings)} numbers have a criterion. At a coverage of {100 * LEVEL:.0f} % up "
        f"to {(1 - LEVEL) * judged:.1f} of these {judged} intervals are expected to miss the true number "
        "by chance. Numbers of the same runs are not independent, so they may miss together."
    )


def too_few(seeds: int) -> str:
    """Return a warning if there are too few seeds to decide a yes/no statement, else ""."""
    if seeds >= DECIDING_SEEDS:
        return ""
    return (
        f"{seeds} seeds are too few for yes/no statements to hold: the whole interval of the share must be "
        f"above {REQUIRED:g}, which requires {DECIDING_SEEDS} seeds or more"
    )
