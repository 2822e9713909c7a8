"""Books: collections of items. Each item is a folder for a result or claim to reproduce.

    BOOK/book.toml         title and introduction of the page; order of the items; phrases, data sets and
                           curves shared by items
    BOOK/STUDY.toml        a study that several items use; it is run once
    BOOK/mine.py           code shared by several items; optional
    BOOK/NAME/item.toml    reported results, choices, comparison; measures and their criteria
    BOOK/NAME/study.toml   a sweep file, as for `jaxattn run`; there may be several, with any names
    BOOK/NAME/mine.py      code, referred to as "mine.py:NAME"; optional
    BOOK/NAME/README.md    notes for readers; optional, not loaded

The keys of book.toml and item.toml are defined in `tables`. A measure is a function that computes findings,
which are named numbers, from runs. A criterion is the range in which a finding must lie. Criteria are
matched to findings by name; `*` matches any string.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from jaxattn.core.errors import InputError, at, nearest
from jaxattn.lab.api import Study
from jaxattn.lab.books.tables import About, BookTable, Curve, DataSet, Measure, Shared
from jaxattn.lab.study import toml

RunScale = Literal["laptop", "full"]
PACKAGED = Path(__file__).parent
# Root of the checkout that contains this package, if there is one.
CHECKOUT = Path(__file__).parents[3]
PROSE = ("reports", "chosen", "compared", "reason", "flat")
_T = TypeVar("_T", bound=BookTable)


@dataclass(frozen=True)
class _Source:
    """Location of a study whose sweep file has not been read yet."""

    path: Path
    run: str
    own: bool


class Item(About, frozen=True, kw_only=True):
    """Item in a book: a figure, table, number or claim to reproduce, with the contents of its files.

    Attributes:
        folder: folder of the item.
        book: the book that contains the item.
        measured: the entries of `measures` in item.toml.
    """

    folder: Path
    book: "Book"
    measured: tuple[Measure, ...]

    @property
    def heading(self) -> str:
        """Return the title of the item for display."""
        return self.title or self.name.replace("_", " ").capitalize()

    @property
    def data(self) -> DataSet | None:
        """Return the data set that the first measure requires, or None unless every measure requires one."""
        needed = [measure.needs for measure in self.measured]
        return self.book.shared.data[needed[0]] if needed and all(needed) else None

    @property
    def absent(self) -> str:
        """Return the error message if the item requires a missing checkout of the repository, else "".

        Raises:
            InputError: a study belongs to a book that does not exist.
        """
        for name in dict.fromkeys(name for measure in self.measured for name in measure.books):
            try:
                self.book.other(name)
            except InputError as error:
                if name in IN_CHECKOUTS:
                    return str(error)
                raise InputError(f"{self.folder / 'item.toml'}: measures: {error}") from None
        return ""

    def label(self, name: str) -> str:
        """Return the display label for a finding name or a table entry."""
        for part, text in {**self.labels, **self.book.shared.labels}.items():
            # Match whole words only: "nu" is not part of "number".
            before, after = ("\\b" if letter.isalnum() else "" for letter in (part[0], part[-1]))
            name = re.sub(f"{before}{re.escape(part)}{after}", text.replace("\\", r"\\"), name)
        return name

    def published(self, quantity: str) -> Curve:
        """Return the published curve for a quantity.

        Raises:
            InputError: item.toml does not list a curve for this quantity.
        """
        if quantity not in self.curves:
            raise InputError(
                f"{self.folder / 'item.toml'}: curves: no curve for {quantity}; add a curve defined in "
                "book.toml"
            )
        return self.book.shared.curves[self.curves[quantity]]

    def source(self, name: str) -> _Source:
        """Return the location of a study that a measure uses.

        Raises:
            InputError: the study exists neither in the item nor in the book.
        """
        other, separator, location = name.rpartition(":")
        if separator:
            path = self.book.other(other) / f"{location}.toml"
            return _Source(path, f"{other}.{location.replace('/', '.')}", False)
        here, shared = self.folder / f"{name}.toml", self.book.folder / f"{name}.toml"
        if here.is_file():
            return _Source(here, self.folder.name + ("" if name == "study" else f".{name}"), True)
        if shared.is_file():
            if (self.book.folder / name / "item.toml").is_file():
                raise InputError(f"{shared}: an item is also named {name}; rename the study")
            return _Source(shared, name, False)
        have = sorted(path.stem for path in [*self.folder.glob("*.toml"), *self.book.folder.glob("*.toml")])
        known = [stem for stem in have if stem not in ("item", "book")]
        raise InputError(
            f"{self.folder / 'item.toml'}: studies: {name}.toml not found in the item's folder or in the "
            f"book's{nearest(name, known)}"
        )

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
            name: name of the study, as used by the measures.
            data_dir: folder that contains the data sets.
            overrides: additional overrides `key=value`.
            seeds: number of seeds, at most `most_seeds`; defaults to the number in the sweep file.
        """
        source = self.source(name)
        changes: list[str] = []
        measures = [measure for measure in self.measured if name in measure.studies]
        if source.own and scale == "laptop":
            changes += self.laptop
        for measure in measures:
            if measure.needs and data_dir is not None:
                data = self.book.shared.data[measure.needs]
                changes.append(f"{data.key}={data_dir / data.below}")
        if seeds is not None:
            limits = [measure.most_seeds for measure in measures if measure.most_seeds is not None]
            changes.append(f"seeds={min([seeds, *limits])}")
        return Study.read(source.path, [*changes, *overrides])

    @property
    def criteria_digest(self) -> str:
        """Return a hash of the criteria and the measures' settings, or "" if there are no criteria."""
        criteria = [
            (
                measure.settings,
                measure.basis,
                [(name, x.criterion, x.basis) for name, x in measure.criteria.items()],
            )
            for measure in self.measured
            if measure.criteria
        ]
        return hashlib.sha256(msgspec.json.encode(criteria)).hexdigest() if criteria else ""

    def digest(self, scale: RunScale) -> str:
        """Return a hash of the item's studies at a given scale. It does not depend on the data folder."""
        changes = self.laptop if scale == "laptop" else ()
        names = dict.fromkeys(name for measure in self.measured for name in measure.studies)
        settings = [*(toml.tables(self.source(name).path) for name in names), changes]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Book:
    """A book: a folder of items that describe results and claims to reproduce.

    Attributes:
        folder: the folder.
        location: display name of the folder, the same on every machine.
        shared: contents of book.toml.
    """

    folder: Path
    location: str
    shared: Shared

    @property
    def name(self) -> str:
        """Return the name of the book's folder."""
        return self.folder.name

    @property
    def has_promised_findings(self) -> bool:
        """Return True if the theory guarantees at least one of the book's findings."""
        return any(measure.basis == "promised" for item in self.items for measure in item.measured)

    def other(self, name: str) -> Path:
        """Return the folder of another book whose studies or measures an item uses.

        The parent folder of this book, the package and the checkout are searched, but not the working
        directory.

        Raises:
            InputError: the book is not found.
        """
        roots = (self.folder.parent, *_checkout_roots())
        for root in roots:
            if (root / name / "book.toml").is_file():
                return root / name
        raise _missing_book(name, roots)

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Return all items of the book in order."""
        given = [name for part in self.shared.parts for name in part.items]
        folders = (
            self.shared.items or given or sorted(path.parent.name for path in self.folder.glob("*/item.toml"))
        )
        items = tuple(self._item(folder) for folder in folders)
        names = [item.name for item in items]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{self.folder}: two items are named {name!r}; rename one of them")
        return items

    def item(self, name: str) -> Item:
        """Return the item with the given name; raise InputError if it does not exist."""
        for item in self.items:
            if item.name == name:
                return item
        names = [item.name for item in self.items]
        raise InputError(f"{name}: no such item{nearest(name, names, 0.8)}")

    def _item(self, name: str) -> Item:
        path = self.folder / name / "item.toml"
        about = _read(path, About, self.shared.phrases)
        if bool(about.measures) == bool(about.elsewhere):
            raise InputError(
                f"{path}: requires [[measures]], or [elsewhere] if another page shows the item, but not both"
            )
        measured = tuple(_measure(path, number, table) for number, table in enumerate(about.measures, 1))
        cited = (
            about.papers
            or self.shared.source
            or any(x in about.reports for x in self.shared.phrases.values())
        )
        for criterion in [name for measure in measured for name in measure.compared if not cited]:
            raise InputError(
                f"{path}: criteria: {criterion!r} is compared with a published value, but the item has no "
                'source; set `papers`, use a phrase from book.toml in `reports`, or set basis = "beyond"'
            )
        for key, given, known in (
            ("needs", [measure.needs for measure in measured if measure.needs], self.shared.data),
            ("curves", about.curves.values(), self.shared.curves),
        ):
            for missing in [x for x in given if x not in known]:
                raise InputError(f"{path}: {key}: book.toml lacks {missing!r}; it defines {', '.join(known)}")
        fields = msgspec.structs.asdict(about) | {"name": about.name or name}
        return Item(**fields, folder=path.parent, book=self, measured=measured)


def read_book(book: str | Path) -> Book:
    """Read a book and its items.

    Args:
        book: a folder with a book.toml; or the name of a book in the package, in sweeps/ of the working
            directory, or in sweeps/ of the checkout that contains the package.

    Raises:
        InputError: the book does not exist, or a file is malformed or refers to an undefined name.
    """
    folder = folder_of(book)
    shared = _read(folder / "book.toml", Shared, {})
    with at(str(folder / "book.toml")):
        curves = {
            name: msgspec.structs.replace(curve, source=_with_phrases(curve.source, shared.phrases))
            for name, curve in shared.curves.items()
        }
    found = Book(folder, _place(folder), msgspec.structs.replace(shared, curves=curves))
    _ = found.items
    return found


def folder_of(book: str | Path) -> Path:
    """Return the folder of a book, given its name or path as in `read_book`."""
    name = Path(book).name
    roots = (PACKAGED, Path("sweeps"), *_checkout_roots())
    places = [*(root / name for root in roots if str(book) == name), Path(book)]
    for folder in places:
        if (folder / "book.toml").is_file():
            return folder
    raise _missing_book(str(book), roots)


# Books that are only in a checkout of the repository, not in the package.
IN_CHECKOUTS = ("neighbours", "findings")


def _checkout_roots() -> tuple[Path, ...]:
    # A folder `sweeps` next to an installed package would belong to another project.
    return (PACKAGED, *([CHECKOUT / "sweeps"] if (CHECKOUT / "pyproject.toml").is_file() else []))


def _missing_book(name: str, roots: Sequence[Path]) -> InputError:
    if name in IN_CHECKOUTS:
        return InputError(
            f"{name}: this book exists only in a checkout of jaxattn, in sweeps/; run the command there"
        )
    known = sorted({path.parent.name for root in roots for path in root.glob("*/book.toml")})
    return InputError(f"{name}: no such book (no book.toml){nearest(name, known)}")


def _place(folder: Path) -> str:
    if folder.parent == PACKAGED:
        return f"jaxattn/lab/books/{folder.name}"
    return f"sweeps/{folder.name}" if folder.parent.name == "sweeps" else folder.name


def _measure(path: Path, number: int, table: Mapping[str, Any]) -> Measure:
    known = {name for name in Measure.__struct_fields__ if name != "settings"}
    settings = {key: x for key, x in table.items() if key not in known}
    with at(f"{path}: measures[{number}]"):
        for key, remedy in (
            ("kind", "add the name of a measure, or your own function as FILE.py:NAME"),
            ("criteria", "add criteria for the findings, or {} to measure without criteria"),
        ):
            if key not in table:
                raise InputError(f"{key} is missing; {remedy}")
        given = {key: x for key, x in table.items() if key in known}
        try:
            return msgspec.convert(given | {"settings": settings}, Measure)
        except msgspec.ValidationError as error:
            raise InputError(str(error)) from None


def _read(path: Path, kind: type[_T], phrases: Mapping[str, str]) -> _T:
    tree = toml.tables(path)
    with at(str(path)):
        tree |= {key: _with_phrases(tree[key], phrases) for key in PROSE if isinstance(tree.get(key), str)}
        try:
            return msgspec.convert(tree, kind)
        except msgspec.ValidationError as error:
            raise InputError(str(error)) from None


def _with_phrases(text: str, phrases: Mapping[str, str]) -> str:
    try:
        return text.format_map(phrases)
    except KeyError as error:
        known = ", ".join(phrases) or "none"
        raise InputError(f"{{{error.args[0]}}}: no such phrase; book.toml defines {known}") from None
    except (ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{text!r:.60}: {error}; write literal braces as {{{{ and }}}}") from None
