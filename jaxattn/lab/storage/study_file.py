"""The file study.json in a results folder: what was asked for last, and which runs that means.

Only readers use it. A run writes it when it has changed, and uses nothing of it.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from jaxattn.core.errors import InputError, at, counted
from jaxattn.core.settings import Count, Fraction
from jaxattn.lab.storage import files
from jaxattn.lab.storage.batch_record import FORMAT, Key
from jaxattn.lab.storage.files import Damaged

STUDY_FILE = "study.json"
MAX_BINS = 10_000
MAX_RUNS = 1_000_000
NOT_A_STUDY = "use a folder written by `jaxattn run`"


class StudyCell(msgspec.Struct):
    """A cell of a study.

    Attributes:
        cell: index of the cell.
        settings: its axis values.
        key: identity of the runs of the cell, except for their seeds.
        older: keys of runs of older code that are used instead, each with its seeds.
        config_hash: hash of the settings.
        hold: sources of randomness that are fixed to seed 0.
        varies: sources of randomness that vary with the seed.
    """

    cell: Count
    settings: dict[str, int | float | str | bool]
    key: Key
    older: dict[Key, tuple[Count, ...]] = {}
    config_hash: str | None = None
    hold: tuple[str, ...] = ()
    varies: tuple[str, ...] = ()


class _Phase(msgspec.Struct):
    name: str


class _Probes(msgspec.Struct):
    """Probe settings used by figures and caveats."""

    bins: Annotated[int, msgspec.Meta(ge=0, le=MAX_BINS)] | None = None
    low: float | None = None
    high: float | None = None
    min_count: Count | None = None
    important: Fraction | None = None


class Config(msgspec.Struct):
    """The tables of the study's config that readers validate."""

    phases: tuple[_Phase, ...]
    probes: _Probes = msgspec.field(default_factory=_Probes)
    figures: tuple[dict[str, Any], ...] = ()


class StudyFile(msgspec.Struct):
    """The validated part of the file. Readers ignore all other keys."""

    name: str
    command: str
    config: Config
    cells: Annotated[tuple[StudyCell, ...], msgspec.Meta(min_length=1)]
    seeds: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    format: int
    description: str = ""
    config_hash: str | None = None
    labels: dict[str, str] = {}
    scales: dict[str, tuple[Literal["linear", "log", "yes/no"], float | None, float | None]] = {}
    code: dict[str, str | None] = {}
    dtype: str | None = None


def wanted_runs(study: Mapping[str, Any]) -> dict[tuple[str, int], list[int]]:
    """Return the runs that a study asks for, each as a key and a seed, with the cells to which it belongs.

    Raises:
        InputError: there are too many runs for one folder.
    """
    _check_size(study)
    wanted: dict[tuple[str, int], list[int]] = {}
    for cell in study["cells"]:
        older = {seed: key for key, seeds in cell.get("older", {}).items() for seed in seeds}
        for seed in study["seeds"]:
            wanted.setdefault((older.get(seed, cell["key"]), seed), []).append(cell["cell"])
    return wanted


def _check_size(study: Mapping[str, Any]) -> None:
    cells, seeds = len(study["cells"]), len(study["seeds"])
    if cells * seeds > MAX_RUNS:
        raise InputError(
            f"{counted(cells, 'cell')} and {counted(seeds, 'seed')} are more than {MAX_RUNS:,} runs; use "
            "several folders"
        )


def read_study(directory: Path) -> dict[str, Any]:
    """Read the study of a results folder, like `find_study`, but raise InputError if there is none."""
    if (found := find_study(directory)) is not None:
        return found
    missing = f"no {STUDY_FILE}, so not a results folder" if directory.is_dir() else "no such folder"
    raise InputError(f"{directory}: {missing}; {NOT_A_STUDY}")


def find_study(directory: Path) -> dict[str, Any] | None:
    """Read and validate the study of a results folder; return None if there is none.

    Raises:
        InputError: the file cannot be read, or is not valid.
    """
    path = directory / STUDY_FILE
    try:
        content = _read(path, directory)
    except Damaged as error:
        if not path.exists():
            return None
        raise InputError(f"{error}; {run_again(directory)}") from None
    try:
        files.check_texts(content)
        checked = msgspec.convert(content, StudyFile)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise InputError(f"{path}: {error}; {NOT_A_STUDY}") from None
    if checked.format != FORMAT:
        raise InputError(
            f"{path}: written by another version of jaxattn; read it with that version, or run the sweep "
            "again into another folder"
        )
    for name, listed in (("cell", [cell.cell for cell in checked.cells]), ("seed", list(checked.seeds))):
        if len(set(listed)) < len(listed):
            raise InputError(f"{path}: a {name} is listed twice; {NOT_A_STUDY}")
    found = {key: content.get(key, default) for key, default in msgspec.to_builtins(checked).items()} | {
        "cells": [given | checked for given, checked in _cells(content, checked)]
    }
    with at(str(path)):
        _check_size(found)
    return found


def _read(path: Path, directory: Path) -> Any:
    """Read the file, and check its content if it has a checksum."""
    content = files.read_json(path, directory)
    has_seal = isinstance(content, dict) and files.SEAL in content
    return files.read_sealed(path, directory) if has_seal else content


def _cells(content: Mapping[str, Any], checked: StudyFile) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for given, cell in zip(content["cells"], checked.cells, strict=True):
        yield given, msgspec.to_builtins(cell)


def is_written(directory: Path, content: Mapping[str, Any]) -> bool:
    """Return whether study.json has this content already, except for the command."""
    try:
        known = _read(directory / STUDY_FILE, directory)
    except Damaged:
        return False
    return isinstance(known, dict) and known | {"command": ""} == _as_json(content) | {"command": ""}


def write_study(directory: Path, content: Mapping[str, Any]) -> None:
    """Replace the study of a results folder; raise OSError on failure."""
    files.write_file(directory / STUDY_FILE, files.sealed(_as_json(content), indent=1), directory)


def _as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content))
    return found


def run_command(study: Mapping[str, Any]) -> str:
    """Return the recorded command, which is untrusted input."""
    given = study["command"]
    return given if isinstance(given, str) else shlex.join(given)


def run_again(directory: Path) -> str:
    """Return an instruction for repairing or resuming a study. It contains nothing read from the folder."""
    return f"run the same sweep again into {directory}"


@contextmanager
def damage_as_input_error(directory: Path) -> Iterator[None]:
    """Inside the `with` block, convert Damaged to InputError, and add an instruction to the message."""
    try:
        yield
    except Damaged as error:
        raise InputError(f"{error}; {run_again(directory)}") from None
