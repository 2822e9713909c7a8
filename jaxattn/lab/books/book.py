"""Books: what others report, item by item, each a folder that says how it is run again and compared.

    BOOK/book.toml         title and introduction of the page; `items` in their order, by default all folders
                           with an item.toml; `phrases`, `data` sets and `curves` that items share
    BOOK/NAME/item.toml    what is reported, what was chosen, how it is compared; `measure` and `criteria`
    BOOK/NAME/study.toml   a sweep file, as `jaxattn run` takes it; none where the item is shown `elsewhere`
    BOOK/NAME/mine.py      code that the two name by "mine.py:NAME"; optional
    BOOK/NAME/README.md    for whoever opens the folder; optional, not read

`About` lists what item.toml holds, `Shared` what book.toml does. Criteria are held against the findings of a
measure by their names, `*` standing for anything.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from jaxattn.core.errors import InputError, at, nearest
from jaxattn.lab.api import Study
from jaxattn.lab.results.judge import Criterion, around, at_least, within_factor
from jaxattn.lab.study import toml

Scale = Literal["laptop", "full"]
DEFAULT = "paper"
PACKAGED = Path(__file__).parent
PROSE = ("reports", "chosen", "compared", "reason", "flat")
T = TypeVar("T", bound="Table")


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of book.toml or item.toml."""


class Elsewhere(Table, frozen=True):
    """Where an item is shown that is not run here: in words, the page relative to ours, the command."""

    words: str
    link: str
    command: str


class DataSet(Table, frozen=True):
    """A data set: the key of study.toml that says where it lies, its place below DIR, and what it is."""

    key: str
    below: str
    what: str


class Curve(Table, frozen=True):
    """A published curve: values at equal distances.

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
        """The quantity as its model writes it: E·p, or E·W2 p."""
        return self.name.rpartition(", ")[2]

    @property
    def centres(self) -> tuple[float, ...]:
        """x of every point."""
        steps = len(self.values) - 1
        return tuple(self.low + (self.high - self.low) * k / steps for k in range(steps + 1))


class Expected(Table, frozen=True):
    """What a finding is held against: `at_least`, or `around` a number `within` a distance or a `factor`.

    Attributes:
        published: what is published, in words or digits.
    """

    at_least: float | None = None
    around: float | None = None
    within: float | None = None
    factor: float | None = None
    published: str = "-"

    def __post_init__(self) -> None:
        """Check that one form is given, whole."""
        given = tuple(x is not None for x in (self.at_least, self.around, self.within, self.factor))
        if given not in {(True, False, False, False), (False, True, True, False), (False, True, False, True)}:
            raise ValueError("give at_least alone, or around with within or with factor")

    @property
    def criterion(self) -> Criterion:
        """Where the finding has to lie."""
        if self.at_least is not None:
            return at_least(self.at_least)
        assert self.around is not None
        if self.factor is not None:
            return within_factor(self.around, self.factor)
        assert self.within is not None
        return around(self.around, self.within)


class Shared(Table, frozen=True):
    """What book.toml holds.

    Attributes:
        title: of the page.
        introduction: a sentence under it.
        items: names of the items in their order; by default all, by the alphabet.
        phrases: texts by name; `{name}` stands for one in items and sources of curves.
        data: data sets by name.
        curves: published curves by name.
    """

    title: str
    introduction: str
    items: tuple[str, ...] = ()
    phrases: dict[str, str] = {}
    data: dict[str, DataSet] = {}
    curves: dict[str, Curve] = {}


class About(Table, frozen=True):
    """What item.toml holds.

    Attributes:
        title: a heading for readers; by default the name of its folder.
        reports: what is reported, with its source.
        chosen: what is not published and was chosen.
        compared: how it is compared.
        reason: why what differs does, as far as varying one thing at a time has shown.
        flat: why a figure is flat, where one is, said beside it.
        takes: how long its own code takes, in the words of its source.
        needs: the data set it needs; "" for none.
        laptop: overrides of the study at laptop scale.
        figures: figures of the run to show, as in a sweep file.
        curves: names of published curves, by the quantity of ours that is held against them.
        measure: `kind`, one of `findings.KINDS` or "mine.py:NAME", and its settings; nothing if the item is
            shown elsewhere.
        criteria: what findings are held against, by their names; the others are only measured.
        elsewhere: where it is shown, if it is not run here.
    """

    reports: str
    chosen: str
    compared: str
    reason: str = ""
    title: str = ""
    flat: str = ""
    takes: str = ""
    needs: str = ""
    laptop: tuple[str, ...] = ()
    figures: tuple[dict[str, Any], ...] = ()
    curves: dict[str, str] = {}
    measure: dict[str, Any] = {}
    criteria: dict[str, Expected] = {}
    elsewhere: Elsewhere | None = None


class Item(About, frozen=True, kw_only=True):
    """One figure, table or number that is reported: what its files say.

    Attributes:
        name: of its folder and its study.
        book: the book that it is in.
    """

    name: str
    book: "Book"

    @property
    def heading(self) -> str:
        """What readers call it."""
        return self.title or self.name.replace("_", " ").capitalize()

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self.book.folder / self.name

    @property
    def data(self) -> DataSet | None:
        """The data set it needs."""
        return self.book.shared.data[self.needs] if self.needs else None

    def published(self, quantity: str) -> Curve:
        """Look up the published curve of a quantity; InputError if item.toml names none."""
        if quantity not in self.curves:
            raise InputError(
                f"{self.folder / 'item.toml'}: curves: none of {quantity}; name one of book.toml"
            )
        return self.book.shared.curves[self.curves[quantity]]

    def study(self, scale: Scale, data_dir: Path | None = None, overrides: Sequence[str] = ()) -> Study:
        """Make its study at a scale, with its data below `data_dir`; see `run.reproduce`."""
        changes = list(self.laptop) if scale == "laptop" else []
        if self.data and data_dir is not None:
            changes.append(f"{self.data.key}={data_dir / self.data.below}")
        return Study.read(self.folder / "study.toml", [*changes, *overrides])

    def digest(self, scale: Scale) -> str:
        """Name what is run at a scale: equal for equal settings, wherever the data lies."""
        changes = self.laptop if scale == "laptop" else ()
        settings = [toml.tables(self.folder / "study.toml"), changes]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Book:
    """A folder of items.

    Attributes:
        folder: the folder.
        place: the same for readers of the page, wherever this machine has it.
        shared: what book.toml holds.
    """

    folder: Path
    place: str
    shared: Shared

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def option(self) -> list[str]:
        """The words of a command line that choose it; none for the default."""
        return [] if self.name == DEFAULT else ["--book", self.name]

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """All items, in their order."""
        names = self.shared.items or sorted(path.parent.name for path in self.folder.glob("*/item.toml"))
        return tuple(self._item(name) for name in names)

    def item(self, name: str) -> Item:
        """Look up an item; InputError if there is none of that name."""
        for item in self.items:
            if item.name == name:
                return item
        raise InputError(f"{name}: no such item; there are {', '.join(item.name for item in self.items)}")

    def _item(self, name: str) -> Item:
        path = self.folder / name / "item.toml"
        about = _read(path, About, self.shared.phrases)
        for key, given, known in (
            ("needs", [about.needs] if about.needs else [], self.shared.data),
            ("curves", about.curves.values(), self.shared.curves),
        ):
            for missing in [x for x in given if x not in known]:
                raise InputError(f"{path}: {key}: book.toml has no {missing!r}; it has {', '.join(known)}")
        if bool(about.measure) == bool(about.elsewhere) or not (about.elsewhere or "kind" in about.measure):
            raise InputError(f"{path}: give a [measure] with its kind, or [elsewhere] where it is shown")
        return Item(name=name, book=self, **msgspec.structs.asdict(about))


def read(book: str | Path) -> Book:
    """Read a book and its items.

    Args:
        book: a folder that holds a book.toml; or the name of one in sweeps/, or of one of this package.

    Returns:
        The book.

    Raises:
        InputError: no such book; a file that is malformed, or names what book.toml does not have.
    """
    places = {Path(book).name: Path(book)}
    if str(book) == Path(book).name:
        places = {
            f"jaxattn/lab/books/{book}": PACKAGED / book,
            f"sweeps/{book}": Path("sweeps", book),
        } | places
    for place, folder in places.items():
        if (folder / "book.toml").is_file():
            shared = _read(folder / "book.toml", Shared, {})
            with at(str(folder / "book.toml")):
                curves = {
                    name: msgspec.structs.replace(curve, source=_written(curve.source, shared.phrases))
                    for name, curve in shared.curves.items()
                }
            found = Book(folder, place, msgspec.structs.replace(shared, curves=curves))
            _ = found.items
            return found
    known = [path.parent.name for root in (PACKAGED, Path("sweeps")) for path in root.glob("*/book.toml")]
    raise InputError(
        f"--book {book}: no book.toml in {' or in '.join(map(str, places.values()))}"
        f"{nearest(str(book), sorted(known))}"
    )


def _read(path: Path, kind: type[T], phrases: Mapping[str, str]) -> T:
    """Read a file of a book, with its phrases written out."""
    tree = toml.tables(path)
    with at(str(path)):
        tree |= {key: _written(tree[key], phrases) for key in PROSE if isinstance(tree.get(key), str)}
        try:
            return msgspec.convert(tree, kind)
        except msgspec.ValidationError as error:
            raise InputError(str(error)) from None


def _written(text: str, phrases: Mapping[str, str]) -> str:
    try:
        return text.format_map(phrases)
    except KeyError as error:
        known = ", ".join(phrases) or "none"
        raise InputError(f"{{{error.args[0]}}}: no such phrase; book.toml has {known}") from None
    except (ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{text!r:.60}: {error}; write braces that stand for themselves twice") from None
