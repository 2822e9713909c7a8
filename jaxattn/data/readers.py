"""Where labelled texts come from: one settings type per kind of source, which lists and reads its files."""

import csv
import glob
import itertools
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import msgspec
import numpy as np

from jaxattn.data import text
from jaxattn.data.messages import first_line, listed, reading
from jaxattn.data.splits import Loaded, Splits, token_statistics
from jaxattn.errors import InputError
from jaxattn.spec import PositiveInt, Spec

Label = int | str
Row = tuple[str, str, Any]
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_BATCH = 512


class Rows(NamedTuple):
    """The rows of one split, to be read once.

    Attributes:
        total: how many there are; None if only reading can tell.
        rows: (place, text, raw label) of each; the place, such as "row 3", names it in messages.
    """

    total: int | None
    rows: Iterator[Row]


class Source(Spec, frozen=True, kw_only=True):
    """What all kinds of source share: splits, classes and vocabulary.

    Attributes:
        train: name of the training split.
        test: name of the test split; "" or None if there is none.
        labels: raw label of each class, in the order of the classes: -1, +1 for two, 0 .. K-1 for more.
        ignore_labels: raw labels whose rows are left out.
        balance: in each split, keep only as many rows of every class as the smallest class has; which ones
            is always the same.
        validation: share of the training rows of every class that is held out as a validation split, after
            balancing; which rows is always the same.
        min_count: words that occur less often in the training split are unknown.
        max_vocab: the most words a vocabulary may hold, the most frequent ones; None for all.
        max_length: the most known words kept of a text, the first ones; None for all.
        empty: what to do with a text without a known word: "error", or "drop" to leave it out, after
            balancing and holding out.
        shared: True, all seeds have the same corpora.
        locations: the settings that say where files lie, and nothing about what is in them.
    """

    shared: ClassVar[bool] = True
    pads_vocabulary: ClassVar[bool] = False
    locations: ClassVar[frozenset[str]] = frozenset({"path", "test_path", "data_dir"})

    train: _Name = "train"
    test: str | None = "test"
    labels: Annotated[tuple[Label, ...], msgspec.Meta(min_length=2)] = (0, 1)
    ignore_labels: tuple[Label, ...] = ()
    balance: bool = False
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    min_count: PositiveInt = 1
    max_vocab: PositiveInt | None = None
    max_length: PositiveInt | None = None
    empty: Literal["error", "drop"] = "error"

    def check(self, *context: object) -> None:
        """Raise InputError if a label is named twice."""
        values = (*self.labels, *self.ignore_labels)
        for value in values:
            if values.count(value) > 1:
                raise InputError(f"labels, ignore_labels: {value!r} is named twice; name each label once")

    @property
    def held_out(self) -> bool:
        """Whether there is a validation corpus."""
        return self.validation > 0

    def load(self, progress: text.Progress = text.silent) -> Loaded:
        """Read the texts, or take them from the cache; see `text.load`."""
        read = text.load(self, progress=progress)
        splits = Splits(read.train, jax.jit(token_statistics)(read.train), read.test, read.validation)
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


class _Fields(Source, frozen=True, kw_only=True):
    """A source whose rows have named fields.

    Attributes:
        text: the field with the text.
        label: the field with the label.
    """

    text: _Name = "text"
    label: _Name = "label"

    def _columns(self, have: Collection[str], where: str) -> list[str]:
        """Names of the fields for the text, the label and, if set, the split; all of them must be there."""
        settings = [name for name in ("text", "label", "split_column") if getattr(self, name, None)]
        names = [getattr(self, setting) for setting in settings]
        for setting, name in zip(settings, names, strict=True):
            if name not in have:
                raise InputError(f"data.{setting}: {where} has no field {name!r}; it has {listed(have)}")
        return names


class Tfds(_Fields, frozen=True, kw_only=True):
    """A prepared data set of tensorflow-datasets in a format with random access. TensorFlow is not needed.

    Attributes:
        dataset: its name; "name/config:1.0.0" picks a configuration and a version.
        data_dir: the folder of prepared data sets; None for $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        train, test: split names; slices such as "train[:20%]" are understood.
    """

    dataset: _Name
    data_dir: str | None = None

    @property
    def _folder(self) -> str:
        return os.path.expanduser(self.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")

    def files(self) -> dict[str, str]:
        """List the data set's files in all configurations and versions, without importing tfds."""
        root = Path(self._folder, re.split("[/:]", self.dataset)[0])
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        if not paths:
            raise InputError(
                f"data.dataset: no {self.dataset} in {self._folder}; data.data_dir sets the folder. "
                f"To prepare it: tensorflow_datasets.builder({self.dataset!r}, data_dir={self._folder!r})"
                '.download_and_prepare(file_format="array_record")'
            )
        return {path.relative_to(root).as_posix(): str(path) for path in paths}

    def read(self, split: str) -> Rows:
        """Open a split with `tensorflow_datasets.data_source`."""
        # Importing it takes about as long as a whole load from the cache.
        import tensorflow_datasets as tfds

        name = getattr(self, split)
        where = f"split {name!r} of {self.dataset} in {self._folder}"
        try:
            data = tfds.data_source(self.dataset, split=name, data_dir=self._folder, download=False)
        # It has a dozen exception types for data that are not as they should be.
        except Exception as error:
            raise InputError(
                f"data.{split}: cannot open {where}: {first_line(error)}; "
                'it must be a split of data prepared with file_format="array_record"'
            ) from error
        self._columns(data.dataset_info.features, self.dataset)
        return Rows(len(data), self._rows(data, where))

    def _rows(self, data: Any, where: str) -> Iterator[Row]:
        with reading(where):
            for start in range(0, len(data), _BATCH):
                batch = data.__getitems__(range(start, min(start + _BATCH, len(data))))
                for row, example in enumerate(batch, start):
                    place = f"row {row}"
                    yield place, _text(example[self.text], f"{place} of {where}"), _plain(example[self.label])


class _Table(_Fields, frozen=True, kw_only=True):
    """Rows in a file, or in one file per split.

    Attributes:
        path: the file with the training rows; with all rows if `split_column` is set.
        test_path: the file with the test rows.
        split_column: the field that tells the splits of one file apart; `train`, `test` are values of it, or
            several joined by "+", such as "train+extra".
    """

    path: _Name
    test_path: str | None = None
    split_column: str | None = None

    def check(self, *context: object) -> None:
        """Raise InputError if settings contradict each other."""
        super().check()
        if self.split_column and self.test_path:
            raise InputError("test_path, split_column: both say where the test rows are; keep one of them")
        if not self.split_column and (self.train != "train" or self.test not in ("test", "", None)):
            raise InputError("train, test: they are values of split_column; set it, or leave them out")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are: "train", and "test" if `test_path` or `split_column` says where."""
        return ("train", "test") if self.test and (self.test_path or self.split_column) else ("train",)

    def files(self) -> dict[str, str]:
        """List the one or two files."""
        given = {"path": self.path, "test_path": self.test_path}
        found = {setting: os.path.expanduser(path) for setting, path in given.items() if path}
        for setting, path in found.items():
            if not os.path.isfile(path):
                raise InputError(f"data.{setting}: there is no file {os.path.abspath(path)}")
        return found

    def read(self, split: str) -> Rows:
        """Open a split."""
        files = self.files()
        path = files["test_path" if split == "test" and self.test_path else "path"]
        return Rows(None if self.split_column else self._total(path), self._rows(path, getattr(self, split)))

    def _total(self, path: str) -> int | None:
        """Count the rows of a file if that can be done without reading it."""
        return None

    def _records(self, path: str) -> Iterator[Any]:
        """Yield the place and the fields `_columns` of each row of a file."""
        raise NotImplementedError

    def _rows(self, path: str, wanted: str) -> Iterator[Row]:
        seen: set[str] = set()
        values = wanted.split("+")
        for place, content, label, *split in self._records(path):
            seen.update(map(str, split))
            if not split or str(split[0]) in values:
                yield place, _text(content, f"{place} of {path}"), label
        for value in values if self.split_column else ():
            if value not in seen:
                raise InputError(
                    f"data.split_column: no row of {path} has {self.split_column} = {value!r}; "
                    f"there are {listed(sorted(seen))}"
                )


class Parquet(_Table, frozen=True, kw_only=True):
    """Rows of Parquet files."""

    def _total(self, path: str) -> int:
        import pyarrow.parquet as pq

        with reading(path):
            return pq.read_metadata(path).num_rows

    def _records(self, path: str) -> Iterator[Any]:
        import pyarrow.parquet as pq

        row = itertools.count()
        with reading(path), pq.ParquetFile(path) as file:
            names = self._columns(file.schema_arrow.names, path)
            for batch in file.iter_batches(_BATCH, columns=names):
                for fields in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    yield f"row {next(row)}", *fields


class Csv(_Table, frozen=True, kw_only=True):
    """Rows of CSV files in UTF-8 with a header line. Labels are compared as they are written.

    Attributes:
        delimiter: the character between fields.
    """

    delimiter: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","

    def _records(self, path: str) -> Iterator[Any]:
        # The limit is one for the whole process and would refuse texts of more than 128 KiB.
        csv.field_size_limit(max(csv.field_size_limit(), 2**30))
        written = {str(label): label for label in (*self.labels, *self.ignore_labels)}
        with reading(path), open(path, encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=self.delimiter, strict=True)
            header = next(lines, [])
            columns = [header.index(name) for name in self._columns(header, path)]
            try:
                for fields in lines:
                    if len(fields) not in (0, len(header)):
                        raise csv.Error(f"{len(fields)} fields under a header of {len(header)}")
                    if fields:
                        text, label, *split = (fields[column] for column in columns)
                        yield f"line {lines.line_num}", text, written.get(label, label), *split
            except csv.Error as error:
                raise InputError(f"data: line {lines.line_num} of {path}: {error}; fix its quotes") from error


class Jsonl(_Table, frozen=True, kw_only=True):
    """Rows of files with one JSON object per line."""

    def _records(self, path: str) -> Iterator[Any]:
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        with reading(path), open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                where = f"line {number} of {path}"
                try:
                    fields = decode(line)
                except msgspec.DecodeError as error:
                    raise InputError(f"data: {where} is not a JSON object: {first_line(error)}") from error
                yield f"line {number}", *map(fields.get, self._columns(fields, where))


class Folder(Source, frozen=True, kw_only=True):
    """Texts as files PATH/SPLIT/LABEL/*.txt in UTF-8, as in aclImdb.

    Attributes:
        path: the folder.
        train, test: names of the folders of the splits.
        labels, ignore_labels: names of the folders of the classes.
    """

    path: _Name
    labels: Annotated[tuple[Label, ...], msgspec.Meta(min_length=2)] = ("neg", "pos")
    ignore_labels: tuple[Label, ...] = ("unsup",)

    def files(self) -> dict[str, str]:
        """List the files of the classes in both splits."""
        return {name: path for split in self.splits for name, path, _ in self._texts(split)}

    def read(self, split: str) -> Rows:
        """Open a split."""
        texts = self._texts(split)
        return Rows(len(texts), ((name, _read_text(path), label) for name, path, label in texts))

    def _texts(self, split: str) -> list[tuple[str, str, Label]]:
        """List (name, path, label) of the texts of a split, by class and file name."""
        folder = os.path.join(os.path.expanduser(self.path), getattr(self, split))
        known = {str(label) for label in (*self.labels, *self.ignore_labels)}
        if not os.path.isdir(folder):
            raise InputError(f"data.path: there is no folder {folder}; data.{split} names its last part")
        with reading(folder):
            for name in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
                if name not in known:
                    raise InputError(
                        f"data.labels: {folder} holds {name!r}; expected {listed(map(str, self.labels))}; "
                        "add it to data.labels or data.ignore_labels"
                    )
            texts = []
            for label in self.labels:
                inside = os.path.join(folder, str(label))
                if not (names := sorted(glob.glob("*.txt", root_dir=inside))):
                    raise InputError(f"data.labels: there is no file {inside}/*.txt")
                # The same names on every system, for they are part of the cache's key.
                texts += [(f"{split}/{label}/{name}", os.path.join(inside, name), label) for name in names]
        return texts


READERS = {"tfds": Tfds, "parquet": Parquet, "csv": Csv, "jsonl": Jsonl, "folder": Folder}


def _read_text(path: str) -> str:
    with reading(path):
        content = Path(path).read_bytes()
    # Other encodings of two bytes a character can pass for UTF-8 with zeros in it.
    if b"\0" in content:
        raise InputError(f"data: {path} is not a text; remove it, or save it as UTF-8")
    return _text(content, path)


def _text(value: Any, where: str) -> str:
    if isinstance(value, bytes):
        with reading(where):
            return value.decode("utf-8-sig")
    if not isinstance(value, str):
        raise InputError(f"data.text: {where} holds {value!r:.40}, not a text; name the field with the text")
    return value


def _plain(label: Any) -> Any:
    """Turn NumPy's scalars and bytes into Python's numbers and strings."""
    value = label.tolist() if isinstance(label, np.generic | np.ndarray) else label
    return value.decode(errors="replace") if isinstance(value, bytes) else value
