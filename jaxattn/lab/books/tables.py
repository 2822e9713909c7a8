"""Schemas of book.toml and item.toml."""

from typing import Any

import msgspec

from jaxattn.core.errors import nearest
from jaxattn.core.settings import PositiveInt
from jaxattn.lab.results.judge import Basis, Criterion, around, at_least, within_factor

# File names of the table of all numbers of a book.
_NUMBERS = ("agreement.csv", "claims.csv")


class BookTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of book.toml or item.toml."""


class Elsewhere(BookTable, frozen=True):
    """Page that shows an item which is not run here.

    Attributes:
        words: description of that page.
        link: the page, relative to the page of the book.
        command: the command that writes it.
    """

    words: str
    link: str
    command: str


class Paper(BookTable, frozen=True):
    """A paper whose results an item reproduces.

    Attributes:
        authors: the authors' surnames, separated by commas.
        title: its title.
        arxiv: its arXiv identifier.
    """

    authors: str
    title: str
    arxiv: str


class Part(BookTable, frozen=True):
    """A part of the page of a book.

    Attributes:
        title: its heading.
        items: names of the folders of its items in their order.
    """

    title: str
    items: tuple[str, ...]


class DataSet(BookTable, frozen=True):
    """A data set of the user.

    Attributes:
        key: the study key that takes the path of the data set.
        below: path relative to the folder of data sets; empty for that folder itself.
        what: description of the data set.
    """

    key: str
    what: str
    below: str = ""


class Curve(BookTable, frozen=True):
    """A published curve with equally spaced points.

    Attributes:
        name: model and quantity, separated by a comma.
        low, high: the first and the last x.
        values: y of every point.
        source: where it is published.
    """

    name: str
    low: float
    high: float
    values: tuple[float, ...]
    source: str

    @property
    def letters(self) -> str:
        """The quantity in the notation of its model: E·p, or E·W2 p."""
        return self.name.rpartition(", ")[2]

    @property
    def centres(self) -> tuple[float, ...]:
        """The x-coordinates of the points."""
        steps = len(self.values) - 1
        return tuple(self.low + (self.high - self.low) * k / steps for k in range(steps + 1))


class Expected(BookTable, frozen=True):
    """Criterion of a finding: `at_least`, or `around` a number `within` a distance or a `factor`.

    Attributes:
        at_least, around, within, factor: the range; none for a finding that is promised or measured without
            a number.
        published: the published result, as text or number.
        basis: basis of this criterion, if it differs from that of the measure.
        optional: True if runs may have no finding with that name.
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
            raise ValueError("give at_least alone, or around together with either within or factor")

    @property
    def criterion(self) -> Criterion | None:
        """The range of the number, or None."""
        if self.at_least is not None:
            return at_least(self.at_least)
        if self.around is None:
            return None
        if self.factor is not None:
            return within_factor(self.around, self.factor)
        assert self.within is not None
        return around(self.around, self.within)


class Measure(BookTable, frozen=True):
    """An entry of `measures` in item.toml.

    Attributes:
        kind: name of a built-in measure, or "mine.py:NAME".
        studies: the studies whose runs it takes: sweep files NAME.toml in the folder of the item or of the
            book, or "BOOK:PLACE" for one of another book.
        criteria: criteria of its findings, by name; {} if they are only measured, or the measure sets them.
        basis: origin of the criteria.
        needs: the data set that its studies need; empty for none.
        most_seeds: largest number of seeds of its studies.
        settings: the other keys, which are passed to the measure.
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
        """Names of other books that its studies and its code belong to."""
        book, _, code = self.kind.partition(":")
        names = [*(name.rpartition(":")[0] for name in self.studies), book if ":" in code else ""]
        return [name for name in names if name]


class Shared(BookTable, frozen=True):
    """The contents of book.toml.

    Attributes:
        title: title of the page.
        introduction: a paragraph below it.
        table: file name of the table of all numbers, "agreement.csv" or "claims.csv".
        source: where the published numbers of all items come from; empty if each item cites its own source.
        items: names of the items in their order; defaults to all folders with an item.toml, in alphabetical
            order.
        parts: the parts of the page with their items, instead of `items`.
        phrases: texts by name; `{name}` in items and in sources of curves is replaced by the text.
        labels: display texts for parts of the texts of findings, for all items.
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
            raise ValueError("give items or parts, not both")
        if self.table not in _NUMBERS:
            raise ValueError(f"table: {self.table!r}: no such table{nearest(self.table, _NUMBERS)}")


class About(BookTable, frozen=True):
    """The contents of item.toml.

    Attributes:
        name: name of the item in commands and tables; defaults to the name of its folder.
        title: heading for display; defaults to one generated from the name.
        authors: who wrote the item.
        papers: the papers whose results it reproduces, if they differ from those of the book.
        reports: the reported result, with its source.
        chosen: settings that are not published and were chosen.
        compared: how the results are compared.
        reason: why a number differs, as far as varying one setting at a time has shown.
        flat: why a figure is flat, where one is; shown next to it.
        takes: run time of the authors' code, as stated by its source.
        laptop: overrides of the item's own studies at laptop scale.
        figures: figures of the first study to show, as in a sweep file.
        curves: names of published curves, by the quantity that is compared with them.
        labels: display texts for parts of the texts of findings and tables of the item.
        measures: the measures, see `Measure`; none if another page shows the item.
        elsewhere: the page that shows the item, if it is not run here.
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
