"""The state of a batch: how far it is, and checksums of the tables and the checkpoint that belong to it.

Tables and checkpoints are written first, under names that no older state uses; the state makes them count.
What no state names is what a killed run left.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from jaxattn.lab.storage import files, tables
from jaxattn.lab.storage.files import Damaged

TABLES = ("records", "tokens")
NAME = re.compile(r"cells-(\d+)-(\d+)-seeds-(\d+)-(\d+)")


class Failure(msgspec.Struct):
    """One seed of one cell whose numbers failed, and from where on."""

    cell: int
    seed: int
    phase: str
    step: int
    reason: str


class Checkpoint(msgspec.Struct, frozen=True):
    """A saved tree of arrays.

    Attributes:
        number: names its folder.
        arrays: CRC-32 of every array, by its path in the tree.
        files: size of every file, and the SHA-256 of a small one, by its path in the folder.
    """

    number: int
    arrays: dict[str, int]
    files: dict[str, tuple[int, str | None]]


class Provenance(msgspec.Struct, frozen=True):
    """What made a batch: hashes of the configs of its cells by number, of the user's code, and the source."""

    cells: dict[str, str]
    code: dict[str, str | None]
    made_by: dict[str, str | None]


class Misplaced(Damaged):
    """Whole files of a batch under the name of another one."""


class BatchState(msgspec.Struct, frozen=True):
    """How far a batch is.

    Attributes:
        finished: whether its tables are whole and its checkpoint holds the trained parameters.
        phase: the phase it is in.
        step: steps taken in that phase.
        failures: the seeds that failed so far.
        tables: SHA-256 of its tables so far.
        checkpoint: what it continues from, or at its end the parameters.
        origin: what made it.
        batch: its name. Commit records of version 0.2 lack it, and are checked by cells and tables alone.
    """

    finished: bool
    phase: int
    step: int
    failures: list[dict[str, Any]]
    tables: dict[str, str]
    checkpoint: Checkpoint
    origin: Provenance
    batch: str | None = None


def spans(batch: str) -> tuple[range, range]:
    """Tell from its name which cells and which seeds a batch lies between."""
    found = NAME.fullmatch(batch)
    if found is None:
        raise ValueError(f"{batch!r} is not the name of a batch")
    cell, last_cell, seed, last_seed = map(int, found.groups())
    return range(cell, last_cell + 1), range(seed, last_seed + 1)


def overlaps(cells: Mapping[str, Iterable[int]]) -> list[tuple[str, str]]:
    """Return pairs of batches that have a lane in common; none exactly if no lane is in two batches.

    Args:
        cells: the cells of every batch, by its name.
    """
    runs: dict[int, list[tuple[int, int, str]]] = {}
    for batch, own in cells.items():
        seeds = spans(batch)[1]
        for cell in own:
            runs.setdefault(cell, []).append((seeds.start, seeds.stop, batch))
    found: dict[tuple[str, str], None] = {}
    for each in runs.values():
        end, last = -1, ""
        for start, stop, batch in sorted(each):
            if start < end:
                found[last, batch] = None
            if stop > end:
                end, last = stop, batch
    return list(found)


def path(directory: Path, batch: str) -> Path:
    """Say where the state of a batch is."""
    return directory / "parts" / f"{batch}.json"


def table_path(directory: Path, batch: str, table: str, sha256: str) -> Path:
    """Say where a table of a batch is."""
    return directory / "parts" / f"{batch}.{table}.{sha256[:16]}.parquet"


def checkpoint_path(directory: Path, batch: str, number: int) -> Path:
    """Say where a checkpoint of a batch is."""
    return directory / "checkpoints" / batch / str(number)


def batches(directory: Path) -> list[str]:
    """Name the batches that have a state."""
    names = (
        name.removesuffix(".json")
        for name in files.names(directory / "parts", directory)
        if name.endswith(".json")
    )
    return [name for name in names if NAME.fullmatch(name)]


def read(directory: Path, batch: str) -> BatchState | None:
    """Read the state of a batch, None if it has none.

    Raises:
        Misplaced: it is that of another batch.
        Damaged: it is not what was written.
        InputError: it cannot be read.
    """
    place = path(directory, batch)
    try:
        content = files.read_sealed(place, directory)
    except Damaged:
        if place.exists():
            raise
        return None
    try:
        saved = msgspec.convert(content, BatchState)
        msgspec.convert(saved.failures, list[Failure])
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Damaged(f"{place}: damaged ({error})") from None
    if set(saved.tables) != set(TABLES):
        raise Damaged(f"{place}: damaged (it names other tables than {' and '.join(TABLES)})")
    cells = spans(batch)[0]
    if saved.batch not in (None, batch) or not _lies_between(saved.origin.cells, cells):
        raise Misplaced(f"{place}: the commit record of another batch")
    if strange := [name for name in saved.checkpoint.files if not files.is_below(name)]:
        raise Damaged(f"{place}: damaged (its checkpoint has a file {strange[0]!r:.60})")
    return saved


def _lies_between(cells: Iterable[str], between: range) -> bool:
    """Return whether numbers, written as text, have the first and the last of a range as their extremes."""
    found = [int(cell) if cell.isdecimal() else -1 for cell in cells]
    return bool(found and between) and (min(found), max(found)) == (between[0], between[-1])


def write(directory: Path, batch: str, saved: BatchState) -> None:
    """Replace the state of a batch, with the batch's name in it.

    Raises:
        OSError: it cannot be written.
    """
    content = msgspec.to_builtins(saved) | {"batch": batch}
    files.write(path(directory, batch), files.sealed(content), directory)


def foreign(saved: BatchState, cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Number the cells of a batch whose configs are not those of a manifest's cells."""
    hashes = {str(entry["cell"]): entry.get("config_hash") for entry in cells}
    made = saved.origin.cells.items()
    return [cell for cell, config_hash in made if hashes.get(cell, "none") not in (None, config_hash)]


def fault(directory: Path, batch: str, saved: BatchState, known: Mapping[str, Any]) -> str:
    """Return in words why a batch is none of a manifest's run; nothing if it is one."""
    place = path(directory, batch)
    if other := foreign(saved, known["cells"]):
        return f"{place}: cell {other[0]} is of another config than the manifest says; delete it"
    if not set(spans(batch)[1]).issubset(known["seeds"]):
        return f"{place}: seeds that the manifest lacks"
    return ""


def read_with_tables(directory: Path, batch: str) -> tuple[BatchState, dict[str, pd.DataFrame]] | None:
    """Read the state of a batch and its tables, None if it has no state.

    Raises:
        Misplaced: one of them is that of another batch.
        Damaged: one of them is not what was written.
        InputError: one of them cannot be read.
    """
    while (saved := read(directory, batch)) is not None:
        try:
            return saved, {name: read_own_table(directory, batch, saved, name) for name in saved.tables}
        except Damaged:
            # A run that continues has other tables a moment later.
            if read(directory, batch) == saved:
                raise
    return None


def read_own_table(
    directory: Path, batch: str, saved: BatchState, name: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read a table of a batch, or some of its columns; raise as `read_with_tables`."""
    place = table_path(directory, batch, name, saved.tables[name])
    table = tables.read(place, directory, saved.tables[name], columns)
    lanes = {(int(cell), seed) for cell in saved.origin.cells for seed in spans(batch)[1]}
    found = tables.lanes(table)
    # Every lane of a finished batch has records; its tokens may have no scores.
    if not found <= lanes or (saved.finished and name == "records" and found != lanes):
        raise Misplaced(f"{place}: the table of another batch")
    return table


def check_lanes(directory: Path, batch: str, saved: BatchState) -> None:
    """Compare the (cell, seed) pairs of a batch's tables with its name; raise as `read_with_tables`."""
    for name in saved.tables:
        read_own_table(directory, batch, saved, name, tables.LANE)
