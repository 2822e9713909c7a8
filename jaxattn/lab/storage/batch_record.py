"""Records of batches: the runs of a batch, how they were computed, and the checksums of the files.

A run is one seed with one setting. Its identity is the key of its cell, which is a hash of the settings, of
the files that they name and of the code, and the seed. A batch is a folder with the tables and the checkpoint
of some runs, and `run.json`, which contains its record. A finished batch is never changed. The folder of a
finished batch is named by a hash of its runs, so a batch in another folder is detected.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import pandas as pd

from jaxattn.core.settings import Count, NotNegative, PositiveInt
from jaxattn.lab.storage import files, tables
from jaxattn.lab.storage.files import Damaged

RUN_FILE = "run.json"
TABLES = ("records", "tokens")
# Version of the file format. Increase it when the contents of results folders change.
FORMAT = 6
KEY = re.compile(r"[0-9a-f]{32}")
Key = Annotated[str, msgspec.Meta(pattern=f"^{KEY.pattern}$")]


class OtherVersion(Damaged):
    """Raised if a batch was written by another version of this package."""


class Failure(msgspec.Struct, frozen=True):
    """A seed that failed in a cell, with the phase and step of the failure."""

    cell: Count
    seed: Count
    phase: str
    step: Count
    reason: str


class Checkpoint(msgspec.Struct, frozen=True):
    """Description of a saved tree of arrays.

    Attributes:
        arrays: CRC-32 of each array, keyed by path in the tree.
        files: size of each file, and SHA-256 of small files, keyed by path in the folder.
    """

    arrays: dict[str, int]
    files: dict[str, tuple[int, str | None]]


class BatchCell(msgspec.Struct, frozen=True):
    """A cell of a batch.

    Attributes:
        cell: index of the cell in the study for which the batch was computed; also its index in the tables.
        key: identity of the runs of the cell, except for their seeds.
        setting: hash of the settings and of the files that they name, which is the key without the code.
        shorter: the key without the length of the last phase; "" if no longer phase can continue this one.
        steps: length of the last phase; 0 if it is not known.
        config: hash of the settings alone.
    """

    cell: Count
    key: Key
    setting: Key
    shorter: str = ""
    steps: Count = 0
    config: str = ""


class Device(msgspec.Struct, frozen=True):
    """The devices that computed a batch."""

    platform: str = ""
    kind: str = ""
    count: PositiveInt = 1


class Origin(msgspec.Struct, frozen=True):
    """How a batch was computed.

    Attributes:
        package: version, commit and source hash of this package.
        computing: hash of the modules of this package that determine results.
        code: hashes of custom code and of input files, by name.
        versions: versions of packages.
        device: the devices.
        pinned: settings of JAX that determine the numbers.
        xla_flags: flags of XLA.
        width: number of runs that were computed together, without padding.
        padded_vocab_size: vocabulary size of the program, if the vocabulary was padded.
        started: time of the start, in UTC.
        command: the command.
    """

    package: dict[str, str | None]
    computing: str
    code: dict[str, str | None]
    versions: dict[str, str | None]
    device: Device
    pinned: dict[str, bool | int | str]
    xla_flags: str
    width: PositiveInt
    started: str
    command: str
    padded_vocab_size: PositiveInt | None = None


class BatchRecord(msgspec.Struct, frozen=True):
    """Record of a batch.

    Attributes:
        cells: the cells of the runs.
        runs: the cell index and the seed of each run, in the order of the arrays.
        origin: how the batch was computed.
        finished: True if all runs are complete.
        saved: number of times that an unfinished batch was saved; its files have this number in their names.
        phase: index of the current phase.
        step: number of steps taken in that phase.
        failures: seeds that have failed so far.
        tables: SHA-256 of each table; empty if nothing was saved yet.
        checkpoint: state from which to resume, or the trained parameters if the batch is finished.
        resumable: True if the checkpoint of a finished batch includes the final state of its last phase.
        wall_time_s: seconds spent on the batch.
        peak_memory_mib: peak memory of the process.
    """

    cells: Annotated[tuple[BatchCell, ...], msgspec.Meta(min_length=1)]
    runs: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(min_length=1)]
    origin: Origin
    format: int = FORMAT
    finished: bool = False
    saved: Count = 0
    phase: Count = 0
    step: Count = 0
    failures: tuple[Failure, ...] = ()
    tables: dict[str, str] = {}
    checkpoint: Checkpoint | None = None
    resumable: bool = False
    wall_time_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    peak_memory_mib: NotNegative | None = None

    @property
    def keys(self) -> dict[int, str]:
        """The key of each cell, by the index of the cell in the batch."""
        return {cell.cell: cell.key for cell in self.cells}

    @property
    def key(self) -> str:
        """Hash of the runs, which is the name of the folder of the finished batch."""
        return runs_key(self.identities)

    @property
    def identities(self) -> list[tuple[str, int]]:
        """The key of the cell and the seed of each run."""
        keys = self.keys
        return [(keys[cell], seed) for cell, seed in self.runs]

    def table_name(self, table: str) -> str:
        """Return the file name of a table."""
        return f"{table}.parquet" if self.finished else f"{table}-{self.saved}.parquet"

    @property
    def checkpoint_name(self) -> str:
        """Name of the folder of the checkpoint."""
        return "checkpoint" if self.finished else f"state-{self.saved}"


def runs_key(runs: Iterable[tuple[str, int]]) -> str:
    """Return the hash of runs, each given as the key of its cell and its seed, in order."""
    text = msgspec.json.encode([[key, seed] for key, seed in runs])
    return hashlib.sha256(text).hexdigest()[:32]


def read_record(folder: Path, directory: Path) -> BatchRecord:
    """Read the record of a batch in a folder of the results folder `directory`.

    Raises:
        OtherVersion: the record was written by another version of this package.
        Damaged: the record is missing, differs from what was written, or belongs to other runs.
        InputError: the record cannot be read.
    """
    path = folder / RUN_FILE
    content = files.read_sealed(path, directory)
    if content.get("format") != FORMAT:
        raise OtherVersion(f"{path}: written by another version of jaxattn")
    try:
        files.check_texts(content)
        record = msgspec.convert(content, BatchRecord)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise Damaged(f"{path}: damaged ({error})") from None
    if fault := _inconsistent(record, folder.name):
        raise Damaged(f"{path}: {fault}")
    return record


def _inconsistent(record: BatchRecord, name: str) -> str:
    cells = {cell.cell for cell in record.cells}
    if len(cells) < len(record.cells) or len(set(record.runs)) < len(record.runs):
        return "damaged (a cell or run is listed twice)"
    if {cell for cell, _ in record.runs} != cells:
        return "damaged (its runs and its cells differ)"
    if not {(failure.cell, failure.seed) for failure in record.failures} <= set(record.runs):
        return "damaged (a run that failed is not in the batch)"
    if (record.finished or record.tables) and set(record.tables) != set(TABLES):
        return f"damaged (its tables are not {' and '.join(TABLES)})"
    if record.finished and record.checkpoint is None:
        return "damaged (it has no checkpoint)"
    named = record.checkpoint.files if record.checkpoint else ()
    if strange := [each for each in named if not files.is_below(each)]:
        return f"damaged (its checkpoint has a file {strange[0]!r:.60})"
    if record.key != name.partition(".")[0]:
        return "is the record of another batch"
    return ""


def write_record(folder: Path, record: BatchRecord, directory: Path) -> None:
    """Write the record of a batch atomically; raise OSError on failure."""
    files.write_file(folder / RUN_FILE, files.sealed(msgspec.to_builtins(record)), directory)


def read_tables(folder: Path, record: BatchRecord, directory: Path) -> dict[str, pd.DataFrame]:
    """Read the tables of a batch; raise the same errors as `read_table`."""
    return {name: read_table(folder, record, directory, name) for name in record.tables}


def read_table(
    folder: Path, record: BatchRecord, directory: Path, name: str, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read all or selected columns of a table of a batch.

    Raises:
        Damaged: the table is missing, differs from what was written, or contains other runs than the batch.
        InputError: the table cannot be read.
    """
    path = folder / record.table_name(name)
    table = tables.read_table(path, directory, record.tables[name], columns)
    found = tables.cell_seed_pairs(table)
    # A finished batch has records for every run, but may lack token scores.
    runs = set(record.runs)
    if not found <= runs or (record.finished and name == "records" and found != runs):
        raise Damaged(f"{path}: damaged (this table belongs to another batch)")
    return table


def check_tables(folder: Path, record: BatchRecord, directory: Path) -> None:
    """Raise Damaged if a table of a batch differs from what was written, without parsing it."""
    for name, sha256 in record.tables.items():
        files.check_file(folder / record.table_name(name), directory, sha256)
