"""Schemas of book.toml and item.toml."""

from typing import Any

import msgspec

from jaxattn.core.errors import nearest
from jaxattn.core.settings import PositiveInt
from jaxattn.lab.results.judge import Basis, Criterion, around, at_least, at_most, within_factor

# Allowed file names for a book's table of all findings.
_NUMBERS = ("agreement.csv", "claims.csv")


class BookTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class for tables in book.toml and item.toml."""


class Elsewhere(BookTable, frozen=True):
    """Link to the page that shows an item, for items that are not run in this book.

    Attributes:
        words: description of the page.
        link: path of the page, relative to the page of this book.
        command: command that writes the page.
    """

    words: str
    link: str
    command: str


class Paper(BookTable, frozen=True):
    """Paper with the results that an item reproduces.

    Attributes:
        authors: surnames of the authors, separated by commas.
        title: title of the paper.
        arxiv: arXiv identifier.
    """

    authors: str
    title: str
    arxiv: str


class PagePart(BookTable, frozen=True):
    """Part of a book's page, with a heading.

    Attributes:
        title: heading of the part.
        items: folder names of the items in order.
    """

    title: str
    items: tuple[str, ...]


class DataSet(BookTable, frozen=True):
    """Data set that the user provides.

    Attributes:
        key: study key that is set to the path of the data set.
        below: path relative to the data folder; empty for the data folder itself.
        what: description of the data set.
    """

    key: str
    what: str
    below: str = ""


class Curve(BookTable, frozen=True):
    """Published curve with equally spaced points.

    Attributes:
        name: model and quantity, separated by a comma.
        low, high: x-coordinates of the first and last point.
        values: y-coordinates of the points.
        source: publication, and location in it, from which the curve is taken.
    """

    name: str
    low: float
    high: float
    values: tuple[float, ...]
    source: str

    @property
    def letters(self) -> str:
        """Return the quantity in the model's notation: E·p, or E·W2 p."""
        return self.name.rpartition(", ")[2]

    @property
    def centres(self) -> tuple[float, ...]:
        """Return the x-coordinates of the points."""
        steps = len(self.values) - 1
        return tuple(self.low + (self.high - self.low) * k / steps for k in range(steps + 1))


class Expected(BookTable, frozen=True):
    """Criterion for a finding: at least or at most a value, or within a distance or a factor of a value.

    Attributes:
        at_least, at_most, around, within, factor: the accepted range, given by `at_least` alone, by `at_most`
            alone, or by `around` with either `within` or `factor`; omit all of them for no range.
        published: the published result, as a string or number.
        basis: origin of the criterion, if it differs from that of the measure.
        optional: True if a run may produce no finding with this name.
    """

    at_least: float | None = None
    at_most: float | None = None
    around: float | None = None
    within: float | None = None
    factor: float | None = None
    published: str = "-"
    basis: Basis | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless the range is given in one of the forms described in the class docstring.

        If `basis` is set, the range may be omitted.
        """
        names = ("at_least", "at_most", "around", "within", "factor")
        given = tuple(name for name in names if getattr(self, name) is not None)
        forms = {("at_least",), ("at_most",), ("around", "within"), ("around", "factor")}
        if given not in forms and (given or self.basis is None):
            raise ValueError(
                "expected either `at_least`, `at_most`, or `around` with one of `within` and `factor`"
            )

    @property
    def criterion(self) -> Criterion | None:
        """Return the range as a criterion, or None if no range is given."""
        if self.at_least is not None:
            return at_least(self.at_least)
        if self.at_most is not None:
            return at_most(self.at_most)
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
        studies: studies to measure: NAME for the sweep file NAME.toml in the folder of the item or of the
            book, or "BOOK:PLACE" for a study in another book.
        criteria: criteria for the findings, keyed by name; {} if the findings are only measured, or if the
            measure sets the criteria itself.
        basis: origin of the criteria.
        needs: data set that the studies require; empty if they require none.
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
        """Return the names of the findings that are compared with a published number."""
        return [
            name
            for name, expected in self.criteria.items()
            if expected.criterion and (expected.basis or self.basis) == "published"
        ]

    @property
    def books(self) -> list[str]:
        """Return the names of other books whose studies or code this measure uses."""
        book, _, code = self.kind.partition(":")
        names = [*(name.rpartition(":")[0] for name in self.studies), book if ":" in code else ""]
        return [name for name in names if name]


class Shared(BookTable, frozen=True):
    """Contents of book.toml.

    Attributes:
        title: title of the page.
        introduction: paragraph below the title.
        table: file name for the table of all findings, "agreement.csv" or "claims.csv".
        source: source of the published numbers for all items; empty if each item cites its own source.
        items: names of the items in order; by default, all folders with an item.toml in alphabetical order.
        parts: parts of the page with their items, instead of `items`.
        phrases: replacement strings for `{name}` in items and in curve sources, keyed by name.
        labels: display labels for the parts of each finding's name, for all items.
        data: data sets, keyed by name.
        curves: published curves, keyed by name.
    """

    title: str
    introduction: str
    table: str = "agreement.csv"
    source: str = ""
    items: tuple[str, ...] = ()
    parts: tuple[PagePart, ...] = ()
    phrases: dict[str, str] = {}
    labels: dict[str, str] = {}
    data: dict[str, DataSet] = {}
    curves: dict[str, Curve] = {}

    def __post_init__(self) -> None:
        """Raise ValueError if `table` is unknown, or if both items and parts are given."""
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
        papers: papers whose results are reproduced, if they differ from the book's papers.
        reports: result that the paper reports, with its source.
        chosen: unpublished settings and the values chosen for them.
        compared: description of the comparison.
        reason: explanation of why a number differs, found by varying one setting at a time.
        flat: explanation shown next to a figure with flat curves.
        takes: run time that the source reports for the authors' code.
        laptop: overrides for the item's studies at laptop scale.
        figures: figures of the first study to show, as in a sweep file.
        curves: names of published curves, keyed by the quantity to compare.
        labels: display labels for the parts of each finding's name and for table entries.
        measures: the measures; see `Measure`. Omitted if another page shows the item.
        elsewhere: page that shows the item, if it is not run in this book.
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
