"""Hashes of the files that the settings of a study name."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxattn.core.errors import RunError
from jaxattn.core.settings import FILE
from jaxattn.core.spec import Spec
from jaxattn.lab.study.registry import marked_settings
from jaxattn.lab.study.setting import Setting
from jaxattn.lab.texts.cache import source_digest
from jaxattn.lab.texts.source import Source

TEXTS = "the texts of data"


class Inputs:
    """Hashes of files, each of which is read once.

    A hash depends on the contents of a file, not on where it is. Files that a custom function opens without a
    setting that names them are not known.

    Attributes:
        hashes: hashes of 40 hexadecimal digits. Their keys describe the files: "the texts of data", or the
            name of a file, such as "e.npy". Keys that are not unique are numbered.
    """

    def __init__(self) -> None:
        self.hashes: dict[str, str] = {}
        self._names: dict[tuple[str, ...], str] = {}
        # The files of each hash, with the state in which they were read.
        self._read_at: dict[str, tuple[Mapping[str, str], list[_State]]] = {}
        # Cells share most of their parts. Storing them prevents Python from reusing their ids.
        self._parts: dict[int, tuple[Any, tuple[str, ...]]] = {}

    def of(self, setting: Setting) -> dict[str, str]:
        """Return the hashes of the files that a setting names, by field and position in the setting.

        Raises:
            InputError: a file cannot be read.
        """
        probes = (*setting.probes.at_steps, *setting.probes.of_phases)
        parts = (
            setting.data,
            setting.model,
            setting.loss,
            *setting.starts.values(),
            *setting.phases,
            *probes,
        )
        found = {}
        for place, part in enumerate(parts):
            for number, name in enumerate(self._of_part(part)):
                found[f"{place}.{number}"] = self.hashes[name]
        return found

    def check(self) -> None:
        """Raise RunError if a file has changed since it was hashed, so that it may be read again."""
        for name, (files, before) in self._read_at.items():
            if _states(files) != before and source_digest(files, b"") != self.hashes[name]:
                raise RunError(
                    f"{name}: changed while the study was running; the same command continues with the files "
                    "as they are"
                )

    def _of_part(self, part: Any) -> tuple[str, ...]:
        if id(part) not in self._parts:
            self._parts[id(part)] = part, tuple(self._read(part))
        return self._parts[id(part)][1]

    def _read(self, part: Any) -> Iterator[str]:
        if isinstance(part, Source):
            files = part.files()
            # Files of texts may be renamed, so their names are not in the key.
            yield self._hash((TEXTS, *files.values()), files)
        for path in dict.fromkeys(_file_paths(part)):
            if Path(path).is_file():
                yield self._hash((Path(path).name, path), {"": path})

    def _hash(self, location: tuple[str, ...], files: Mapping[str, str]) -> str:
        if location not in self._names:
            name = location[0]
            number = sum(each == name or each.startswith(f"{name} (") for each in self.hashes)
            self._names[location] = f"{name} ({number + 1})" if number else name
            # The state comes first, so that a file that changes while it is hashed is hashed again.
            self._read_at[self._names[location]] = files, _states(files)
            self.hashes[self._names[location]] = source_digest(files, b"")
        return self._names[location]


_State = tuple[int, int, int] | None


def _states(files: Mapping[str, str]) -> list[_State]:
    """Return what the file system says about files, which differs if a file was written in the meantime."""
    found: list[_State] = []
    for path in files.values():
        try:
            state = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((state.st_ino, state.st_size, state.st_mtime_ns))
    return found


def _file_paths(part: Any) -> Iterator[str]:
    """Yield the paths in settings that are annotated as `FilePath`, without a suffix such as ":KEY"."""
    for name, mark in marked_settings(type(part)).items() if isinstance(part, Spec) else ():
        if mark == FILE:
            for path in _strings(getattr(part, name)):
                # A file may have a colon in its name.
                yield path if Path(path).is_file() else path.rpartition(":")[0] or path


def _strings(x: Any) -> Iterator[str]:
    if isinstance(x, str):
        yield x
    elif isinstance(x, Mapping):
        for each in x.values():
            yield from _strings(each)
    elif isinstance(x, list | tuple):
        for each in x:
            yield from _strings(each)
