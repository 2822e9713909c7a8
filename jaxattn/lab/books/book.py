"""Books: folders of items. Each item is a folder for a result or claim to reproduce.

    BOOK/book.toml         title and introduction; order of the items; data sets
    BOOK/ITEM/item.toml    the words: claim, papers, choices, explanation
    BOOK/ITEM/study.toml   a sweep file, as for `jaxattn run`; there may be several, with any names
    BOOK/ITEM/check.py     `check(results)` returns findings: numbers with their criteria
    BOOK/ITEM/claim.py     a claim to search for counterexamples, in place of studies and check.py
    BOOK/ITEM/mine.py      further code, for studies ("mine.py:NAME") or for the check; optional

Files of the book's folder can be used by several items: a study is run once, and Python modules are imported
by name. The keys of book.toml and item.toml are defined in `tables`.
"""

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pandas as pd

from jaxattn.core.errors import InputError, at, explain, nearest
from jaxattn.core.spec import choices_of
from jaxattn.lab.api import Study
from jaxattn.lab.books.book_tables import BookFile, BookPart, BookTable, DataSet, ItemFile, Paper, StudyEntry
from jaxattn.lab.books.finding import Finding
from jaxattn.lab.loaded import Results
from jaxattn.lab.study import toml
from jaxattn.lab.study.import_paths import ImportPaths

RunScale = Literal["laptop", "full"]
_T = TypeVar("_T", bound=BookTable)
# Root of the checkout that contains this package, if there is one.
_CHECKOUT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Source:
    """Study of an item that has not been read yet.

    Attributes:
        path: the sweep file.
        entry: its entry in item.toml.
        run: path of its run, relative to the folder with the runs.
        own: True if the file is in the item's folder.
    """

    path: Path
    entry: StudyEntry
    run: str
    own: bool


@dataclass(frozen=True)
class Item:
    """Item of a book: a figure, table, number or claim to reproduce.

    Attributes:
        folder: folder of the item.
        book: the book that contains the item.
        words: contents of item.toml.
    """

    folder: Path
    book: "Book"
    words: ItemFile

    @property
    def name(self) -> str:
        """Return the name of the item's folder."""
        return self.folder.name

    @property
    def title(self) -> str:
        """Return the heading of the item."""
        return self.words.title or self.name.replace("_", " ").capitalize()

    @property
    def papers(self) -> tuple[Paper, ...]:
        """Return the papers of the item, or those of the book."""
        return self.words.papers or self.book.words.papers

    @property
    def claim(self) -> str:
        """Return the claim that is searched, "FILE.py" or "FILE.py:NAME"; "" if the item runs studies."""
        return os.path.normpath(self.folder / self.words.claim) if self.words.claim else ""

    @property
    def check_file(self) -> Path:
        """Return the path of the file with the criteria: check.py, or the file of the claim."""
        return Path(self.claim.partition(":")[0]) if self.claim else self.folder / "check.py"

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Return the studies by name.

        Raises:
            InputError: a sweep file or data set does not exist, or the item has no study.
        """
        if self.words.elsewhere or self.claim:
            return {}
        place = self.folder / "item.toml"
        own = sorted(path.stem for path in self.folder.glob("*.toml") if path != place)
        found = {}
        for name, given in (self.words.studies or dict.fromkeys(own, StudyEntry())).items():
            entry = StudyEntry(file=given) if isinstance(given, str) else given
            path = Path(os.path.normpath(self.folder / (entry.file or f"{name}.toml")))
            if not path.is_file():
                raise InputError(f"{place}: studies: {name}: {path} does not exist{nearest(name, own)}")
            if entry.data and entry.data not in self.book.words.data:
                known = nearest(entry.data, self.book.words.data)
                raise InputError(f"{place}: studies: {name}: book.toml has no data set {entry.data!r}{known}")
            found[name] = Source(path, entry, self._run(path), path.parent == self.folder)
        if not found:
            raise InputError(f"{place}: the item has no study; add study.toml, a claim, or [elsewhere]")
        return found

    def _run(self, path: Path) -> str:
        if path.parent == self.folder:
            return self.name + ("" if path.stem == "study" else f".{path.stem}")
        base = self.book.folder if path.is_relative_to(self.book.folder) else self.book.folder.parent
        return os.path.relpath(path.with_suffix(""), base).replace(os.sep, ".")

    def location(self, path: str | Path) -> str:
        """Return the display name of a file of the item, which is the same on every machine."""
        inside = os.path.relpath(path, self.book.folder)
        return os.path.normpath(os.path.join(self.book.location, inside))

    @property
    def data(self) -> dict[str, DataSet]:
        """Return the data sets that the studies require, by study."""
        return {
            name: self.book.words.data[source.entry.data]
            for name, source in self.sources.items()
            if source.entry.data
        }

    @property
    def required(self) -> list[str]:
        """Return the names of the studies without which the check cannot be applied."""
        return [name for name, source in self.sources.items() if not source.entry.optional]

    def study(
        self,
        scale: RunScale,
        name: str = "study",
        *,
        data_dir: Path | None = None,
        overrides: Sequence[str] = (),
        seeds: int | None = None,
    ) -> Study:
        """Read a study of the item, at a given scale and with overrides.

        Args:
            scale: "full" for the study as written, "laptop" to apply the item's overrides.
            name: name of the study.
            data_dir: folder that contains the data sets.
            overrides: additional overrides `key=value`.
            seeds: number of seeds, at most `most_seeds`; defaults to the number in the sweep file.
        """
        source = self.sources[name]
        changes: list[str] = []
        if source.own and scale == "laptop":
            changes += self.words.laptop
        if source.entry.data and data_dir is not None:
            data = self.data[name]
            changes.append(f"{data.key}={data_dir / data.below}")
        if seeds is not None:
            changes.append(f"seeds={min(seeds, source.entry.most_seeds or seeds)}")
        return Study.read(source.path, [*changes, *overrides])

    def is_reduced(self, scale: RunScale) -> bool:
        """Return True if runs at this scale have other settings than full runs, apart from their seeds."""
        changed = any(not change.startswith("seeds=") for change in self.words.laptop)
        return self.words.settings == "reduced" or (scale == "laptop" and changed)

    def digest(self, scale: RunScale) -> str:
        """Return a hash of the item's studies at a given scale. It does not depend on the data folder."""
        changes = self.words.laptop if scale == "laptop" else ()
        settings: list[Any] = [*(toml.tables(source.path) for source in self.sources.values()), changes]
        settings += [self.words.claim] if self.claim else []
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def measure(self, results: Mapping[str, Results]) -> tuple[list[Finding], dict[str, pd.DataFrame]]:
        """Apply the item's `check` to results, and its `tables` if it has that function.

        Args:
            results: the results of the studies, by name.

        Returns:
            The findings, and further tables by title.

        Raises:
            InputError: check.py does not exist or has no `check`, or its findings are malformed.
            UserCodeError: check.py raised an exception on import.
        """
        check: Callable[..., Iterable[Finding]] = ImportPaths(self.folder).load("check.py:check")
        tables = vars(sys.modules[check.__module__]).get("tables")
        findings = list(check(results))
        for finding in findings:
            if not isinstance(finding, Finding):
                raise InputError(f"{self.check_file}: check: expected findings, got {type(finding).__name__}")
        ids = [finding.id for finding in findings]
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise InputError(f"{self.check_file}: check: two findings have the id {twice[0]!r}; rename one")
        return findings, dict(tables(results)) if tables else {}

    def command(self, scale: RunScale) -> str:
        """Return the command line that runs the item."""
        if self.words.elsewhere:
            return self.words.elsewhere.command
        words = ["jaxattn", "reproduce", self.book.location, "--only", self.name]
        words += ["--scale", scale] if scale != "laptop" else []
        return shlex.join([*words, *(["--data-dir", "DIR"] if self.data else [])])


@dataclass(frozen=True)
class Book:
    """A book: a folder of items.

    Attributes:
        folder: the folder.
        words: contents of book.toml.
    """

    folder: Path
    words: BookFile

    @property
    def name(self) -> str:
        """Return the name of the book's folder."""
        return self.folder.name

    @property
    def location(self) -> str:
        """Return the display name of the folder, which is the same on every machine."""
        return f"sweeps/{self.name}" if self.folder.parent.name == "sweeps" else self.name

    @cached_property
    def parts(self) -> tuple[BookPart, ...]:
        """Return the parts of the book, each with the names of its items."""
        every = tuple(sorted(path.parent.name for path in self.folder.glob("*/item.toml")))
        return self.words.parts or (BookPart(title="", items=every),)

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Return all items of the book in order."""
        return tuple(self._item(name) for part in self.parts for name in part.items)

    def item(self, name: str) -> Item:
        """Return the item with the given name; raise InputError if it does not exist."""
        for item in self.items:
            if item.name == name:
                return item
        raise InputError(f"{name}: no such item{nearest(name, [item.name for item in self.items], 0.8)}")

    def _item(self, name: str) -> Item:
        path = self.folder / name / "item.toml"
        words = _read(path, ItemFile)
        if not (words.reports or words.claim):
            raise InputError(f"{path}: reports: is missing; state the claim that the item tests")
        item = Item(path.parent, self, words)
        if not item.sources and not item.words.elsewhere and not item.check_file.is_file():
            raise InputError(f"{path}: claim: {item.check_file} does not exist")
        return item


def read_book(book: str | Path) -> Book:
    """Read a book and its items.

    Args:
        book: a folder with a book.toml; or the name of a book in sweeps/ of the working directory, or of the
            checkout that contains the package.

    Raises:
        InputError: the book does not exist, or a file is malformed or refers to an undefined name.
    """
    folder = _folder(book)
    found = Book(folder, _read(folder / "book.toml", BookFile))
    _ = found.items
    return found


def load_code(file: str, path: str) -> Any:
    """Import a function or class from a file of another item, for a check that shares its code.

    Args:
        file: the file that imports it, `__file__`.
        path: path of the code relative to that file, such as "../other/check.py:check".
    """
    return ImportPaths(Path(file).parent).load(path)


def _folder(book: str | Path) -> Path:
    is_checkout = (_CHECKOUT / "pyproject.toml").is_file()
    roots = [Path("sweeps"), *([_CHECKOUT / "sweeps"] if is_checkout else [])]
    places = [Path(book), *(root / book for root in roots)]
    for folder in places:
        if (folder / "book.toml").is_file():
            return folder.resolve()
    known = sorted({path.parent.name for root in roots for path in root.glob("*/book.toml")})
    hint = nearest(str(book), known) if known else "; the project's books are in sweeps/ of its repository"
    raise InputError(f"{book}: no such book (no book.toml){hint}")


def _read(path: Path, kind: type[_T]) -> _T:
    if not path.is_file():
        raise InputError(f"{path.parent}: no such item (no item.toml)")
    tables = toml.tables(path)
    with at(str(path)):
        try:
            return msgspec.convert(tables, kind)
        except msgspec.ValidationError as error:
            choices = {field.name: choices_of(field.type) for field in msgspec.structs.fields(kind)}
            raise InputError(explain(str(error), "", tables, list(choices), choices)) from None
