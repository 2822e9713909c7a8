"""Schemas of book.toml and item.toml."""

from typing import Any

import msgspec

from jaxattn.core.settings import Positive, PositiveInt
from jaxattn.lab.books.finding import Read, Settings


class BookTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class for tables in book.toml and item.toml."""


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


class StudyEntry(BookTable, frozen=True):
    """Study of an item.

    Attributes:
        file: sweep file, relative to the folder of the item; by default NAME.toml for the study NAME.
        data: name of the data set in book.toml that the study requires.
        most_seeds: maximum number of seeds.
        optional: True if the check can be applied without the results of this study.
    """

    file: str = ""
    data: str = ""
    most_seeds: PositiveInt | None = None
    optional: bool = False


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


class BookPart(BookTable, frozen=True):
    """Part of a book's first page, with a heading.

    Attributes:
        title: heading of the part.
        items: names of the items in order.
    """

    title: str
    items: tuple[str, ...]


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


class BookFile(BookTable, frozen=True):
    """Contents of book.toml.

    Attributes:
        title: title of the book.
        introduction: paragraph below the title.
        papers: the papers of all items that list none.
        parts: parts with their items in order; by default one part with all items in alphabetical order.
        data: data sets, keyed by name.
    """

    title: str
    introduction: str
    papers: tuple[Paper, ...] = ()
    parts: tuple[BookPart, ...] = ()
    data: dict[str, DataSet] = {}


class ItemFile(BookTable, frozen=True):
    """Contents of item.toml: the words of an item. Its criteria are in check.py, or in the file of its claim.

    Attributes:
        reports: the claim: the result that the paper reports, with its source; by default the statement of
            the item's `claim`.
        read: what was read of the statement: the "source", a "transcription" (a quotation by others, with its
            place), or only the "abstract". From an abstract alone, the claim is at most inconclusive.
        title: heading; by default the name of the folder.
        authors: authors of the item.
        papers: papers whose results are reproduced; by default those of the book.
        settings: "own" if the runs at full scale use the settings of the claim: the published ones, or
            settings that meet all assumptions of a theorem. "chosen" if some of them are not published and
            were chosen here. "reduced" if they are far below those of the claim.
        chosen: the settings that were chosen, and why.
        compared: description of the comparison.
        judged: False if the item only measures, without a criterion.
        reason: explanation of why a number differs, found by varying one setting at a time.
        changed: explanation of why the criteria were changed after results had been recorded.
        studies: the studies, keyed by the name under which the check receives their results; a string is the
            path of the sweep file. By default all sweep files in the folder.
        claim: claim that is searched for counterexamples instead of running studies, "FILE.py" or
            "FILE.py:NAME" relative to the folder of the item; see `jaxattn.lab.refute`.
        budget: seconds for the search with each seed; at laptop scale at most 60.
        laptop: overrides for the item's own studies at laptop scale.
        figures: figures of the first study to show, as in a sweep file.
        sensitivity: item that repeats this one with random choices of the settings that are not published.
        elsewhere: page that shows the item, if it is not run in this book.
    """

    reports: str = ""
    read: Read = "source"
    title: str = ""
    authors: str = "the jaxattn developers"
    papers: tuple[Paper, ...] = ()
    settings: Settings = "chosen"
    chosen: str = ""
    compared: str = ""
    judged: bool = True
    reason: str = ""
    changed: str = ""
    studies: dict[str, str | StudyEntry] = {}
    claim: str = ""
    budget: Positive = 300.0
    laptop: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()
    sensitivity: str = ""
    elsewhere: Elsewhere | None = None
