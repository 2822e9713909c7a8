"""Folders of runs that are not finished, as the parts of their batches."""

import msgspec
import numpy as np
import pandas as pd
import pytest

from jaxattn.core.errors import InputError
from jaxattn.results import load
from jaxattn.results.read import read
from jaxattn.storage import manifest, marks
from jaxattn.storage.files import digest

WHOLE, BEGUN, EMPTY = (f"cells-00000-00001-seeds-{k:05d}-{k:05d}" for k in range(3))


@pytest.fixture
def running(write, tmp_path):
    """A run of three batches: seed 0 is done, seed 1 on its way with a failure, seed 2 just begun."""
    folder = write(
        tmp_path / "run", axes={"model.dim": [8, 16]}, seeds=3, vocab_size=20, text=False, status="running"
    )
    (folder / "parts").mkdir()
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("records", "tokens")}
    for name in tables:
        (folder / f"{name}.parquet").unlink()
    begun = {
        name: table[(table["seed"] == 1) & ((table["phase"] == "embed") | (table.get("step", 99) < 50))]
        for name, table in tables.items()
    }
    failed = {"cell": 0, "seed": 0, "phase": "joint", "step": 100, "reason": "loss is not finite"}
    late = failed | {"cell": 1, "seed": 1, "step": 10}
    save(folder, WHOLE, {name: table[table["seed"] == 0] for name, table in tables.items()}, [failed])
    save(folder, BEGUN, begun, [late], finished=False)
    save(folder, EMPTY, dict.fromkeys(tables, pd.DataFrame()), [], finished=False)
    # Left over from a moment before the batch was finished.
    pd.DataFrame({"cell": [7]}).to_parquet(folder / "parts" / f"{WHOLE}.records.0123456789abcdef.parquet")
    return folder


def save(folder, batch, tables, failures, finished=True):
    sums = {}
    for name, table in tables.items():
        content = table.to_parquet(None)
        sums[name] = digest(content)
        marks.table_path(folder, batch, name, sums[name]).write_bytes(content)
    nothing = marks.Checkpoint(1, {}, {}), marks.Origin({}, {}, {})
    marks.write(folder, batch, marks.Mark(finished, 1, 40, failures, sums, *nothing))


def test_a_running_study_is_read_as_far_as_it_is(running):
    results = load(running)
    assert not results.finished
    assert results.phases == ["embed", "joint"]
    records = results.records
    assert set(records["seed"]) == {0, 1}
    assert records.loc[records["seed"] == 1, "step"].max() < 50
    assert set(results.tokens.loc[results.tokens["seed"] == 1, "phase"]) == {"embed"}
    table = results.aggregate(metrics=["loss"], phases=["joint"])
    assert table.loc[table["step"] == 2000, "n"].tolist() == [0, 1]
    assert "running" in results._repr_html_()


def test_failures_come_from_marks(running):
    results = load(running)
    assert list(results.failures.columns) == ["cell", "seed", "phase", "step", "reason"]
    assert results.failures[["cell", "seed", "step"]].to_numpy().tolist() == [[0, 0, 100], [1, 1, 10]]
    records = results.records
    records = records[(records["metric"] == "loss") & (records["phase"] == "joint")]
    failed = (records["cell"] == 1) & (records["seed"] == 1)
    np.testing.assert_array_equal(records.loc[failed, "value"].isna(), records.loc[failed, "step"] >= 10)


def test_a_run_without_a_measurement_names_the_command(running):
    for path in (running / "parts").glob("*"):
        if EMPTY not in path.name:
            path.unlink()
    with pytest.raises(InputError, match="the run is not finished; continue it with: jaxattn run"):
        load(running)


def test_a_damaged_part_is_one_line(running):
    (path,) = (running / "parts").glob(f"{BEGUN}.records.*.parquet")
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=rf"{path.name}: damaged .* mend it with: jaxattn run"):
        load(running)
    path.unlink()
    with pytest.raises(InputError, match=rf"{path.name}: missing; mend it with: jaxattn run"):
        load(running)


def test_a_batch_of_another_config_is_one_line(running):
    mark, known = marks.read(running, WHOLE), manifest.read(running)
    cells = [cell | {"config_hash": "0" * 16} for cell in known["cells"]]
    manifest.write(running, known | {"cells": cells})
    marks.write(running, WHOLE, msgspec.structs.replace(mark, origin=marks.Origin({"0": "f" * 16}, {}, {})))
    with pytest.raises(InputError, match=rf"{WHOLE}\.json: of another config than the manifest says"):
        load(running)


def test_a_damaged_mark_is_one_line(running):
    path = running / "parts" / f"{WHOLE}.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(InputError, match=rf"{path.name}: damaged .* mend it with: jaxattn run"):
        load(running)


def test_a_run_that_goes_on_while_it_is_read_is_read_again(running, monkeypatch):
    """The tables of a mark are gone when they are asked for, and another mark is there."""
    read = marks.read
    stale = marks.Mark(False, 0, 0, [], {"records": "f" * 64}, read(running, BEGUN).checkpoint, None)
    seen = iter([stale])
    monkeypatch.setattr(marks, "read", lambda folder, batch: next(seen, None) or read(folder, batch))
    assert load(running).records["seed"].tolist().count(0) > 0


def test_a_finished_run_without_its_table_is_read_from_its_parts(running):
    manifest.write(running, manifest.read(running) | {"status": "finished"})
    assert not load(running).finished


WRONG = {"value": "x", "step": 0.5, "seed": "0", "cell": 7, "phase": 3, "metric": None}


@pytest.mark.parametrize("column", list(WRONG))
def test_a_column_of_another_kind_is_named(write, tmp_path, column):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    table = pd.read_parquet(folder / "records.parquet")
    table[column] = WRONG[column]
    content = table.to_parquet(None, index=False)
    (folder / "records.parquet").write_bytes(content)
    known = manifest.read(folder)
    manifest.write(folder, known | {"sha256": known["sha256"] | {"records": digest(content)}})
    reason = (
        "cells that the manifest lacks" if column == "cell" else f"column '{column}' holds something else"
    )
    with pytest.raises(InputError, match=rf"records\.parquet: {reason}"):
        read(folder)


@pytest.mark.parametrize(
    "changes",
    [{"wall_time_s": float("nan")}, {"wall_time_s": -1.0}, {"device": 3}, {"peak_memory_mib": float("nan")}],
)
def test_what_is_shown_is_checked_too(write, tmp_path, changes):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1, **changes)
    with pytest.raises(InputError, match=r"manifest\.json: Expected .*; give the manifest of a run"):
        read(folder)


@pytest.mark.parametrize("bins", ["x", 2**40, [1]])
def test_bins_that_cannot_be_are_named(write, tmp_path, bins):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    known = manifest.read(folder)
    manifest.write(folder, known | {"config": known["config"] | {"probes": {"bins": bins}}})
    with pytest.raises(InputError, match=r"manifest\.json: Expected .*config\.probes\.bins"):
        read(folder)
