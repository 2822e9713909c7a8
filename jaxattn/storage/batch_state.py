"""The state of a batch: how far it is, and checksums of the tables and the checkpoint that belong to it.

Tables and checkpoints are written first, under names that no older state uses; the state makes them count.
What no state names is what a killed run left.
"""

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from jaxattn.core.settings import NotNegative
from jaxattn.storage import files
from jaxattn.storage.files import Damaged

TABLES = ("records", "tokens")
# Bytes of an entry of a table in memory, at least.
SMALLEST = 4
NAME = re.compile(r"cells-(\d+)-(\d+)-seeds-(\d+)-(\d+)")


class Failure(msgspec.Struct):
    """One seed of one cell whose numbers failed, and from where on."""

    cell: int
    seed: int
    phase: str
    step: int
    reason: str


class Line(msgspec.Struct):
    """What readers of metrics.jsonl may count on in a line."""

    time: float
    start: float
    batch: str
    overall: float
    share: float
    phase: str
    step: int
    steps: int
    failures: list[Failure]
    losses: dict[str, list[float]] = {}
    doing: str = ""
    left: NotNegative | None = None
    wall_time_s: NotNegative | None = None
    peak_memory_mib: NotNegative | None = None


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
    """

    finished: bool
    phase: int
    step: int
    failures: list[dict[str, Any]]
    tables: dict[str, str]
    checkpoint: Checkpoint
    origin: Provenance


def spans(batch: str) -> tuple[range, range]:
    """Tell from its name which cells and which seeds a batch lies between."""
    found = NAME.fullmatch(batch)
    if found is None:
        raise ValueError(f"{batch!r} is not the name of a batch")
    cell, last_cell, seed, last_seed = map(int, found.groups())
    return range(cell, last_cell + 1), range(seed, last_seed + 1)


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
    return saved


def write(directory: Path, batch: str, saved: BatchState) -> None:
    """Replace the state of a batch.

    Raises:
        OSError: it cannot be written.
    """
    files.write(path(directory, batch), files.sealed(msgspec.to_builtins(saved)), directory)


def foreign(saved: BatchState, cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Number the cells of a batch whose configs are not those of a manifest's cells."""
    hashes = {str(entry["cell"]): entry.get("config_hash") for entry in cells}
    made = saved.origin.cells.items()
    return [cell for cell, config_hash in made if hashes.get(cell, "none") not in (None, config_hash)]


def read_with_tables(directory: Path, batch: str) -> tuple[BatchState, dict[str, pd.DataFrame]] | None:
    """Read the state of a batch and its tables, None if it has no state.

    Raises:
        Damaged: one of them is not what was written.
        InputError: one of them cannot be read.
    """
    while (saved := read(directory, batch)) is not None:
        try:
            return saved, {
                name: read_table(table_path(directory, batch, name, sha256), directory, sha256)
                for name, sha256 in saved.tables.items()
            }
        except Damaged:
            # A run that goes on has other tables a moment later.
            if read(directory, batch) == saved:
                raise
    return None


def read_table(place: Path, directory: Path, sha256: str | None) -> pd.DataFrame:
    """Read a Parquet table of a results folder.

    Raises:
        Damaged: it is missing, or not what was written.
        InputError: it cannot be read.
    """
    from pyarrow.parquet import read_metadata  # slow to import

    content = files.read(place, directory, sha256)
    # Damage that no checksum shows can surface as almost any exception of pyarrow and pandas.
    try:
        # A few bytes can stand for any number of rows that are equal.
        known = read_metadata(io.BytesIO(content))
        if known.num_rows * known.num_columns * SMALLEST > files.memory():
            raise ValueError(f"{known.num_rows:,} rows, more than memory holds")
        return pd.read_parquet(io.BytesIO(content))
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise Damaged(f"{place}: damaged ({reason})") from None
