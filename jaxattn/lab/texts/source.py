"""What every kind of source of labelled texts has: settings of its splits, classes and vocabulary."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import msgspec

from jaxattn.base import Dataset, Progress, SharedData, silent
from jaxattn.core.errors import InputError
from jaxattn.core.settings import PositiveInt
from jaxattn.data.corpus import Corpus
from jaxattn.data.sequences import Sequences
from jaxattn.data.splits import Loaded, Splits, token_statistics
from jaxattn.lab.texts import text
from jaxattn.lab.texts.files import codec, reading
from jaxattn.lab.texts.labelled import Label, class_numbers, is_missing

Row = tuple[str, str, Any]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Several = Annotated[tuple[Label, ...], msgspec.Meta(min_length=1)]
Labels = Annotated[tuple[Label | Several, ...], msgspec.Meta(min_length=2)]


class Rows(NamedTuple):
    """The rows of one split, to be read once.

    Attributes:
        total: how many there are; None if only reading can tell.
        rows: (place, text, raw label) of each; the place, such as "row 3", names it in messages.
    """

    total: int | None
    rows: Iterator[Row]


class Source(SharedData, frozen=True, kw_only=True):
    """What all kinds of source share: splits, classes and vocabulary.

    Attributes:
        train: name of the training split.
        test: name of the test split; "" for none.
        labels: the raw label of each class. The order defines the classes: -1 and +1 for two classes, 0 ..
            K-1 for more. A list merges several raw labels into one class: [[1, 2], [4, 5]]. The raw labels
            1.0, "1" and true are equal to 1.
        class_names: names of the classes for tables and figures, in the same order as `labels`; defaults to
            the labels themselves.
        ignore_labels: raw labels; rows with one of them are ignored.
        balance: whether to subsample all classes of a split to the size of the smallest one. The choice of
            rows is deterministic.
        validation: fraction of the training rows in each class to hold out for validation, after balancing.
            The choice of rows is deterministic.
        min_count: smallest number of occurrences in the training split for a word to be in the vocabulary.
        max_vocab: largest size of the vocabulary, which then contains the most frequent words; defaults to no
            limit.
        max_length: length to which texts are truncated, counted in words that are in the vocabulary; defaults
            to no limit.
        order: "kept" to read texts as sequences of token ids, for models that depend on the order; defaults
            to bags of words.
        escapes: "kept" to read a backslash followed by n as two characters. By default, it is read as a line
            break in texts where most backslashes before letters are of this form, as in the files of Yelp,
            Amazon and DBpedia.
        empty: what to do with a row that has no label or no word in the vocabulary: "error", or "drop" to
            ignore it. Rows without a word in the vocabulary are dropped after balancing and after the
            validation split.
        inert: the settings that change no number: where files lie, what classes are called.
    """

    may_be_settings: ClassVar[frozenset[str]] = SharedData.may_be_settings | {"encoding", "split_column"}
    inert: ClassVar[frozenset[str]] = frozenset({"path", "test_path", "data_dir", "class_names"})

    train: Name = "train"
    test: str | None = "test"
    labels: Labels = (0, 1)
    class_names: tuple[Name, ...] | None = None
    ignore_labels: tuple[Label, ...] = ()
    balance: bool = False
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    min_count: PositiveInt = 1
    max_vocab: PositiveInt | None = None
    max_length: PositiveInt | None = None
    order: Literal["kept"] | None = None
    escapes: Literal["kept"] | None = None
    empty: Literal["error", "drop"] = "error"

    def check(self, *context: object) -> None:
        """Raise InputError if a label or class is named twice, a class is not, or an encoding is none."""
        class_numbers(self.labels, self.ignore_labels)
        names = self.class_names or ()
        if self.class_names is not None and len(names) != len(self.labels):
            raise InputError(
                f"class_names: {len(names)} for {len(self.labels)} labels; give one for each, in their order"
            )
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"class_names: {name!r} is there twice; give each class its own name")
        codec(self.encoding)

    @property
    def encoding(self) -> str | None:
        """How the files write text; None where they say it themselves."""
        return None

    @property
    def split_column(self) -> str | None:
        """The column or field that names the split of a row; None if each split has files of its own."""
        return None

    @property
    def gives(self) -> type[Dataset]:
        """The kind of data."""
        return Sequences if self.order == "kept" else Corpus

    @property
    def held_out(self) -> bool:
        """Whether there are validation data."""
        return self.validation > 0

    def load(self, progress: Progress = silent) -> Loaded:
        """Read the texts, or take them from the cache; see `text.load`."""
        read = text.load(self, progress=progress)
        train = read.train
        tokens = jax.jit(token_statistics)(train) if isinstance(train, Corpus) else None
        splits = Splits(train, tokens, read.test, read.validation)
        return Loaded(splits, True, read.vocabulary.tokens)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are: "train", and "test" if it has a name."""
        return ("train", "test") if self.test else ("train",)

    def files(self) -> dict[str, str]:
        """List the files that the rows depend on.

        Returns:
            Paths by name, in an order and with names that stay when the files are moved elsewhere.

        Raises:
            InputError: there are none.
        """
        raise NotImplementedError

    def read(self, split: str) -> Rows:
        """Open a split.

        Args:
            split: one of `splits`.

        Returns:
            Its rows in the order of the files.

        Raises:
            InputError: something is missing or unreadable; perhaps not before the rows are read.
        """
        raise NotImplementedError


def as_text(value: Any, where: str) -> str:
    """Return the text of a row, which may be bytes in UTF-8; null is an empty text.

    Raises:
        InputError: it is neither; names the place.
    """
    if is_missing(value):
        return ""
    if isinstance(value, bytes):
        with reading(where):
            return value.decode("utf-8-sig")
    if not isinstance(value, str):
        raise InputError(f"data.text: {where} holds {value!r:.40}, not a text; name the field with the text")
    return value
