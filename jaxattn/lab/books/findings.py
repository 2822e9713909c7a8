"""Findings: numbers of finished runs, with the criteria that an item has for them, and their verdicts.

A measure returns them: a function `(results, item, *, settings) -> Measured`, with one `results` for each of
its studies, whose settings are those of its entry in item.toml.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.books.book import Item
from jaxattn.lab.books.tables import Measure
from jaxattn.lab.results import judge
from jaxattn.lab.results.judge import Basis, Criterion, Estimate
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.results.run import Run
from jaxattn.lab.study.import_paths import ImportPaths

# By `kind`, measures that a book need not define.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"jaxattn.lab.books.metrics:{name}" for name in ("cells", "along", "law")},
        **{
            name: f"jaxattn.lab.books.shapes:{name}"
            for name in ("shapes", "variations", "directions", "beside", "spread", "classes")
        },
        "choices": "jaxattn.lab.books.choices:choices",
    }
)


@dataclass(frozen=True)
class Finding:
    """One measured number, and what it is compared with.

    Attributes:
        measured: the name of the number.
        estimate: the number, a mean over seeds or a share of them.
        over: what the interval is over, in words.
        criterion: where it has to lie; None if there is no such range.
        published: the published number, "-" if there is none.
        basis: who promises the criterion; None for that of its measure.
        cell: a prefix of its name, if findings of other cells are called the same; "" otherwise.
        statement: the statement that it is about, if the item makes several.
        setting: data and sizes, in words.
        certificate: what proves the reference that it was measured against, "-" if there is none.
        why: why seeds have no value.
        old: whether it was made by an earlier version, whose intervals were others.
    """

    measured: str
    estimate: Estimate
    over: str = ""
    criterion: Criterion | None = None
    published: str = "-"
    basis: Basis | None = None
    cell: str = ""
    statement: str = ""
    setting: str = ""
    certificate: str = "-"
    why: str = ""
    old: bool = False

    @property
    def name(self) -> str:
        """Its name, unique among the findings of its measure."""
        return f"{self.cell}: {self.measured}" if self.cell else self.measured

    @property
    def verdict(self) -> str:
        """The verdict of the judge on its interval and criterion."""
        return judge.verdict(self.estimate, self.criterion, self.basis or "published")

    @property
    def judged(self) -> bool:
        """Whether it has a criterion, or is promised."""
        return self.criterion is not None or self.basis == "promised"

    @property
    def text(self) -> str:
        """The number with its interval, such as "-0.499 [-0.518, -0.481]" or "64 of 64 [0.944, 1.00]"."""
        _, low, high, seeds, _, hits = self.estimate
        if not (seeds or np.isfinite(self.estimate.value)):
            return "no value"
        if hits is not None and seeds:
            return f"{hits} of {seeds} [{format_number(low)}, {format_number(high)}]"
        return self.estimate.text(f"(no spread over {seeds} seeds)")

    @property
    def counted(self) -> str:
        """What the interval is over, such as "64 seeds" or "995 of 1000: in 5 the flow met NaN"."""
        seeds, missing = self.estimate.seeds, self.estimate.missing
        if not (self.why and missing):
            return self.over or f"{seeds} seeds"
        return f"{seeds} of {seeds + missing}: in {missing} {self.why}"


class Measured(NamedTuple):
    """The findings of a measure.

    Attributes:
        findings: numbers.
        tables: further tables by title.
    """

    findings: list[Finding]
    tables: dict[str, pd.DataFrame]


def load(measure: Measure, item: Item) -> Callable[..., Measured]:
    """Look up the function of a measure; code of the book is imported.

    Returns:
        runs of its studies -> findings without the item's criteria.

    Raises:
        InputError: no such measure, or settings that it does not take.
        UserCodeError: its code raised an exception while it was imported.
    """
    kind = measure.kind
    place = f"{item.folder / 'item.toml'}: measures"
    if kind not in KINDS and ":" not in kind:
        raise InputError(f"{place}: no kind {kind!r}; give one of {', '.join(KINDS)}, or mine.py:NAME")
    function = _function(kind, item)
    parameters = inspect.signature(function)
    try:
        parameters.bind(*measure.studies, item, **measure.settings)
    except TypeError as error:
        takes = f"it takes {parameters}, the runs of its studies first"
        raise InputError(f"{place}: {kind}: {error}; {takes}") from None
    return lambda *runs: function(*runs, item, **measure.settings)


def _function(kind: str, item: Item) -> Any:
    """Import a function: a built-in one, of the item's folder, or "BOOK:PLACE:NAME" of another book."""
    if kind in KINDS:
        return ImportPaths(item.folder).load(KINDS[kind])
    other, _, rest = kind.partition(":")
    if ":" in rest:
        return ImportPaths(item.book.other(other)).load(rest)
    return ImportPaths(item.folder).load(kind)


def measure(runs: Sequence[Run], asked: Measure, item: Item) -> Measured:
    """Measure runs, and give the findings the criteria of the item.

    Raises:
        InputError: a criterion, not optional, that no finding has the name of; and as `load`.
    """
    found = load(asked, item)(*runs)
    names = [finding.name for finding in found.findings]
    for pattern, expected in asked.criteria.items():
        if not expected.optional and not any(fnmatchcase(name, pattern) for name in names):
            raise InputError(f"criteria: no finding {pattern!r}; there are {', '.join(names)}")
    return Measured(hold(found.findings, asked), found.tables)


def hold(findings: Sequence[Finding], asked: Measure) -> list[Finding]:
    """Give findings the first criterion that fits their names; others keep the one that they have."""
    held = []
    for finding in findings:
        fits = [x for pattern, x in asked.criteria.items() if fnmatchcase(finding.name, pattern)]
        own = replace(finding, basis=finding.basis or asked.basis)
        if fits:
            first = fits[0]
            own = replace(
                own, criterion=first.criterion, published=first.published, basis=first.basis or asked.basis
            )
        held.append(own)
    return held


def share(measured: str, satisfied: Any, *, known: Any = True, **about: Any) -> Finding:
    """Make the finding of a yes/no statement: the share of seeds that satisfy it.

    Args:
        measured: what a seed has to satisfy.
        satisfied: (S,) bool.
        known: (S,) bool; which seeds have a value.
        about: further fields of `Finding`.
    """
    return Finding(measured, judge.share(satisfied, known), **about)


def mean(
    measured: str, samples: Any, *, between: tuple[float, float] = judge.ANYTHING, **about: Any
) -> Finding:
    """Make the finding of a number: its mean over the seeds that have a value.

    Args:
        measured: its name.
        samples: (S,) float; NaN or inf for a seed without a value.
        between: what the number can be at all; the interval is cut there.
        about: further fields of `Finding`.
    """
    return Finding(measured, judge.mean(np.asarray(samples), between), **about)
