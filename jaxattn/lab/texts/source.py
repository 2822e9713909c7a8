"""Base class for labelled text sources, with settings for splits, classes and vocabulary."""

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
from jaxattn.lab.texts.labelled import Label, class_numbers, is_missing
from jaxattn.lab.texts.text_files import codec, reading

TextRow = tuple[str, str, Any]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Several = Annotated[tuple[Label, ...], msgspec.Meta(min_length=1)]
Labels = Annotated[tuple[Label | Several, ...], msgspec.Meta(min_length=2)]


class TextRows(NamedTuple):
    """Rows of one split, which can be iterated over only once.

    Attributes:
        total: number of rows; None if this is unknown before reading.
        rows: iterator over (location, text, raw label). Error messages contain the location, such as "row
            3".
    """

    total: int | None
    rows: Iterator[TextRow]


class Source(SharedData, frozen=True, kw_only=True):
    """Labelled texts with splits, classes and a vocabulary.

    Attributes:
        train: name of the training split.
        test: name of the test split; "" if there is no test split.
        labels: raw label for each class. The order defines the classes: -1 and +1 for two classes, 0 to K -
            1 for more. A list merges several raw labels into one class, as in [[1, 2], [4, 5]]. The raw
            labels 1.0, "1" and true are equivalent to 1.
        class_names: names of the classes for display, in the order of `labels`; defaults to the labels.
        ignore_labels: raw labels whose rows are ignored.
        balance: True to subsample all classes in a split to the size of the smallest class.
        validation: fraction of the training rows in each class to hold out for validation, after balancing.
            Rows are chosen deterministically, as for `balance`.
        min_count: minimum number of occurrences of a word in the training split.
        max_vocab: maximum vocabulary size; the most frequent words are kept. Unlimited by default.
        max_length: maximum length of a text, counted in words of the vocabulary; unlimited by default.
        order: "kept" to read texts as sequences of token ids, for models that depend on the order. By
            default, texts are read as bags of words.
        escapes: "kept" to read a backslash followed by n as two characters. By default, it is read as a
            line break, as in the files of Yelp, Amazon and DBpedia, if the words after it show this in the
            training texts: they begin with a capital letter, follow a full stop, or occur elsewhere without
            the n. In a text in which most backslashes precede other letters, it is two characters.
        empty: handling of rows that have no label or no word in the vocabulary: "error", or "drop" to
            ignore them. Rows without a word in the vocabulary are dropped after balancing and after the
            validation split.
        inert: settings that do not affect results, such as paths and class names.
    """

    overridable: ClassVar[frozenset[str]] = SharedData.overridable | {"encoding", "split_column"}
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
        """Raise InputError for repeated labels or class names, missing class names or an unknown encoding."""
        class_numbers(self.labels, self.ignore_labels)
        names = self.class_names or ()
        if self.class_names is not None and len(names) != len(self.labels):
            raise InputError(
                f"class_names: {len(names)} names for {len(self.labels)} labels; expected one per label, "
                "in the same order"
            )
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"class_names: {name!r} occurs twice; rename one of the classes")
        codec(self.encoding)

    @property
    def encoding(self) -> str | None:
        """Return the encoding of the files, or None if the format determines it."""
        return None

    @property
    def split_column(self) -> str | None:
        """Return the field that contains the split of each row, or None if each split has its own files."""
        return None

    @property
    def dataset_type(self) -> type[Dataset]:
        """Return the type of dataset that the source loads."""
        return Sequences if self.order == "kept" else Corpus

    @property
    def held_out(self) -> bool:
        """Return True if some training rows are held out for validation."""
        return self.validation > 0

    def load(self, progress: Progress = silent) -> Loaded:
        """Read the texts, or load them from the cache; see `text.load_text`."""
        read = text.load_text(self, progress=progress)
        train = read.train
        tokens = jax.jit(token_statistics)(train) if isinstance(train, Corpus) else None
        splits = Splits(train, tokens, read.test, read.validation)
        return Loaded(splits, True, read.vocabulary.tokens)

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits: "train", and "test" if a test split is set."""
        return ("train", "test") if self.test else ("train",)

    def files(self) -> dict[str, str]:
        """Return the files from which the rows are read.

        Returns:
            Paths, keyed by name. The names and their order do not depend on where the files are stored.

        Raises:
            InputError: there are no files.
        """
        raise NotImplementedError

    def read(self, split: str) -> TextRows:
        """Open a split, one of `splits`, and return its rows in the order of the files.

        Raises:
            InputError: a file is missing or unreadable. The error may be raised later, when the rows are
                read.
        """
        raise NotImplementedError


def as_text(value: Any, where: str) -> str:
    """Convert the text of a row to a string: bytes are decoded as UTF-8, and null becomes an empty string.

    Raises:
        InputError: the value is not a string.
    """
    if is_missing(value):
        return ""
    if isinstance(value, bytes):
        with reading(where):
            return value.decode("utf-8-sig")
    if not isinstance(value, str):
        raise InputError(
            f"data.text: {where} contains {value!r:.40}, which is not a string; set data.text to the "
            "field that holds the text"
        )
    return value
