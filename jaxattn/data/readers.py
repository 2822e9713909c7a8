"""Where labelled texts come from: one settings type per kind of source, which lists and reads its files."""

import csv
import glob
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from jaxattn.core.errors import InputError
from jaxattn.data.files import REMEDY, decoding, first_line, listed, reading
from jaxattn.data.source import Label, Name, Row, Rows, Source, as_text

_BATCH = 512


# One field, or several whose texts follow each other.
Texts = Name | Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]


class Tfds(Source, frozen=True, kw_only=True):
    """A prepared data set of tensorflow-datasets in a format with random access. TensorFlow is not needed.

    Attributes:
        dataset: name of the data set; "name/config:1.0.0" picks a configuration and a version.
        data_dir: the folder of prepared data sets; None for $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        text: the feature with the text, or several, whose texts follow each other.
        label: the feature with the label.
        train: name of the training split; slices such as "train[:20%]" are understood.
        test: name of the test split, or a slice; "" if there is none.
    """

    dataset: Name
    data_dir: str | None = None
    text: Texts = "text"
    label: Name = "label"

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
        fields = _fields(self, list(data.dataset_info.features), self.dataset)
        return Rows(len(data), self._rows(data, fields, where))

    def _rows(self, data: Any, fields: list[str], where: str) -> Iterator[Row]:
        with reading(where):
            for start in range(0, len(data), _BATCH):
                batch = data.__getitems__(range(start, min(start + _BATCH, len(data))))
                for row, example in enumerate(batch, start):
                    *texts, label = (example[name] for name in fields)
                    yield _row(f"row {row}", texts, _plain(label), where)


class _Files(Source, frozen=True, kw_only=True):
    """Rows in a file, or in one file per split.

    Attributes:
        path: the file with the training rows.
        test_path: the file with the test rows.
    """

    path: Name
    test_path: str | None = None

    def check(self, *context: object) -> None:
        """Raise InputError if settings contradict each other."""
        super().check()
        if not self.split_column and (self.train != "train" or self.test not in ("test", "", None)):
            raise InputError("train, test: they are values of split_column; set it, or leave them out")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are: "train", and "test" if something says where."""
        there = self.test_path or self.split_column
        return ("train", "test") if self.test and there else ("train",)

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
        return Rows(self._total(path), self._rows(path, getattr(self, split)))

    def _total(self, path: str) -> int | None:
        """Count the rows of a file if that can be done without reading it."""
        return None

    def _rows(self, path: str, wanted: str) -> Iterator[Row]:
        """Yield the rows of a split."""
        raise NotImplementedError

    def _written(self) -> dict[str, Label]:
        """The labels by how they are written."""
        return {str(label): label for label in (*self.labels, *self.ignore_labels)}


class _Table(_Files, frozen=True, kw_only=True):
    """Rows with named fields in a file, or in one file per split.

    Attributes:
        text: the field with the text, or several, whose texts follow each other.
        label: the field with the label.
        split_column: the field that tells the splits of one file apart; `train`, `test` are values of it, or
            several joined by "+", such as "train+extra".
    """

    text: Texts = "text"
    label: Name = "label"
    split_column: str | None = None

    def check(self, *context: object) -> None:
        """Raise InputError if settings contradict each other."""
        super().check()
        if self.split_column and self.test_path:
            raise InputError("test_path, split_column: both say where the test rows are; keep one of them")

    def _records(self, path: str) -> Iterator[Any]:
        """Yield the place and the values of `_fields` of each row of a file."""
        raise NotImplementedError

    def _rows(self, path: str, wanted: str) -> Iterator[Row]:
        seen: set[str] = set()
        values = wanted.split("+")
        number = len(_names(self.text))
        for place, *fields in self._records(path):
            texts, (label, *split) = fields[:number], fields[number:]
            seen.update(map(str, split))
            if not split or str(split[0]) in values:
                yield _row(place, texts, label, path)
        for value in values if self.split_column else ():
            if value not in seen:
                raise InputError(
                    f"data.split_column: no row of {path} has {self.split_column} = {value!r}; "
                    f"there are {listed(sorted(seen))}"
                )


class Parquet(_Table, frozen=True, kw_only=True):
    """Rows of Parquet files."""

    def _total(self, path: str) -> int | None:
        import pyarrow.parquet as pq

        if self.split_column:
            return None
        with reading(path):
            return pq.read_metadata(path).num_rows

    def _records(self, path: str) -> Iterator[Any]:
        import pyarrow.parquet as pq

        row = itertools.count()
        with reading(path), pq.ParquetFile(path) as file:
            names = _fields(self, file.schema_arrow.names, path)
            for batch in file.iter_batches(_BATCH, columns=names):
                for fields in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    yield f"row {next(row)}", *fields


class Csv(_Table, frozen=True, kw_only=True):
    """Rows of CSV files, with a header line unless `columns` is set. Labels are compared as they are written.

    Attributes:
        columns: names of the fields of files without a header line, from left to right.
        delimiter: the character between fields, such as "\\t".
        encoding: that of the files, such as "latin-1"; UTF-8 if None.
    """

    columns: Annotated[tuple[Name, ...], msgspec.Meta(min_length=2)] | None = None
    delimiter: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","
    encoding: str | None = None

    def _records(self, path: str) -> Iterator[Any]:
        # The limit is one for the whole process and would refuse texts of more than 128 KiB.
        csv.field_size_limit(max(csv.field_size_limit(), 2**30))
        written = self._written()
        with decoding(path, self.encoding) as encoding, open(path, encoding=encoding, newline="") as file:
            lines = csv.reader(file, delimiter=self.delimiter, strict=True)
            try:
                header = self.columns or next(lines, [])
                names = _fields(self, header, path, self._hint(header))
                columns, label = [header.index(name) for name in names], len(_names(self.text))
                for fields in lines:
                    if len(fields) not in (0, len(header)):
                        what = f"{len(fields)} fields where there are names for {len(header)}"
                        remedy = "name all of them in data.columns, or " if self.columns else ""
                        raise InputError(
                            f"data: line {lines.line_num} of {path}: {what}; {remedy}fix its quotes"
                        )
                    if fields:
                        values: list[Any] = [fields[column] for column in columns]
                        values[label] = written.get(values[label], values[label])
                        yield f"line {lines.line_num}", *values
            except csv.Error as error:
                raise InputError(f"data: line {lines.line_num} of {path}: {error}; fix its quotes") from error

    def _hint(self, header: Sequence[str]) -> str:
        if self.columns:
            return ""
        if len(header) < 2:
            return '; for lines of a label and a text set data.kind = "lines", else data.delimiter'
        return '; if that is a row, name the fields, such as data.columns = ["label", "text"]'


class Jsonl(_Table, frozen=True, kw_only=True):
    """Rows of files with one JSON object per line.

    Attributes:
        encoding: that of the files, such as "latin-1"; UTF-8 if None.
    """

    encoding: str | None = None

    def _records(self, path: str) -> Iterator[Any]:
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        with decoding(path, self.encoding) as encoding, open(path, encoding=encoding) as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                where = f"line {number} of {path}"
                try:
                    fields = decode(line)
                    # Of a name that is there twice the first decoder keeps the last.
                    names = [name for name, _ in json.loads(line, object_pairs_hook=tuple)]
                except (msgspec.DecodeError, RecursionError) as error:
                    raise InputError(f"data: {where} is not a JSON object: {first_line(error)}") from error
                yield f"line {number}", *map(fields.get, _fields(self, names, where))


class Lines(_Files, frozen=True, kw_only=True):
    """Lines of a label and a text, such as "pos a fine film". Labels are compared as they are written.

    Attributes:
        separator: what stands between label and text; white space if None.
        encoding: that of the files, such as "latin-1"; UTF-8 if None.
    """

    separator: Name | None = None
    encoding: str | None = None

    def _rows(self, path: str, wanted: str) -> Iterator[Row]:
        written = self._written()
        with decoding(path, self.encoding) as encoding, open(path, encoding=encoding) as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                label, *rest = line.removesuffix("\n").split(self.separator, 1)
                if not rest:
                    raise InputError(
                        f"data: line {number} of {path} is {line.strip()!r:.40}, not a label and a text; "
                        "data.separator says what stands between them"
                    )
                yield f"line {number}", rest[0], written.get(label, label)


class Folder(Source, frozen=True, kw_only=True):
    """Texts as files PATH/SPLIT/LABEL/*.txt, as in aclImdb.

    Attributes:
        path: the folder of the splits.
        train: the folder of the training split in `path`.
        test: the folder of the test split in `path`; "" if there is none.
        labels: the folder of each class in those of the splits, in the order of the classes.
        ignore_labels: other folders there, which are left out.
        encoding: that of the files, such as "latin-1"; UTF-8 if None.
    """

    path: Name
    labels: Annotated[tuple[Label, ...], msgspec.Meta(min_length=2)] = ("neg", "pos")
    ignore_labels: tuple[Label, ...] = ("unsup",)
    encoding: str | None = None

    def files(self) -> dict[str, str]:
        """List the files of the classes in both splits."""
        return {name: path for split in self.splits for name, path, _ in self._texts(split)}

    def read(self, split: str) -> Rows:
        """Open a split."""
        texts = self._texts(split)
        return Rows(len(texts), ((name, self._content(path), label) for name, path, label in texts))

    def _content(self, path: str) -> str:
        with decoding(path, self.encoding) as encoding:
            content = Path(path).read_bytes().decode(encoding)
        # Other encodings of two bytes a character can pass for UTF-8 with zeros in it.
        if "\0" in content:
            raise InputError(f"data: {path} is not a text; remove it, or {REMEDY}")
        return content

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


READERS: dict[str, type[Source]] = {
    "tfds": Tfds,
    "parquet": Parquet,
    "csv": Csv,
    "jsonl": Jsonl,
    "lines": Lines,
    "folder": Folder,
}


def _names(text: Any) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _fields(source: Any, have: Sequence[str], where: str, hint: str = "") -> list[str]:
    """Names of the fields for the texts, the label and, if set, the split; each must be there once."""
    split = source.split_column
    named = [*(("text", name) for name in _names(source.text)), ("label", source.label)]
    named += [("split_column", split)] if split else []
    for setting, name in named:
        if (number := have.count(name)) != 1:
            what = "no field" if number == 0 else f"{number} fields"
            raise InputError(f"data.{setting}: {where} has {what} {name!r}; it has {listed(have)}{hint}")
    return [name for _, name in named]


def _row(place: str, texts: Sequence[Any], label: Any, where: str) -> Row:
    return place, "\n".join(as_text(value, f"{place} of {where}") for value in texts), label


def _plain(label: Any) -> Any:
    """Turn NumPy's scalars and bytes into Python's numbers and strings."""
    value = label.tolist() if isinstance(label, np.generic | np.ndarray) else label
    return value.decode(errors="replace") if isinstance(value, bytes) else value
