"""Folders of runs that are not finished, as the parts of their batches."""

import json

import numpy as np
import pandas as pd
import pytest

from jaxattn.errors import InputError
from jaxattn.results import load

WHOLE, BEGUN, EMPTY = (f"cells-00000-00001-seeds-{k:05d}-{k:05d}" for k in range(3))


@pytest.fixture
def running(write, tmp_path):
    """A run of three batches: seed 0 is done, seed 1 on its way with a failure, seed 2 just begun."""
    folder = write(
        tmp_path / "run", axes={"model.dim": [8, 16]}, seeds=3, vocab_size=20, text=False, status="running"
    )
    parts = folder / "parts"
    parts.mkdir()
    for name in ("records", "tokens"):
        table = pd.read_parquet(folder / f"{name}.parquet")
        (folder / f"{name}.parquet").unlink()
        table[table["seed"] == 0].to_parquet(parts / f"{WHOLE}.{name}.parquet")
        begun = table[(table["seed"] == 1) & ((table["phase"] == "embed") | (table.get("step", 99) < 50))]
        begun.to_parquet(parts / f"{BEGUN}.{name}.partial.parquet")
        pd.DataFrame().to_parquet(parts / f"{EMPTY}.{name}.partial.parquet")
    failed = {"cell": 0, "seed": 0, "phase": "joint", "step": 100, "reason": "loss is not finite"}
    (parts / f"{WHOLE}.json").write_text(json.dumps({"failures": [failed], "sha256": {}}))
    # Left over from a moment before the batch was finished.
    pd.DataFrame({"cell": [7]}).to_parquet(parts / f"{WHOLE}.records.partial.parquet")
    late = failed | {"cell": 1, "seed": 1, "step": 10}
    lines = [{"batch": BEGUN, "failures": []}, {"batch": BEGUN, "failures": [late]}]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"batch": "cel')
    return folder


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


def test_failures_come_from_marks_and_from_the_log(running):
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
    (running / "parts" / f"{BEGUN}.records.partial.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=rf"{BEGUN}.records.partial.parquet: damaged"):
        load(running)


def test_a_finished_run_without_its_table_is_read_from_its_parts(running):
    manifest = json.loads((running / "manifest.json").read_text()) | {"status": "finished"}
    (running / "manifest.json").write_text(json.dumps(manifest))
    assert not load(running).finished
