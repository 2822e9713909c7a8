"""Hashes of what a study depends on besides its settings: custom code, and the files that it reads."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxattn.core.settings import FILE, Spec, has_mark
from jaxattn.lab.study.definition import Definition
from jaxattn.lab.study.registry import fields_of
from jaxattn.lab.study.setting import Cell, Setting
from jaxattn.lab.texts.cache import source_digest
from jaxattn.lab.texts.source import Source


def source_hashes(study: Definition) -> dict[str, str | None]:
    """Return the hashes of the custom code of a study, by import path, and those of `input_hashes`.

    The hash of code that cannot be hashed is None.
    """
    return {path: study.names.code_hash(path) for path in study.custom_kinds} | input_hashes(study.cells)


def is_code(key: str) -> bool:
    """Return whether a key of `source_hashes` is the import path of custom code."""
    return ":" in key


def input_hashes(cells: Iterable[Cell]) -> dict[str, str]:
    """Return the hash of every file that a setting of a study names, and of the texts.

    The hash depends on the contents, not on where a file is. Files that a custom function opens without such
    a setting are not known.

    Returns:
        Hashes of 40 hexadecimal digits. Their keys describe the files for error messages: "the texts of
        data", or the name of a file, such as "e.npy". Keys that are not unique are numbered.

    Raises:
        InputError: a file cannot be read.
    """
    found: dict[tuple[str, ...], str] = {}
    # Cells share most of their parts, so consider each part once.
    parts = list({id(part): part for cell in cells for part in _parts(cell.setting)}.values())
    for part in parts:
        if isinstance(part, Source):
            files = part.files()
            # Files of texts may be renamed, so their names are not in the key.
            found.setdefault(("the texts of data", *files.values()), source_digest(files, b""))
    for path in dict.fromkeys(path for part in parts for path in _named(part)):
        if Path(path).is_file():
            found[Path(path).name.replace(":", "_"), path] = source_digest({"": path}, b"")
    hashes: dict[str, str] = {}
    for (name, *_), digest in found.items():
        number = sum(each == name or each.startswith(f"{name} (") for each in hashes)
        hashes[f"{name} ({number + 1})" if number else name] = digest
    return hashes


def _parts(setting: Setting) -> tuple[Any, ...]:
    probes = (*setting.probes.at_steps, *setting.probes.of_phases)
    return setting.data, setting.model, setting.loss, *setting.starts.values(), *setting.phases, *probes


def _named(part: Any) -> Iterator[str]:
    """Yield the paths in settings that are annotated as `FilePath`, without a suffix such as ":KEY"."""
    for field in fields_of(type(part)) if isinstance(part, Spec) else ():
        if has_mark(field.type, FILE):
            for path in _strings(getattr(part, field.name)):
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
