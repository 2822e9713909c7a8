"""Commit records of batches: each stores a batch's progress and the checksums of its tables and checkpoint.

Tables and checkpoints are written first, under new names. They become valid when the commit record that
refers to them is written. Files to which no commit record refers are left over from a killed run.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from jaxattn.lab.storage import files, tables
from jaxattn.lab.storage.files import Damaged

TABLES = ("records", "tokens")
BATCH_NAME = re.compile(r"cells-(\d+)-(\d+)-seeds-(\d+)-(\d+)")


class Failure(msgspec.Struct):
    """A seed that failed in a cell, with the phase and step of the failure."""

    cell: int
    seed: int
    phase: str
    step: int
    reason: str


class Checkpoint(msgspec.Struct, frozen=True):
    """Description of a saved tree of arrays.

    Attributes:
        number: number of the checkpoint, which is the name of its folder.
        arrays: CRC-32 of each array, keyed by path in the tree.
        files: size of each file, and SHA-256 of small files, keyed by path in the folder.
    """

    number: int
    arrays: dict[str, int]
    files: dict[str, tuple[int, str | None]]


class BatchOrigin(msgspec.Struct, frozen=True):
    """Origin of a batch: config hashes keyed by cell number, hashes of user code, and the package source."""

    cells: dict[str, str]
    code: dict[str, str | None]
    made_by: dict[str, str | None]


class Misplaced(Damaged):
    """Raised if intact files of one batch are stored under the name of another batch."""


class BatchState(msgspec.Struct, frozen=True):
    """Commit record of a batch.

    Attributes:
        finished: True if the tables are complete and the checkpoint contains the trained parameters.
        phase: index of the current phase.
        step: number of steps taken in that phase.
        failures: seeds that have failed so far.
        tables: SHA-256 of each current table, keyed by name.
        checkpoint: checkpoint from which to resume, or the trained parameters if the batch is finished.
        origin: provenance of the batch.
        resumable: True if the checkpoint of a finished batch includes the final state of its last phase.
        before: commit record of the finished batch that this batch extends to more steps. It is kept until
            this batch is finished without failures.
        batch: name of the batch; None in records of version 0.2, whose cells and tables are checked instead.
    """

    finished: bool
    phase: int
    step: int
    failures: list[dict[str, Any]]
    tables: dict[str, str]
    checkpoint: Checkpoint
    origin: BatchOrigin
    batch: str | None = None
    resumable: bool = False
    before: "BatchState | None" = None

    @property
    def shown(self) -> "BatchState":
        """This record, or `before` if this batch is an unfinished extension of a finished batch."""
        return self if self.finished or self.before is None else self.before


def spans(batch: str) -> tuple[range, range]:
    """Return the ranges of cells and seeds in the name of a batch; raise ValueError for an invalid name."""
    found = BATCH_NAME.fullmatch(batch)
    if found is None:
        raise ValueError(f"{batch!r} is not a valid batch name")
    cell, last_cell, seed, last_seed = map(int, found.groups())
    return range(cell, last_cell + 1), range(seed, last_seed + 1)


def overlaps(cells: Mapping[str, Iterable[int]]) -> list[tuple[str, str]]:
    """Return pairs of batches that overlap, that is, contain the same seed of the same cell.

    Not all overlapping pairs are returned, but at least one if any batches overlap. `cells` maps the name of
    each batch to its cell numbers.
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
    """Return the path of a batch's commit record."""
    return directory / "parts" / f"{batch}.json"


def table_path(directory: Path, batch: str, table: str, sha256: str) -> Path:
    """Return the path of a table of a batch."""
    return directory / "parts" / f"{batch}.{table}.{sha256[:16]}.parquet"


def checkpoint_path(directory: Path, batch: str, number: int) -> Path:
    """Return the path of a checkpoint of a batch."""
    return directory / "checkpoints" / batch / str(number)


def batches(directory: Path) -> list[str]:
    """Return the names of the batches for which a commit record exists."""
    names = (
        name.removesuffix(".json")
        for name in files.file_names(directory / "parts", directory)
        if name.endswith(".json")
    )
    return [name for name in names if BATCH_NAME.fullmatch(name)]


def read_shown(directory: Path, batch: str) -> BatchState | None:
    """Return the commit record that determines a batch's results, or None; see `BatchState.shown`.

    The errors are the same as for `read_state`.
    """
    saved = read_state(directory, batch)
    return saved and saved.shown


def read_state(directory: Path, batch: str) -> BatchState | None:
    """Read a batch's commit record; return None if there is none.

    Raises:
        Misplaced: the record belongs to another batch.
        Damaged: the content differs from what was written.
        InputError: the record cannot be read.
    """
    location = path(directory, batch)
    try:
        content = files.read_sealed(location, directory)
    except Damaged:
        if location.exists():
            raise
        return None
    try:
        saved = msgspec.convert(content, BatchState)
        each_state = [saved, *filter(None, [saved.before])]
        for each in each_state:
            msgspec.convert(each.failures, list[Failure])
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Damaged(f"{location}: damaged ({error})") from None
    for each in each_state:
        if set(each.tables) != set(TABLES):
            raise Damaged(f"{location}: damaged (its tables are not {' and '.join(TABLES)})")
        cells = spans(batch)[0]
        if each.batch not in (None, batch) or not _lies_between(each.origin.cells, cells):
            raise Misplaced(f"{location}: is the commit record of another batch")
        if strange := [name for name in each.checkpoint.files if not files.is_below(name)]:
            raise Damaged(f"{location}: damaged (its checkpoint has a file {strange[0]!r:.60})")
    return saved


def _lies_between(cells: Iterable[str], between: range) -> bool:
    found = [int(cell) if cell.isdecimal() else -1 for cell in cells]
    return bool(found and between) and (min(found), max(found)) == (between[0], between[-1])


def write_state(directory: Path, batch: str, saved: BatchState) -> None:
    """Write a batch's commit record, including the batch name; raise OSError on failure."""
    content = msgspec.to_builtins(saved) | {"batch": batch}
    files.write_file(path(directory, batch), files.sealed(content), directory)


def cells_of_other_configs(saved: BatchState, cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a batch's cells whose config matches neither the manifest nor a run that the cell extends."""
    known = {str(entry["cell"]): entry for entry in cells}
    hashes = {cell: [entry.get("config_hash"), *entry.get("extends", ())] for cell, entry in known.items()}
    made = saved.origin.cells.items()
    return [cell for cell, own in made if not {own, None} & set(hashes.get(cell, ["none"]))]


def mismatch(directory: Path, batch: str, saved: BatchState, known: Mapping[str, Any]) -> str:
    """Return why a batch does not belong to the run described by a manifest, or "" if it does."""
    location = path(directory, batch)
    if other := cells_of_other_configs(saved, known["cells"]):
        return f"{location}: cell {other[0]} has another config than in the manifest; delete this file"
    if not set(spans(batch)[1]).issubset(known["seeds"]):
        return f"{location}: has seeds that are not in the manifest"
    return ""


def read_with_tables(
    directory: Path, batch: str, read: Callable[[Path, str], BatchState | None] = read_state
) -> tuple[BatchState, dict[str, pd.DataFrame]] | None:
    """Read a batch's commit record and tables; return None if there is no commit record.

    `read` is `read_state` or `read_shown`.

    Raises:
        Misplaced: a file belongs to another batch.
        Damaged: a file differs from what was written.
        InputError: a file cannot be read.
    """
    while (saved := read(directory, batch)) is not None:
        try:
            return saved, {name: read_batch_table(directory, batch, saved, name) for name in saved.tables}
        except Damaged:
            # A running process may have replaced the tables since the commit record was read.
            if read(directory, batch) == saved:
                raise
    return None


def read_batch_table(
    directory: Path, batch: str, saved: BatchState, name: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read all or selected columns of a batch's table; raise the same errors as `read_with_tables`."""
    location = table_path(directory, batch, name, saved.tables[name])
    table = tables.read_table(location, directory, saved.tables[name], columns)
    cell_seed_pairs = {(int(cell), seed) for cell in saved.origin.cells for seed in spans(batch)[1]}
    found = tables.cell_seed_pairs(table)
    # A finished batch has records for every seed of every cell, but may lack token scores.
    if not found <= cell_seed_pairs or (saved.finished and name == "records" and found != cell_seed_pairs):
        raise Misplaced(f"{location}: this table belongs to another batch")
    return table


def check_cells_and_seeds(directory: Path, batch: str, saved: BatchState) -> None:
    """Raise Misplaced if a batch's tables contain other cells or seeds, or lack some although it is finished.

    Other errors are the same as for `read_with_tables`.
    """
    for name in saved.tables:
        read_batch_table(directory, batch, saved, name, tables.CELL_AND_SEED)
