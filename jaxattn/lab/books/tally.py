"""Count the verdicts of findings, for an item or for a page."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxattn.core.errors import counted
from jaxattn.lab.books.findings import Finding
from jaxattn.lab.results.judge import HOLDS_FOR_SOME, INCONCLUSIVE, MEASURED, VERDICTS, Basis

# Verb phrases, singular and plural, for findings that meet their criterion and for findings that do not.
_HOLDS, _NOT = ("holds", "hold"), ("does not hold", "do not hold")
_VERBS: dict[Basis, tuple[tuple[str, str], tuple[str, str]]] = {
    "published": (("agrees", "agree"), ("differs", "differ")),
    "promised": (_HOLDS, ("fails", "fail")),
    "beyond": (_HOLDS, _NOT),
    "expected": (_HOLDS, _NOT),
}
_LABELS: dict[Basis, str] = {
    "published": "compared with a criterion",
    "promised": "promised by the theory",
    "beyond": "not promised",
    "expected": "expected",
}
_SUBJECTS: dict[Basis, str] = {
    "published": "compared with a criterion",
    "promised": "promised by the theory",
    "beyond": "not promised by the theory, but compared with a criterion",
    "expected": "compared with an expected value",
}


class Tally(NamedTuple):
    """Counts of findings by verdict, for criteria with the same basis.

    Attributes:
        basis: where the criteria come from, such as the theory or a publication.
        within: number of findings that satisfy their criterion.
        outside: number of findings that violate their criterion.
        some: number of findings that hold for only some seeds.
        open: number of inconclusive findings.
    """

    basis: Basis
    within: int
    outside: int
    some: int
    open: int

    @property
    def total(self) -> int:
        """Return the total number of findings."""
        return self.within + self.outside + self.some + self.open

    @property
    def tone(self) -> str:
        """Return the colour for the verdicts: "yes", "no", "open" or "mixed".

        It is "yes" if all findings satisfy their criterion, "no" if more than half violate it, "open" if all
        are inconclusive, and "mixed" otherwise.
        """
        if self.within == self.total:
            return "yes"
        if 2 * self.outside > self.total:
            return "no"
        return "open" if self.open == self.total else "mixed"

    @property
    def text(self) -> str:
        """Return a summary that includes the total, such as "7 of 9 agree, 1 differs, 1 inconclusive"."""
        within = f"{self.within} of {self.total} {_VERBS[self.basis][0][self.within != 1]}"
        return ", ".join([within, *self._others("")])

    @property
    def sentence(self) -> str:
        """Return a summary without the total, such as "7 agree, 1 differs and 1 is inconclusive"."""
        within = [f"{self.within} {_VERBS[self.basis][0][self.within != 1]}"] if self.within else []
        *first, last = [*within, *self._others("is " if self.open == 1 else "are ")]
        return f"{', '.join(first)} and {last}" if first else last

    def _others(self, verb: str) -> list[str]:
        counts = (
            (self.some, f"{_HOLDS[self.some != 1]} for some seeds"),
            (self.outside, _VERBS[self.basis][1][self.outside != 1]),
            (self.open, f"{verb}{INCONCLUSIVE}"),
        )
        return [f"{number} {words}" for number, words in counts if number]


def tallies(findings: Sequence[Finding]) -> list[Tally]:
    """Count verdicts by basis, over findings that have a criterion or are guaranteed by the theory."""
    found = []
    for basis in _VERBS:
        said = [x.verdict for x in findings if x.judged and (x.basis or "published") == basis]
        within, outside = (said.count(word) for word in (VERDICTS[basis].within, VERDICTS[basis].outside))
        some = said.count(HOLDS_FOR_SOME)
        if said:
            found.append(Tally(basis, within, outside, some, len(said) - within - outside - some))
    return found


def labelled_findings(found: Sequence[Tally]) -> list[tuple[str, str]]:
    """Return (text, colour) for each tally. The text includes the basis if there are several tallies."""
    if len(found) == 1:
        return [(found[0].text, found[0].tone)]
    return [(f"{_LABELS[each.basis]}: {each.text}", each.tone) for each in found]


def item_verdict(findings: Sequence[Finding]) -> str:
    """Summarise the verdicts of an item in one line, such as "7 of 9 agree, 1 differs, 1 inconclusive"."""
    return "; ".join(text for text, _ in labelled_findings(tallies(findings))) or MEASURED


def summary(items: Sequence[Sequence[Finding]]) -> str:
    """Summarise the findings of all items in one sentence per basis of the criteria.

    Findings without a criterion are summarised in a further sentence.
    """
    every = [finding for findings in items for finding in findings]
    sentences = []
    for each in tallies(every):
        having = sum(any(own.basis == each.basis for own in tallies(findings)) for findings in items)
        where = (
            f"all {len(items)} items"
            if having == len(items) > 1
            else f"{having} of {counted(len(items), 'item')}"
        )
        numbers = f"{counted(each.total, 'number')} in {where} {'is' if each.total == 1 else 'are'}"
        sentences.append(f"{numbers} {_SUBJECTS[each.basis]}: {each.sentence}.")
    if (free := sum(not finding.judged for finding in every)) and sentences:
        sentences.append(f"{counted(free, 'further number')} {'has' if free == 1 else 'have'} no criterion.")
    return " ".join(sentences) or "No number is compared with a criterion yet."
