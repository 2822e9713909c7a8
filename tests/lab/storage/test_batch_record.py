"""Records of batches: they identify the runs, the tables and the checkpoint, and damage is detected."""

import json

import msgspec
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.storage import batch_record, files
from jaxattn.lab.storage.batch_record import (
    FORMAT,
    TABLES,
    BatchCell,
    BatchRecord,
    Checkpoint,
    Device,
    Failure,
    Origin,
    OtherVersion,
    runs_key,
)
from jaxattn.lab.storage.files import Damaged

ONE, OTHER = "1" * 32, "2" * 32
ORIGIN = Origin(
    package={"version": "1"},
    computing="0",
    code={"mine.py:loss": None},
    versions={"jax": "1"},
    device=Device("cpu", "cpu", 1),
    pinned={"x": True},
    xla_flags="",
    width=4,
    started="2025-01-01T00:00:00Z",
    command="test",
)
RUNS = ((0, 4), (0, 5), (2, 4), (2, 5))


def record_of(**changes):
    cells = (BatchCell(0, ONE, ONE), BatchCell(2, OTHER, OTHER))
    return BatchRecord(cells, RUNS, ORIGIN, **{"checkpoint": Checkpoint({}, {})} | changes)


def write(folder, runs=RUNS, writer="", **changes):
    """Write a batch with a table of some runs, and return its folder and its record."""
    record = record_of(finished=not writer, **changes)
    path = folder / "runs" / (record.key + (f".partial-{writer}" if writer else ""))
    path.mkdir(parents=True)
    table = pd.DataFrame(runs, columns=["cell", "seed"]).assign(
        phase="query", step=1, metric="loss", value=0.5
    )
    sums = {}
    for name in TABLES:
        content = table.to_parquet(None, index=False)
        (path / record.table_name(name)).write_bytes(content)
        sums[name] = files.digest(content)
    record = msgspec.structs.replace(record, **{"tables": sums} | changes)
    batch_record.write_record(path, record, folder)
    return path, record


def test_record_and_tables_are_read_as_they_were_written(tmp_path):
    failure = Failure(2, 5, "query", 3, "NaN")
    path, record = write(tmp_path, failures=(failure,), wall_time_s=1.5, peak_memory_mib=None, resumable=True)
    assert batch_record.read_record(path, tmp_path) == record
    tables = batch_record.read_tables(path, record, tmp_path)
    assert set(tables) == set(TABLES)
    assert tables["records"]["seed"].tolist() == [4, 5, 4, 5]
    some = batch_record.read_table(path, record, tmp_path, "records", ["cell", "seed"])
    assert list(some) == ["cell", "seed"]
    batch_record.check_tables(path, record, tmp_path)


def test_key_of_a_batch_depends_on_its_runs_in_order_and_on_nothing_else():
    record = record_of()
    assert record.identities == [(ONE, 4), (ONE, 5), (OTHER, 4), (OTHER, 5)]
    assert record.key == runs_key(record.identities)
    assert record_of(finished=True, phase=1, step=7, wall_time_s=9.0).key == record.key
    # The indices of cells are those of one study, and do not matter.
    numbered = tuple(msgspec.structs.replace(cell, cell=cell.cell + 3) for cell in record.cells)
    moved = msgspec.structs.replace(record, cells=numbered, runs=tuple((c + 3, s) for c, s in RUNS))
    assert moved.key == record.key
    keys = {
        runs_key(runs)
        for runs in ([(ONE, 4)], [(ONE, 5)], [(OTHER, 4)], [(ONE, 4), (ONE, 5)], [(ONE, 5), (ONE, 4)], [])
    }
    assert len(keys) == 6
    assert all(batch_record.KEY.fullmatch(key) for key in keys)


def test_names_of_files_of_a_partial_batch_change_with_each_state():
    saved = [record_of(saved=number) for number in (1, 2)]
    assert [record.table_name("tokens") for record in saved] == ["tokens-1.parquet", "tokens-2.parquet"]
    assert [record.checkpoint_name for record in saved] == ["state-1", "state-2"]
    finished = record_of(saved=2, finished=True)
    assert (finished.table_name("tokens"), finished.checkpoint_name) == ("tokens.parquet", "checkpoint")


def test_record_in_the_folder_of_another_batch_is_rejected(tmp_path):
    path, record = write(tmp_path)
    renamed = path.rename(path.with_name(ONE))
    with pytest.raises(Damaged, match=rf"{ONE}/run\.json: is the record of another batch$"):
        batch_record.read_record(renamed, tmp_path)
    partial, _ = write(tmp_path, writer="host-1-00000000", saved=1)
    assert batch_record.read_record(partial, tmp_path).key == record.key
    renamed = partial.rename(partial.with_name(f"{ONE}.partial-host-1-00000000"))
    with pytest.raises(Damaged, match="is the record of another batch"):
        batch_record.read_record(renamed, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cells": (BatchCell(0, ONE, ONE),)}, "its runs and its cells differ"),
        ({"cells": (*record_of().cells, BatchCell(7, ONE, ONE))}, "its runs and its cells differ"),
        ({"cells": (*record_of().cells, BatchCell(0, OTHER, ONE))}, "a cell or run is listed twice"),
        ({"runs": (*RUNS, RUNS[0])}, "a cell or run is listed twice"),
        ({"failures": (Failure(0, 9, "query", 3, "NaN"),)}, "a run that failed is not in the batch"),
        ({"tables": {}}, "its tables are not records and tokens"),
        ({"tables": {"records": "0", "other": "0"}}, "its tables are not records and tokens"),
        ({"finished": False, "tables": {"records": "0"}}, "its tables are not records and tokens"),
        ({"checkpoint": None}, "it has no checkpoint"),
        ({"runs": ()}, "Expected `array` of length >= 1"),
        ({"cells": ()}, "Expected `array` of length >= 1"),
        ({"wall_time_s": -1.0}, "Expected `float` >= 0.0"),
        ({"cells": (BatchCell(0, "x", ONE), BatchCell(2, OTHER, OTHER))}, "Expected `str` matching"),
    ],
)
def test_inconsistent_records_are_rejected(tmp_path, changes, said):
    path, record = write(tmp_path)
    batch_record.write_record(path, msgspec.structs.replace(record, **changes), tmp_path)
    with pytest.raises(Damaged, match=rf"^{path}/run\.json: damaged \({said}") as caught:
        batch_record.read_record(path, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "", "a/../b", "a//b", ".", "a\0"])
def test_damage_message_does_not_suggest_removing_a_path_outside_the_checkpoint(tmp_path, name):
    path, record = write(tmp_path)
    changed = msgspec.structs.replace(record, checkpoint=Checkpoint({}, {name: (1, None)}))
    batch_record.write_record(path, changed, tmp_path)
    with pytest.raises(Damaged, match=rf"^{path}/run\.json: damaged \(its checkpoint has a file '") as caught:
        batch_record.read_record(path, tmp_path)
    assert "remove" not in str(caught.value)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1, None, "6"])
def test_record_of_another_version_is_not_read(tmp_path, other):
    path, _ = write(tmp_path)
    content = files.unsealed(json.loads((path / "run.json").read_bytes())) | {"format": other, "cells": 3}
    (path / "run.json").write_bytes(files.sealed(content))
    with pytest.raises(OtherVersion, match=r"run\.json: written by another version of jaxattn$"):
        batch_record.read_record(path, tmp_path)


def test_changed_or_missing_record_counts_as_damaged(tmp_path):
    path, record = write(tmp_path)
    text = (path / "run.json").read_text()
    for old, new in (('"step": 0', '"step": 1'), (f'"{files.SEAL}"', '"seam"'), ("{", "["), (text, "")):
        assert old in text
        (path / "run.json").write_text(text.replace(old, new, 1))
        with pytest.raises(Damaged, match=rf"^{path}/run\.json: damaged \("):
            batch_record.read_record(path, tmp_path)
    (path / "run.json").unlink()
    with pytest.raises(Damaged, match=rf"^{path}/run\.json: missing"):
        batch_record.read_record(path, tmp_path)
    # A table may belong to a record that is known.
    assert set(batch_record.read_tables(path, record, tmp_path)) == set(TABLES)


@pytest.mark.parametrize(
    ("runs", "writer"),
    [
        (RUNS[:3], ""),
        ([*RUNS, (2, 6)], ""),
        ([(0, 6)], "host-1-00000000"),
        ([(1, 4)], "host-1-00000000"),
        ([*RUNS, (1, 4)], "host-1-00000000"),
    ],
)
def test_table_of_another_batch_is_rejected(tmp_path, runs, writer):
    path, record = write(tmp_path, runs, writer, saved=1)
    with pytest.raises(Damaged, match=r"records.*: damaged \(this table belongs to another batch\)"):
        batch_record.read_tables(path, record, tmp_path)


def test_tables_of_an_unfinished_batch_may_lack_runs(tmp_path):
    path, record = write(tmp_path, RUNS[2:3], "host-1-00000000", saved=1)
    assert len(batch_record.read_tables(path, record, tmp_path)["records"]) == 1


def test_token_table_of_a_finished_batch_may_be_empty(tmp_path):
    path, record = write(tmp_path)
    content = pd.DataFrame().to_parquet(None, index=False)
    (path / "tokens.parquet").write_bytes(content)
    record = msgspec.structs.replace(record, tables=record.tables | {"tokens": files.digest(content)})
    assert batch_record.read_table(path, record, tmp_path, "tokens").empty
    (path / "records.parquet").write_bytes(content)
    record = msgspec.structs.replace(record, tables=dict.fromkeys(TABLES, files.digest(content)))
    with pytest.raises(Damaged, match="belongs to another batch"):
        batch_record.read_table(path, record, tmp_path, "records")


@pytest.mark.parametrize("how", ["changed", "missing", "link"])
def test_changed_tables_are_detected_without_parsing_them(tmp_path, monkeypatch, how):
    path, record = write(tmp_path / "folder")
    table = path / "tokens.parquet"
    if how == "changed":
        table.write_bytes(table.read_bytes() + b"\0")
    else:
        table.unlink()
    if how == "link":
        (tmp_path / "elsewhere").write_bytes((path / "records.parquet").read_bytes())
        table.symlink_to(tmp_path / "elsewhere")
    for check in (batch_record.check_tables, batch_record.read_tables):
        with pytest.raises(Damaged, match=r"tokens\.parquet: "):
            check(path, record, tmp_path / "folder")
    monkeypatch.setattr(batch_record.tables, "read_table", None)
    with pytest.raises(Damaged, match=r"tokens\.parquet: "):
        batch_record.check_tables(path, record, tmp_path / "folder")


def test_unreadable_record_is_not_reported_as_damaged(tmp_path, monkeypatch):
    path, _ = write(tmp_path)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ja.InputError, match=r"run\.json: cannot be read: Permission denied") as caught:
        batch_record.read_record(path, tmp_path)
    assert not isinstance(caught.value, Damaged)
