"""Schemas of book.toml and item.toml."""

from typing import Any

import msgspec

from jaxattn.core.errors import nearest
from jaxattn.core.settings import PositiveInt
from jaxattn.lab.results.judge import Basis, Criterion, around, at_least, within_factor

# File names for the table of all numbers of a book.
_NUMBERS = ("agreement.csv", "claims.csv")


class BookTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the tables in book.toml and item.toml."""


class Elsewhere(BookTable, frozen=True):
    """Page that shows an item that is not run in this book.

    Attributes:
        words: description of that page.
        link: path of the page, relative to the page of the book.
        command: command that writes the page.
    """

    words: str
    link: str
    command: str


class Paper(BookTable, frozen=True):
    """Paper with results that an item reproduces.

    Attributes:
        authors: surnames of the authors, separated by commas.
        title: title of the paper.
        arxiv: arXiv identifier.
    """

    authors: str
    title: str
    arxiv: str


class Part(BookTable, frozen=True):
    """Part of the page of a book.

    Attributes:
        title: heading of the part.
        items: folder names of the items in order.
    """

    title: str
    items: tuple[str, ...]


class DataSet(BookTable, frozen=True):
    """Data set that the user provides.

    Attributes:
        key: study key for the path of the data set.
        below: path relative to the folder of data sets; empty for that folder itself.
        what: description of the data set.
    """

    key: str
    what: str
    below: str = ""


class Curve(BookTable, frozen=True):
    """Published curve with equally spaced points.

    Attributes:
        name: model and quantity, separated by a comma.
        low, high: first and last x.
        values: y of each point.
        source: where the curve is published.
    """

    name: str
    low: float
    high: float
    values: tuple[float, ...]
    source: str

    @property
    def letters(self) -> str:
        """Quantity in the notation of the model: E·p, or E·W2 p."""
        return self.name.rpartition(", ")[2]

    @property
    def centres(self) -> tuple[float, ...]:
        """The x-coordinates of the points."""
        steps = len(self.values) - 1
        return tuple(self.low + (self.high - self.low) * k / steps for k in range(steps + 1))


class Expected(BookTable, frozen=True):
    """Criterion for a finding: `at_least`, or `around` a number `within` a distance or a `factor`.

    Attributes:
        at_least, around, within, factor: the range; omitted for a finding that is promised or measured
            without a range.
        published: the published result, as text or number.
        basis: basis of the criterion, if it differs from the basis of the measure.
        optional: True if a run may have no finding with this name.
    """

    at_least: float | None = None
    around: float | None = None
    within: float | None = None
    factor: float | None = None
    published: str = "-"
    basis: Basis | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one form of range is complete."""
        given = tuple(x is not None for x in (self.at_least, self.around, self.within, self.factor))
        forms = {(True, False, False, False), (False, True, True, False), (False, True, False, True)}
        if given not in forms and (any(given) or self.basis is None):
            raise ValueError("expected either at_least, or around with either within or factor")

    @property
    def criterion(self) -> Criterion | None:
        """Range of the number, or None."""
        if self.at_least is not None:
            return at_least(self.at_least)
        if self.around is None:
            return None
        if self.factor is not None:
            return within_factor(self.around, self.factor)
        assert self.within is not None
        return around(self.around, self.within)


class Measure(BookTable, frozen=True):
    """Entry of `measures` in item.toml.

    Attributes:
        kind: name of a built-in measure, or "mine.py:NAME".
        studies: studies to measure: sweep files NAME.toml in the folder of the item or of the book, or
            "BOOK:PLACE" for a study of another book.
        criteria: criteria of the findings, by name; {} if they are only measured, or if the measure sets
            them.
        basis: origin of the criteria.
        needs: data set that the studies require; empty for none.
        most_seeds: maximum number of seeds.
        settings: all other keys, which are passed to the measure.
    """

    kind: str
    criteria: dict[str, Expected]
    studies: tuple[str, ...] = ("study",)
    basis: Basis = "published"
    needs: str = ""
    most_seeds: PositiveInt | None = None
    settings: dict[str, Any] = {}

    @property
    def compared(self) -> list[str]:
        """Names of the findings that are compared with a published number."""
        return [
            name
            for name, expected in self.criteria.items()
            if expected.criterion and (expected.basis or self.basis) == "published"
        ]

    @property
    def books(self) -> list[str]:
        """Names of the other books whose studies and code this item uses."""
        book, _, code = self.kind.partition(":")
        names = [*(name.rpartition(":")[0] for name in self.studies), book if ":" in code else ""]
        return [name for name in names if name]


class Shared(BookTable, frozen=True):
    """Contents of book.toml.

    Attributes:
        title: title of the page.
        introduction: paragraph below the title.
        table: file name of the table of all numbers, "agreement.csv" or "claims.csv".
        source: source of the published numbers of all items; empty if each item cites its own source.
        items: names of the items in order; defaults to all folders with an item.toml, in alphabetical order.
        parts: parts of the page with their items, instead of `items`.
        phrases: texts by name, which replace `{name}` in items and in sources of curves.
        labels: display texts for parts of findings, for all items.
        data: data sets by name.
        curves: published curves by name.
    """

    title: str
    introduction: str
    table: str = "agreement.csv"
    source: str = ""
    items: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    phrases: dict[str, str] = {}
    labels: dict[str, str] = {}
    data: dict[str, DataSet] = {}
    curves: dict[str, Curve] = {}

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown table, or if items and parts are both given."""
        if self.items and self.parts:
            raise ValueError("items and parts cannot be combined; remove one of them")
        if self.table not in _NUMBERS:
            raise ValueError(f"table: unknown table {self.table!r}{nearest(self.table, _NUMBERS)}")


class About(BookTable, frozen=True):
    """Contents of item.toml.

    Attributes:
        name: name of the item in commands and tables; defaults to the name of its folder.
        title: displayed heading; generated from the name by default.
        authors: authors of the item.
        papers: papers with the reproduced results, if they differ from the papers of the book.
        reports: reported result, with its source.
        chosen: unpublished settings and their chosen values.
        compared: method of comparison.
        reason: reason why a number differs, as found by varying one setting at a time.
        flat: explanation shown next to a figure that is flat.
        takes: run time of the authors' code, according to the source.
        laptop: overrides for the studies of the item at laptop scale.
        figures: figures to show of the first study, as in a sweep file.
        curves: names of published curves, by the quantity to compare.
        labels: display texts for parts of findings and tables.
        measures: the measures, see `Measure`; omitted if another page shows the item.
        elsewhere: page that shows the item, if it is not run here.
    """

    reports: str
    name: str = ""
    title: str = ""
    authors: str = "the jaxattn developers"
    papers: tuple[Paper, ...] = ()
    chosen: str = ""
    compared: str = ""
    reason: str = ""
    flat: str = ""
    takes: str = ""
    laptop: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()
    curves: dict[str, str] = {}
    labels: dict[str, str] = {}
    measures: tuple[dict[str, Any], ...] = ()
    elsewhere: Elsewhere | None = None
