"""Whether every file of a results folder is what was written, and the command that mends what is not."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxattn.results.drawn import DRAWN, read_words
from jaxattn.storage import checkpoints, files, manifest, marks
from jaxattn.storage.files import Damaged
from jaxattn.storage.marks import Mark


def verify(directory: Path, progress: Callable[[str, float], None] = lambda name, share: None) -> list[str]:
    """Compare everything in a results folder with its checksums: arrays are read, tables are not parsed.

    Args:
        directory: the folder, finished or not.
        progress: told which batch is looked at, and the share that is done.

    Returns:
        A line for everything that is damaged or missing: what, and how to mend it.

    Raises:
        InputError: no results folder, or a file that cannot be read.
    """
    found = []
    nothing = {"batches": [], "sha256": {}, "cells": [], "status": ""}
    known: Mapping[str, Any] = nothing
    again = "run the same sweep again"
    try:
        known = manifest.read(directory)
        again = f"mend it with: {manifest.command(known)}"
    except Damaged as error:
        found.append(str(error))
    batches = marks.batches(directory)
    for number, batch in enumerate(batches):
        progress(batch, number / len(batches))
        found += _batch(directory.resolve(), batch, known, again)
    if known["status"] == "finished":
        planned = [batch["name"] for batch in known["batches"]]
        missing = [marks.path(directory, name) for name in planned if name not in batches]
        found += [f"{path}: missing; {again}" for path in missing]
        tables = {f"{name}.parquet": sha256 for name, sha256 in known["sha256"].items()}
        found += [f"{error}; {again}" for error in _damaged(directory, tables)]
    return found + [f"{error}; draw it again with: jaxattn report {directory}" for error in _drawn(directory)]


def _batch(directory: Path, batch: str, known: Mapping[str, Any], again: str) -> list[str]:
    """Check one batch; a run that goes on gives it another mark, and then it is checked anew."""
    while True:
        try:
            mark = marks.read(directory, batch)
        except Damaged as error:
            return [f"{error}; {again}"]
        if mark is None:
            return []
        found = _of_mark(directory, batch, mark, known, again)
        if not found or marks.read(directory, batch) == mark:
            return found


def _of_mark(directory: Path, batch: str, mark: Mark, known: Mapping[str, Any], again: str) -> list[str]:
    place = marks.path(directory, batch)
    other = marks.foreign(mark, known["cells"]) if known["cells"] else []
    found = [
        f"{place}: cell {cell} is of another config than the manifest says; delete it and {again}"
        for cell in other
    ]
    for table, sha256 in mark.tables.items():
        try:
            files.check(marks.table_path(directory, batch, table, sha256), directory, sha256)
        except Damaged as error:
            found.append(f"{error}; {again}")
    try:
        saved = marks.checkpoint_path(directory, batch, mark.checkpoint.number)
        checkpoints.restore(saved, mark.checkpoint, directory)
    except Damaged as error:
        # A run looks no more at the parameters of what is finished.
        first = f"delete {place} and " if mark.finished else ""
        found.append(f"{error}; {first}{again}")
    return found


def _drawn(directory: Path) -> Iterator[Damaged]:
    if not (directory / DRAWN).exists():
        return
    try:
        drawn = read_words(directory)
    except Damaged as error:
        yield error
        return
    yield from _damaged(directory, drawn.sha256)


def _damaged(directory: Path, sums: Mapping[str, str]) -> Iterator[Damaged]:
    for name, sha256 in sums.items():
        try:
            files.check(directory / name, directory, sha256)
        except Damaged as error:
            yield error
