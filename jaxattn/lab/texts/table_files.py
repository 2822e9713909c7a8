"""Readers for files of labelled rows with named fields, in Parquet, CSV and JSON Lines format."""

import csv
import glob
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from jaxattn.core.errors import InputError, first_line, listed
from jaxattn.lab.texts.labelled import class_numbers, plain_text
from jaxattn.lab.texts.source import Name, Source, TextRow, TextRows, as_text
from jaxattn.lab.texts.text_files import decoding, reading, refuse_compressed

_BATCH = 512
# Names with which the files of a split begin.
_SPLITS = dict.fromkeys(("train", "training"), "train") | {"test": "test", "testing": "test"}
_SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
_SPLIT = re.compile(rf"({'|'.join(_SPLITS)})(?:[^a-z]|$)", re.IGNORECASE)

# One field, or several fields to concatenate.
Texts = Name | Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]


class Files(Source, frozen=True, kw_only=True):
    """Rows in a single file, or in one file per split. A split may consist of several shards.

    Attributes:
        path: file with the training rows, or a pattern such as "train-*.parquet".
        test_path: file with the test rows, or a pattern.
    """

    path: Name
    test_path: str | None = None

    def check(self, *context: object) -> None:
        """Raise InputError if settings are incompatible with one another."""
        super().check()
        if not self.split_column and (self.train != "train" or self.test not in ("test", "", None)):
            raise InputError(
                "train, test: both are values of split_column, which is not set; set split_column, or remove "
                "train and test"
            )

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits: "train", and "test" if a test file or a split column is set."""
        there = self.test_path or self.split_column
        return ("train", "test") if self.test and there else ("train",)

    def files(self) -> dict[str, str]:
        """Return the files of all splits. Files that match the same pattern are sorted by name."""
        paths = {setting: self._found(setting) for setting in ("path", "test_path")}
        if not self.split_column:
            _check_apart(**paths)
        return {
            f"{setting} {number}" if number else setting: path
            for setting, found in paths.items()
            for number, path in enumerate(found)
        }

    def _found(self, setting: str) -> list[str]:
        if not (given := getattr(self, setting)):
            return []
        location = os.path.expanduser(given)
        if os.path.isfile(location):
            return [location]
        if found := sorted(filter(os.path.isfile, glob.glob(location, recursive=True))):
            return found
        where = os.path.abspath(location)
        if os.path.isdir(location):
            pattern = _pattern(where, "test" if setting == "test_path" else "train")
            raise InputError(f'data.{setting}: {where} is a folder; use a pattern for its files: "{pattern}"')
        raise InputError(f"data.{setting}: no file {where}")

    def read(self, split: str) -> TextRows:
        """Open a split, one of `splits`, and return its rows."""
        paths = self._found("test_path" if split == "test" and self.test_path else "path")
        totals = [self._total(path) for path in paths]
        total = None if None in totals else sum(filter(None, totals))
        return TextRows(total, self._rows(paths, getattr(self, split)))

    def _total(self, path: str) -> int | None:
        return None

    def _rows(self, paths: Sequence[str], wanted: str) -> Iterator[TextRow]:
        raise NotImplementedError


def _split_of(name: str) -> tuple[str, str]:
    """Return the split that a file or folder name begins with, and this part of the name, or "" twice."""
    found = _SPLIT.match(name)
    return (_SPLITS[found[1].lower()], found[0]) if found else ("", "")


def _pattern(folder: str, split: str) -> str:
    """Return a pattern for the files of one split in a folder, or for all files if no name is a split."""
    for name in sorted(os.listdir(folder)):
        found, start = _split_of(name)
        if found == split:
            return os.path.join(
                folder, f"{name}/*" if os.path.isdir(os.path.join(folder, name)) else f"{start}*"
            )
    return f"{folder}/*"


def _check_apart(path: Sequence[str], test_path: Sequence[str]) -> None:
    """Raise InputError if the training files include a test file, or have the names of several splits."""
    tests = {os.path.realpath(file): file for file in test_path}
    for file in path:
        if os.path.realpath(file) in tests:
            raise InputError(
                f"data.path, data.test_path: {file} is in both splits; use patterns that keep them apart, "
                'such as "train-*" and "test-*"'
            )
    inside = os.path.commonpath(path) if len(path) > 1 else ""
    first: dict[str, str] = {}
    for file in path if inside else ():
        names = os.path.relpath(file, inside).split(os.sep)
        split = next(filter(None, (_split_of(name)[0] for name in names)), "")
        if split:
            first.setdefault(split, file)
    if len(first) > 1:
        raise InputError(
            f"data.path: matches files of several splits ({listed(first.values())}); use a pattern for the "
            f'training files, such as "{_pattern(inside, "train")}"'
        )


def place_in(paths: Sequence[str], path: str, location: str) -> str:
    """Return the location of a row for messages; it includes the file name if there are several files."""
    return location if len(paths) == 1 else f"{location} of {os.path.basename(path)}"


class _Table(Files, frozen=True, kw_only=True):
    """Rows with named fields, in a single file or in one file per split.

    Attributes:
        text: field that contains the text, or a list of fields to concatenate.
        label: field that contains the label.
        split_column: field that contains the split of each row, if one file contains several splits.
            In that case, `train` and `test` are values of this field, or several values joined by "+", such
            as "train+extra".
    """

    text: Texts = "text"
    label: Name = "label"
    split_column: str | None = None

    def check(self, *context: object) -> None:
        super().check()
        if self.split_column and self.test_path:
            raise InputError("test_path, split_column: both select the test rows; set only one of them")

    def _records(self, path: str) -> Iterator[Any]:
        """Yield the location and the values of `table_fields` for each row in a file."""
        raise NotImplementedError

    def _rows(self, paths: Sequence[str], wanted: str) -> Iterator[TextRow]:
        seen: set[str] = set()
        values = wanted.split("+")
        number = len(column_names(self.text))
        for path in paths:
            for location, *fields in self._records(path):
                texts, (label, *split) = fields[:number], fields[number:]
                seen.update(map(str, split))
                if not split or str(split[0]) in values:
                    yield row_of(place_in(paths, path, location), texts, label, path)
        for value in values if self.split_column else ():
            if value not in seen:
                raise InputError(
                    f"data.split_column: no row in {', '.join(paths):.400} has {self.split_column} = "
                    f"{value!r}; choose from {listed(sorted(seen))}"
                )


class Parquet(_Table, frozen=True, kw_only=True):
    """Parquet files; `path` may be a pattern such as "train-*.parquet"."""

    def _total(self, path: str) -> int | None:
        import pyarrow.parquet as pq

        if self.split_column:
            return None
        with reading(path):
            refuse_compressed(path)
            return pq.read_metadata(path).num_rows

    def _records(self, path: str) -> Iterator[Any]:
        import pyarrow.parquet as pq

        row = itertools.count()
        with reading(path), pq.ParquetFile(path) as file:
            columns = table_fields(self, file.schema_arrow.names, path)
            for batch in file.iter_batches(_BATCH, columns=columns):
                for fields in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                    yield f"row {next(row)}", *fields


class Csv(_Table, frozen=True, kw_only=True):
    """CSV files, with a header line unless `columns` is given.

    Attributes:
        columns: names of the fields, from left to right, for files without a header line.
        delimiter: character between fields, such as a tab.
        quoting: "fields" if quotes enclose fields, or "none" if they are ordinary characters. The default is
            "none" if this makes every line a row with a known label, else "fields".
        encoding: encoding, such as "cp1252"; defaults to UTF-8.
    """

    columns: Annotated[tuple[Name, ...], msgspec.Meta(min_length=2)] | None = None
    delimiter: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","
    quoting: Literal["fields", "none"] | None = None
    encoding: str | None = None

    def _records(self, path: str) -> Iterator[Any]:
        # The default field size limit of 128 KiB would reject long texts.
        csv.field_size_limit(max(csv.field_size_limit(), 2**30))
        with decoding(path, self.encoding) as encoding:
            letters = self.quoting == "none" or (self.quoting is None and self._is_unquoted(path, encoding))
            with open(path, encoding=encoding, newline="") as file:
                lines = csv.reader(file, **self._dialect(letters))
                try:
                    yield from self._parsed(lines, path)
                except csv.Error as error:
                    remedy = (
                        "" if letters else ', or set data.quoting = "none" if they are ordinary characters'
                    )
                    where = f"line {lines.line_num} of {path}"
                    raise InputError(f"data: {where}: {error}; fix the quotes{remedy}") from error

    def _dialect(self, letters: bool) -> dict[str, Any]:
        quoting = csv.QUOTE_NONE if letters else csv.QUOTE_MINIMAL
        return {"delimiter": self.delimiter, "quoting": quoting, "strict": True}

    def _is_unquoted(self, path: str, encoding: str) -> bool:
        """Return True if every line is a row with a known label when quotes are ordinary characters."""
        with open(path, encoding=encoding, newline="") as file:
            lines = csv.reader(file, **self._dialect(letters=True))
            try:
                header = self.columns or next(lines, [])
                is_row = self._row_test(header)
                return self.label in header and all(is_row(fields) for fields in lines if fields)
            except csv.Error:
                return False

    def _row_test(self, header: Sequence[str]) -> Callable[[Sequence[str]], bool]:
        known = {None, *class_numbers(self.labels, self.ignore_labels)}
        location = header.index(self.label) if self.label in header else 0
        return lambda fields: len(fields) == len(header) and plain_text(fields[location]) in known

    def _parsed(self, lines: Any, path: str) -> Iterator[Any]:
        header: Sequence[str] = self.columns or next(lines, [])
        wanted = table_fields(self, header, path, self._hint(header))
        columns, is_row = [header.index(name) for name in wanted], self._row_test(header)
        last = lines.line_num
        for fields in lines:
            if len(fields) not in (0, len(header)):
                fault = f"has {len(fields)} fields, but there are {len(header)} field names"
                remedy = "list all of them in data.columns, or " if self.columns else ""
                raise InputError(f"data: line {lines.line_num} of {path} {fault}; {remedy}fix the quotes")
            if self.quoting is None and lines.line_num > last + 1:
                self._check_one_row(fields, is_row, f"lines {last + 1} to {lines.line_num} of {path}")
            last = lines.line_num
            if fields:
                yield f"line {last}", *(fields[column] for column in columns)

    def _check_one_row(self, fields: list[str], is_row: Callable[[Sequence[str]], bool], where: str) -> None:
        every = self.delimiter.join(fields).splitlines()
        if any(is_row(line.split(self.delimiter)) for line in every[:-1]):
            raise InputError(
                f"data: {where} are read as one row because of quotes, but look like several rows; set "
                'data.quoting = "none" if quotes are ordinary characters in this file, and "fields" otherwise'
            )

    def _hint(self, header: Sequence[str]) -> str:
        if self.columns:
            return ""
        if len(header) < 2:
            return '; for lines of a label and a text set data.kind = "lines", else data.delimiter'
        return '; if that is a row, set the field names, such as data.columns = ["label", "text"]'


class Jsonl(_Table, frozen=True, kw_only=True):
    """Files with one JSON object per line.

    Attributes:
        encoding: encoding, such as "cp1252"; defaults to UTF-8.
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
                    # By default, the decoder keeps only the last value of a repeated name, so collect all
                    # names.
                    names = [name for name, _ in json.loads(line, object_pairs_hook=tuple)]
                except (msgspec.DecodeError, RecursionError) as error:
                    raise InputError(
                        f"data: {where} is not a JSON object: {first_line(error)}; write one object per line"
                    ) from error
                yield f"line {number}", *map(fields.get, table_fields(self, names, where))


def column_names(text: Any) -> tuple[str, ...]:
    """Return the names of the fields that contain the text."""
    return (text,) if isinstance(text, str) else text


def table_fields(source: Any, have: Sequence[str], where: str, hint: str = "") -> list[str]:
    """Return the names of the text, label and split fields; each must occur exactly once in `have`."""
    split = source.split_column
    named = [*(("text", name) for name in column_names(source.text)), ("label", source.label)]
    named += [("split_column", split)] if split else []
    for setting, name in named:
        if (number := have.count(name)) != 1:
            what = "no field" if number == 0 else f"{number} fields"
            raise InputError(f"data.{setting}: {where} has {what} {name!r}; choose from {listed(have)}{hint}")
    return [name for _, name in named]


def row_of(location: str, texts: Sequence[Any], label: Any, where: str) -> TextRow:
    """Build a row from its fields; several text fields are joined with line breaks."""
    return location, "\n".join(as_text(value, f"{location} of {where}") for value in texts), label
