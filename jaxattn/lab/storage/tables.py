"""Parquet tables in a results folder: checked reads with a memory limit, and detection of repeated rows."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxattn.lab.storage import files
from jaxattn.lab.storage.files import Damaged

# Columns that identify a run: one seed of one cell.
CELL_AND_SEED = ("cell", "seed")
# Columns that identify a row in each table.
TABLE_KEYS = {
    "records": (*CELL_AND_SEED, "phase", "step", "metric"),
    "tokens": (*CELL_AND_SEED, "phase", "id", "class"),
}
# A table may use FREE bytes of memory, or GROWTH times its file size if that is more. Actual tables are 5 to
# 50 times larger in memory than on disk, because every row contains a measured value.
FREE = 2**28
_GROWTH = 500
MAX_COLUMNS = 100
# Minimum memory use of a string in bytes, not counting its characters.
OF_A_TEXT = 8


def read_table(
    location: Path, directory: Path, sha256: str | None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read a Parquet table from a results folder.

    `columns` selects columns; missing columns are ignored. No files outside `directory` are read.

    Raises:
        Damaged: the table is missing, differs from what was written, or would use too much memory.
        InputError: the table cannot be read.
    """
    from pyarrow.parquet import ParquetFile  # slow to import

    content = files.read_file(location, directory, sha256)
    # If there is no checksum to detect damage, pyarrow and pandas can raise almost any exception.
    try:
        _check_size(content)
        names = ParquetFile(io.BytesIO(content)).schema_arrow.names if columns is not None else None
        chosen = None if names is None else [name for name in columns or () if name in names]
        return pd.read_parquet(io.BytesIO(content), columns=chosen)
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise Damaged(f"{location}: damaged ({reason:.200})") from None


def cell_seed_pairs(table: pd.DataFrame) -> set[tuple[int, int]]:
    """Return the (cell, seed) pairs in a table; the set is empty if the table lacks rows or these columns."""
    if not len(table) or not set(CELL_AND_SEED) <= set(table.columns):
        return set()
    pairs = table[list(CELL_AND_SEED)].drop_duplicates()
    if not all(pd.api.types.is_integer_dtype(kind) for kind in pairs.dtypes):
        return {(-1, -1)}
    return set(zip(pairs["cell"].tolist(), pairs["seed"].tolist(), strict=True))


def repeats(table: pd.DataFrame, name: str) -> bool:
    """Return whether two rows of a table have the same values in all key columns."""
    keys = [key for key in TABLE_KEYS[name] if key in table]
    return bool(keys and table.duplicated(keys).any())


def max_memory(size: int) -> int:
    """Return how many bytes of memory tables may use whose files have this total size in bytes."""
    return min(max(FREE, _GROWTH * size), files.memory() // 2)


def _check_size(content: bytes) -> None:
    """Raise ValueError if a table would use too much memory for its file size.

    A small file can encode any number of equal rows, or very long strings.
    """
    from pyarrow import types
    from pyarrow.parquet import ParquetFile, read_metadata

    known = read_metadata(io.BytesIO(content))
    maximum = max_memory(len(content))
    groups = (known.row_group(number) for number in range(known.num_row_groups))
    unpacked = sum(group.total_byte_size for group in groups)
    if known.num_columns > MAX_COLUMNS:
        raise ValueError(f"too many columns ({known.num_columns:,})")
    schema = known.schema.to_arrow_schema()
    widths, texts = 0, []
    for field in schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_string(kind) or types.is_large_string(kind):
            texts.append(field.name)
            widths += OF_A_TEXT
        elif types.is_primitive(kind) or types.is_null(kind):
            widths += 8
        else:
            raise ValueError(f"column {field.name!r:.60} has unexpected type {kind!s:.60}")
    if unpacked > maximum or known.num_rows * widths > maximum:
        raise ValueError(f"too many rows ({known.num_rows:,}) for a file of this size")
    if texts:
        held = ParquetFile(io.BytesIO(content), read_dictionary=texts).read(columns=texts)
        if known.num_rows * widths + sum(map(_characters, held.columns)) > maximum:
            raise ValueError("the strings are too long for a file of this size")


def _characters(column: Any) -> int:
    """Return the total size in bytes of the strings in a dictionary-encoded column, summed over all rows."""
    import pyarrow.compute as pc

    total = 0
    for chunk in column.chunks:
        lengths = np.asarray(pc.binary_length(chunk.dictionary).fill_null(0), np.int64)
        used = np.asarray(chunk.indices.drop_null())
        total += int(lengths[used].sum()) if len(lengths) else 0
    return total


def renumbered(table: pd.DataFrame, numbers: Mapping[tuple[int, int], tuple[int, int]]) -> pd.DataFrame:
    """Return the rows of some runs of a table, with new cell indices.

    Args:
        table: a table with the columns cell and seed.
        numbers: new cell index and seed of each run, by its cell index and seed in the table.
    """
    if not len(table):
        return table
    keys = pd.MultiIndex.from_frame(table[["cell", "seed"]])
    runs = pd.MultiIndex.from_tuples(list(numbers), names=["cell", "seed"])
    place = runs.get_indexer(keys)
    cells = np.array([cell for cell, _ in numbers.values()], table["cell"].dtype)
    found = table.assign(cell=cells[place])[place >= 0]
    return found.reset_index(drop=True)
