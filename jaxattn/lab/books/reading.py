"""How to read a page of a book: the rule of its verdicts, and how many of them are wrong by chance."""

import math
from collections.abc import Sequence

from jaxattn.lab.books.findings import Finding
from jaxattn.lab.results.intervals import LEVEL
from jaxattn.lab.results.judge import ENOUGH_SEEDS, Basis

# The share of seeds for which a yes/no statement has to hold.
REQUIRED = 0.9
# With so many seeds a yes/no statement can hold: if all of n do, the interval begins at 0.025^(1/n).
DECIDING_SEEDS = math.ceil(math.log(0.025) / math.log(REQUIRED))

_INTERVALS = (
    "Intervals are 95 % intervals over seeds: Student's t for a mean, the jackknife where all seeds "
    "together make a number, Clopper and Pearson for a share of seeds. One seed has none. A number that "
    f"is the same for all seeds has none either; from {ENOUGH_SEEDS} seeds on it is compared with the "
    "criterion itself."
)
_RULES: dict[Basis, str] = {
    "published": "A published number agrees if the whole interval is within the criterion, differs if "
    "none of it is, and cannot tell if part of it is or there is no interval. It is only measured if "
    "nothing is published to compare it with. The interval of a bin is never narrower than the bin.",
    "promised": "A number that the theory promises holds if the whole interval is within the criterion, "
    "fails if none of it is, and is undecided otherwise; so is a promise without a criterion, which is a "
    "limit that no finite run reaches. A yes/no statement is a share of seeds and has to hold with high "
    f"probability: its criterion is a share of at least {REQUIRED:g}, which {DECIDING_SEEDS} seeds or "
    "more can show. The number of seeds has to be chosen before the run: adding seeds until a statement "
    "holds makes any statement hold.",
    "beyond": "Where the theory promises nothing, a number holds there too, does not hold, or is "
    "undecided by the same rule; it holds for some if the share of seeds is below the criterion and not "
    "zero, and is measured if it has no criterion.",
}
_OLD = (
    "Not yet on this page: intervals of shapes are percentile bootstrap intervals, which cover less than "
    "95 % with few seeds; with fewer than six, tokens within bins were resampled as well. They will be "
    "computed again."
)
CERTIFICATES = (
    "A certificate is a proof by numbers: a duality gap that bounds the distance of the computed "
    "max-margin direction from the true one, and a primal residual. In settings, V is the size of the "
    "vocabulary, n the number of sequences, T their length, d the dimension and η0 the size of the one "
    "step on E."
)


def rules(findings: Sequence[Finding]) -> list[str]:
    """List the paragraphs that explain the verdicts and intervals of some findings."""
    bases = {finding.basis or "published" for finding in findings} or {"published"}
    return [
        *(
            text
            for basis, text in _RULES.items()
            if basis in bases or (not findings and basis == "published")
        ),
        _INTERVALS,
        *([CERTIFICATES] if any(finding.certificate != "-" for finding in findings) else []),
        *([chances(findings)] if any(finding.criterion for finding in findings) else []),
        *([_OLD] if any(finding.old for finding in findings) else []),
    ]


def chances(findings: Sequence[Finding]) -> str:
    """Tell how many of the judged intervals are expected to miss their number by chance."""
    judged = sum(finding.criterion is not None for finding in findings)
    return (
        f"{judged} of {len(findings)} numbers are compared with a criterion. At {LEVEL:.0%} up to "
        f"{(1 - LEVEL) * judged:.1f} of these {judged} intervals are expected to miss their number by chance "
        "alone; numbers of the same runs miss together."
    )


def too_few(seeds: int) -> str:
    """Warn that so few seeds decide no yes/no statement; "" if they do."""
    if seeds >= DECIDING_SEEDS:
        return ""
    return (
        f"{seeds} seeds are too few for yes/no statements to hold: the whole interval of the share has to "
        f"be above {REQUIRED:g}, which takes {DECIDING_SEEDS} seeds or more; with {seeds} they can only "
        "fail"
    )
