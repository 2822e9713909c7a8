"""Tables of results folders: limits on their size in memory, and detection of repeated rows."""

import io
import resource

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxattn.lab.storage import tables
from jaxattn.lab.storage.files import Damaged


def table(rows=6):
    return pd.DataFrame(
        {
            "cell": np.arange(rows) // 2,
            "seed": np.arange(rows) % 2,
            "metric": "loss",
            "value": np.arange(rows) / 2,
        }
    )


def test_table_matches_pandas(tmp_path):
    path = tmp_path / "a.parquet"
    table().astype({"metric": "category"}).to_parquet(path, compression="zstd")
    pd.testing.assert_frame_equal(tables.read_table(path, tmp_path, None), pd.read_parquet(path))
    found = tables.read_table(path, tmp_path, None, ("seed", "none"))
    pd.testing.assert_frame_equal(found, table()[["seed"]])
    with pytest.raises(Damaged, match=r"a\.parquet: damaged \(its checksum differs\)"):
        tables.read_table(path, tmp_path, "0" * 64)


MANY = 2_000_000
BOMBS = {
    "a long text in every row": lambda: {"cell": [0] * MANY, "metric": ["x" * 5000] * MANY},
    "a long text, dictionary": lambda: {"metric": pd.Categorical.from_codes([0] * 10_000, ["x" * 10**6])},
    "one very long text": lambda: {"metric": ["x" * (2**28 + 1)]},
    "rows without end": lambda: {"cell": np.zeros(40_000_000, np.int8)},
    "bytes": lambda: {"metric": [b"x" * 100]},
    "lists": lambda: {"metric": [["x"] * 100]},
    "columns without end": lambda: {f"x{k}": [0] for k in range(tables.MAX_COLUMNS + 1)},
}


def written(columns):
    """Write a table without holding its texts in memory once per row."""
    held = {}
    for name, values in columns.items():
        if isinstance(values, list) and isinstance(values[0], str) and len(values) > 1:
            held[name] = pa.DictionaryArray.from_arrays(np.zeros(len(values), np.int32), values[:1])
        else:
            held[name] = pa.array(values)
    sink = io.BytesIO()
    pq.write_table(pa.table(held), sink, compression="zstd")
    return sink.getvalue()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(x, marks=[pytest.mark.more] * (x == "one very long text")) for x in BOMBS],
)
def test_small_compressed_file_cannot_exhaust_memory(tmp_path, kind):
    (tmp_path / "a.parquet").write_bytes(written(BOMBS[kind]()))
    assert (tmp_path / "a.parquet").stat().st_size < 2**18
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Damaged, match=r"a\.parquet: damaged \(.*(rows|strings|column)") as caught:
        tables.read_table(tmp_path / "a.parquet", tmp_path, None)
    assert len(str(caught.value)) < 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_memory_limit_grows_with_the_file_size(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "FREE", 100)
    path = tmp_path / "a.parquet"
    pd.DataFrame({"value": np.random.default_rng(0).normal(size=10_000)}).to_parquet(path)
    assert len(tables.read_table(path, tmp_path, None)) == 10_000
    pd.DataFrame({"value": np.zeros(1_000_000)}).to_parquet(path, compression="zstd")
    with pytest.raises(Damaged, match=r"too many rows \(1,000,000\) for a file of this size"):
        tables.read_table(path, tmp_path, None)


def test_cell_seed_pairs_returns_each_pair_once():
    assert tables.cell_seed_pairs(table()) == {(cell, seed) for cell in range(3) for seed in range(2)}
    assert (
        tables.cell_seed_pairs(pd.DataFrame())
        == tables.cell_seed_pairs(table().drop(columns="seed"))
        == set()
    )
    assert tables.cell_seed_pairs(table().assign(seed="x")) == {(-1, -1)}


def test_repeated_rows_are_detected():
    once = table().assign(phase="query", step=0)
    assert not tables.repeats(once, "records")
    assert tables.repeats(pd.concat([once, once.iloc[3:4].assign(value=7.0)]), "records")
    assert not tables.repeats(pd.DataFrame(), "records")
