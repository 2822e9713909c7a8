"""Readers for labelled texts, with one settings class per format."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxattn.core.errors import InputError, first_line, listed
from jaxattn.lab.texts.labelled import Label, members
from jaxattn.lab.texts.source import Labels, Name, Source, TextRow, TextRows
from jaxattn.lab.texts.table_files import Files, Texts, place_in, row_of, table_fields
from jaxattn.lab.texts.text_files import REMEDY, decoding, reading

_BATCH = 512


class Tfds(Source, frozen=True, kw_only=True):
    """Data set prepared by tensorflow-datasets in a random-access format. TensorFlow itself is not required.

    Attributes:
        dataset: name of the data set; "name/config:1.0.0" selects a configuration and a version.
        data_dir: folder with the prepared data sets; defaults to $TFDS_DATA_DIR or ~/tensorflow_datasets.
        text: feature that contains the text, or a list of features to concatenate.
        label: feature that contains the label.
        train: name of the training split, or a slice such as "train[:20%]".
        test: name of the test split, or a slice; "" if there is no test split.
    """

    dataset: Name
    data_dir: str | None = None
    text: Texts = "text"
    label: Name = "label"

    @property
    def _folder(self) -> str:
        return os.path.expanduser(self.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")

    def files(self) -> dict[str, str]:
        """Return the files of all configurations and versions, without importing tensorflow-datasets."""
        root = Path(self._folder, re.split("[/:]", self.dataset)[0])
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        if not paths:
            raise InputError(
                f"data.dataset: no dataset {self.dataset} in {self._folder}; check data.data_dir, "
                "or prepare the data: "
                f"tensorflow_datasets.builder({self.dataset!r}, data_dir={self._folder!r})"
                '.download_and_prepare(file_format="array_record")'
            )
        return {path.relative_to(root).as_posix(): str(path) for path in paths}

    def read(self, split: str) -> TextRows:
        """Open a split with `tensorflow_datasets.data_source`, and return its rows."""
        # tensorflow_datasets is slow to import, and a cached data set does not need it.
        import tensorflow_datasets as tfds

        name = getattr(self, split)
        where = f"split {name!r} of {self.dataset} in {self._folder}"
        try:
            data = tfds.data_source(self.dataset, split=name, data_dir=self._folder, download=False)
        # tensorflow-datasets raises a dozen exception types for invalid data.
        except Exception as error:
            raise InputError(
                f"data.{split}: cannot open {where}: {first_line(error)}; "
                'it must be a split of data prepared with file_format="array_record"'
            ) from error
        fields = table_fields(self, list(data.dataset_info.features), self.dataset)
        return TextRows(len(data), self._rows(data, fields, where))

    def _rows(self, data: Any, fields: list[str], where: str) -> Iterator[TextRow]:
        with reading(where):
            for start in range(0, len(data), _BATCH):
                batch = data.__getitems__(range(start, min(start + _BATCH, len(data))))
                for row, example in enumerate(batch, start):
                    *texts, label = (example[name] for name in fields)
                    yield row_of(f"row {row}", texts, _plain(label), where)


class Lines(Files, frozen=True, kw_only=True):
    """Files with a label and a text on each line, such as "pos a fine film".

    Attributes:
        separator: separator between label and text; defaults to white space.
        encoding: encoding, such as "cp1252"; defaults to UTF-8.
    """

    separator: Name | None = None
    encoding: str | None = None

    def _rows(self, paths: Sequence[str], wanted: str) -> Iterator[TextRow]:
        for path in paths:
            with decoding(path, self.encoding) as encoding, open(path, encoding=encoding) as file:
                for number, line in enumerate(file, 1):
                    if line.isspace():
                        continue
                    label, *rest = line.removesuffix("\n").split(self.separator, 1)
                    if not rest:
                        raise InputError(
                            f"data: line {number} of {path} has no separator ({line.strip()!r:.40}); "
                            "set data.separator to the string between label and text"
                        )
                    yield place_in(paths, path, f"line {number}"), rest[0], label


class Folder(Source, frozen=True, kw_only=True):
    """Texts in separate files, PATH/SPLIT/LABEL/*.txt, as in aclImdb.

    Attributes:
        path: folder that contains one folder per split.
        train: name of the training folder inside `path`.
        test: name of the test folder inside `path`; "" if there is no test split.
        labels: folder name for each class within a split. The order defines the classes.
        ignore_labels: folder names to ignore within a split.
        encoding: encoding, such as "cp1252"; defaults to UTF-8.
    """

    path: Name
    labels: Labels = ("neg", "pos")
    ignore_labels: tuple[Label, ...] = ("unsup",)
    encoding: str | None = None

    def files(self) -> dict[str, str]:
        """Return the paths of the text files of all classes and splits, keyed by SPLIT/LABEL/NAME."""
        return {name: path for split in self.splits for name, path, _ in self._texts(split)}

    def read(self, split: str) -> TextRows:
        """Open a split, one of `splits`, and return its rows."""
        texts = self._texts(split)
        return TextRows(len(texts), ((name, self._content(path), label) for name, path, label in texts))

    def _content(self, path: str) -> str:
        with decoding(path, self.encoding) as encoding:
            content = Path(path).read_bytes().decode(encoding)
        # UTF-16 text may also be valid UTF-8 that contains zero bytes.
        if "\0" in content:
            raise InputError(f"data: {path} is not a text file; remove it, or {REMEDY}")
        return content

    def _texts(self, split: str) -> list[tuple[str, str, Label]]:
        folder = os.path.join(os.path.expanduser(self.path), getattr(self, split))
        labels = [label for every in self.labels for label in members(every)]
        known = {str(label) for label in (*labels, *self.ignore_labels)}
        if not os.path.isdir(folder):
            raise InputError(f"data.path: no folder {folder}; check data.path and data.{split}")
        with reading(folder):
            for name in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
                if name not in known:
                    raise InputError(
                        f"data.labels: {folder} contains {name!r}, expected only {listed(map(str, labels))}; "
                        "add it to data.labels or data.ignore_labels"
                    )
            texts = []
            for label in labels:
                inside = os.path.join(folder, str(label))
                if not (names := sorted(glob.glob("*.txt", root_dir=inside))):
                    raise InputError(f"data.labels: no files {inside}/*.txt; check the folder names")
                # The names are part of the cache key, so they must be the same on every system.
                texts += [(f"{split}/{label}/{name}", os.path.join(inside, name), label) for name in names]
        return texts


def _plain(label: Any) -> Any:
    value = label.tolist() if isinstance(label, np.generic | np.ndarray) else label
    return value.decode(errors="replace") if isinstance(value, bytes) else value
