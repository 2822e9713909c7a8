"""Folders of unfinished runs, read from the parts of their batches."""

import shutil

import msgspec
import numpy as np
import pandas as pd
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.results import load
from jaxattn.lab.results.read import read_results, verify
from jaxattn.lab.storage import batch_state, checkpoints, files, manifest
from jaxattn.lab.storage.files import digest

WHOLE, BEGUN, EMPTY = (f"cells-00000-00001-seeds-{k:05d}-{k:05d}" for k in range(3))


@pytest.fixture
def running(write, tmp_path):
    """A run of three batches: seed 0 finished, seed 1 running with a failure, seed 2 just started."""
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
    # A leftover from before the batch was finished.
    pd.DataFrame({"cell": [7]}).to_parquet(folder / "parts" / f"{WHOLE}.records.0123456789abcdef.parquet")
    return folder


def save(folder, batch, tables, failures, finished=True):
    sums = {}
    for name, table in tables.items():
        content = table.to_parquet(None)
        sums[name] = digest(content)
        batch_state.table_path(folder, batch, name, sums[name]).write_bytes(content)
    nothing = batch_state.Checkpoint(1, {}, {}), batch_state.BatchOrigin({"0": "", "1": ""}, {}, {})
    batch_state.write_state(folder, batch, batch_state.BatchState(finished, 1, 40, failures, sums, *nothing))


def test_running_study_is_read_up_to_its_last_checkpoint(running):
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


def test_failures_of_a_running_study_are_read_from_its_commit_records(running):
    results = load(running)
    assert list(results.failures.columns) == ["cell", "seed", "phase", "step", "reason"]
    assert results.failures[["cell", "seed", "step"]].to_numpy().tolist() == [[0, 0, 100], [1, 1, 10]]
    records = results.records
    records = records[(records["metric"] == "loss") & (records["phase"] == "joint")]
    failed = (records["cell"] == 1) & (records["seed"] == 1)
    np.testing.assert_array_equal(records.loc[failed, "value"].isna(), records.loc[failed, "step"] >= 10)


def test_error_for_a_run_without_measurements_shows_the_command(running):
    for path in (running / "parts").glob("*"):
        if EMPTY not in path.name:
            path.unlink()
    with pytest.raises(InputError, match="has no measurements yet; run the same sweep again into"):
        load(running)


def test_damaged_table_of_a_batch_raises_a_one_line_error(running):
    (path,) = (running / "parts").glob(f"{BEGUN}.records.*.parquet")
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=rf"{path.name}: damaged .* run the same sweep again into"):
        load(running)
    path.unlink()
    with pytest.raises(InputError, match=rf"{path.name}: missing; run the same sweep again into"):
        load(running)


def test_batch_with_a_different_config_raises_a_one_line_error(running):
    mark, known = batch_state.read_state(running, WHOLE), manifest.read_manifest(running)
    cells = [cell | {"config_hash": "0" * 16} for cell in known["cells"]]
    manifest.write_manifest(running, known | {"cells": cells})
    batch_state.write_state(
        running,
        WHOLE,
        msgspec.structs.replace(mark, origin=batch_state.BatchOrigin({"0": "f" * 16, "1": ""}, {}, {})),
    )
    with pytest.raises(
        InputError, match=rf"{WHOLE}\.json: cell 0 has another config than in the manifest; delete this file"
    ):
        load(running)


def test_damaged_batch_state_raises_a_one_line_error(running):
    path = running / "parts" / f"{WHOLE}.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(InputError, match=rf"{path.name}: damaged .* run the same sweep again into"):
        load(running)


def test_read_is_retried_if_the_run_saves_at_the_same_time(running, monkeypatch):
    """The tables of a state have been replaced by those of a newer state."""
    read = batch_state.read_state
    stale = batch_state.BatchState(
        False, 0, 0, [], {"records": "f" * 64}, read(running, BEGUN).checkpoint, None
    )
    seen = iter([stale])
    monkeypatch.setattr(
        batch_state, "read_state", lambda folder, batch: next(seen, None) or read(folder, batch)
    )
    assert load(running).records["seed"].tolist().count(0) > 0


def test_finished_run_without_a_merged_table_counts_as_unfinished(running):
    manifest.write_manifest(running, manifest.read_manifest(running) | {"status": "finished"})
    assert not load(running).finished


def test_batches_with_the_same_seeds_are_rejected(running):
    both = "cells-00000-00001-seeds-00000-00001"
    tables = batch_state.read_with_tables(running, WHOLE)[1]
    save(running, both, tables, [], finished=False)
    with pytest.raises(
        InputError, match=rf"{both}\.json: contains seeds that are also in {WHOLE}; run the same"
    ):
        load(running)
    assert any(f"{both}.json: contains seeds that are also in {WHOLE}" in line for line in verify(running))


def test_seeds_missing_from_the_manifest_are_rejected(running):
    manifest.write_manifest(running, manifest.read_manifest(running) | {"seeds": [0, 1]})
    with pytest.raises(
        InputError, match=rf"{EMPTY}\.json: has seeds that are not in the manifest; run the same"
    ):
        load(running)


def test_duplicate_row_is_rejected(write, rewrite, tmp_path):
    folder = write(tmp_path / "run", vocab_size=20, seeds=2)
    for name in ("tokens", "records"):
        table = pd.read_parquet(folder / f"{name}.parquet")
        rewrite(folder, name, pd.concat([table, table.iloc[5:6]]))
        with pytest.raises(
            InputError, match=rf"{name}\.parquet: contains two rows with the same cell, seed, phase"
        ):
            load(folder)
        rewrite(folder, name, table)


def test_finished_table_must_contain_the_seeds_in_the_manifest(folder, rewrite):
    table = pd.read_parquet(folder / "records.parquet")
    known = manifest.read_manifest(folder)
    manifest.write_manifest(folder, known | {"seeds": [0, 1]})
    rewrite(folder, "records", table.assign(seed=1))
    with pytest.raises(InputError, match=r"cells and seeds of records\.parquet differ from the manifest"):
        load(folder)


WRONG = {"value": "x", "step": 0.5, "seed": "0", "cell": 7, "phase": 3, "metric": None}


@pytest.mark.parametrize("column", list(WRONG))
def test_column_with_the_wrong_type_is_rejected(write, rewrite, tmp_path, column):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    table = pd.read_parquet(folder / "records.parquet")
    rewrite(folder, "records", table.assign(**{column: WRONG[column]}))
    reason = (
        "contains cells that are not in the manifest"
        if column == "cell"
        else f"column '{column}' contains values other than"
    )
    with pytest.raises(InputError, match=rf"records\.parquet: {reason}"):
        read_results(folder)


@pytest.mark.parametrize(
    "changes",
    [{"wall_time_s": float("nan")}, {"wall_time_s": -1.0}, {"device": 3}, {"peak_memory_mib": float("nan")}],
)
def test_invalid_manifest_values_are_rejected(write, tmp_path, changes):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1, **changes)
    with pytest.raises(
        InputError, match=r"manifest\.json: Expected .*; use a folder written by `jaxattn run`"
    ):
        read_results(folder)


@pytest.mark.parametrize("bins", ["x", 2**40, [1]])
def test_invalid_bins_are_rejected(write, tmp_path, bins):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    known = manifest.read_manifest(folder)
    manifest.write_manifest(folder, known | {"config": known["config"] | {"probes": {"bins": bins}}})
    with pytest.raises(InputError, match=r"manifest\.json: Expected .*config\.probes\.bins"):
        read_results(folder)


BATCH = "cells-00000-00000-seeds-00000-00000"


@pytest.fixture(scope="module")
def made(write, tmp_path_factory):
    """A finished folder of one batch, with a report."""
    folder = write(tmp_path_factory.mktemp("verified") / "run", seeds=1, vocab_size=20, text=False)
    cells = [{"cell": 0, "settings": {}, "config_hash": "0123456789abcdef"}]
    batch = {"name": BATCH, "cells": [0], "seeds": [0]}
    manifest.write_manifest(folder, manifest.read_manifest(folder) | {"cells": cells, "batches": [batch]})
    (folder / "parts").mkdir()
    (folder / "checkpoints" / BATCH).mkdir(parents=True)
    sums = manifest.read_manifest(folder)["sha256"]
    for name, sha256 in sums.items():
        shutil.copy(folder / f"{name}.parquet", batch_state.table_path(folder, BATCH, name, sha256))
    checkpoint = checkpoints.save(batch_state.checkpoint_path(folder, BATCH, 1), {"embed": {"E": [1.0]}})
    by = batch_state.BatchOrigin({"0": "0123456789abcdef"}, {}, {})
    batch_state.write_state(folder, BATCH, batch_state.BatchState(True, 2, 0, [], sums, checkpoint, by))
    (folder / "figures").mkdir()
    (folder / "summary.csv").write_text("a,b\n")
    drawn = {"own": [], "sha256": {"summary.csv": files.digest(b"a,b\n")}}
    (folder / "figures" / "drawn.json").write_bytes(files.sealed(drawn))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def test_verify_accepts_an_intact_folder(folder, write, tmp_path):
    seen = []
    assert verify(folder, lambda name, share: seen.append((name, share))) == []
    assert seen == [(BATCH, 0.0)]
    # Without batch states, only the merged tables can be compared.
    assert verify(write(tmp_path / "other", seeds=1, vocab_size=20)) == []
    with pytest.raises(InputError, match="no such folder"):
        verify(tmp_path / "none")


RUN = "; run the same sweep again into {folder}"
FIRST = f"; delete {{folder}}/parts/{BATCH}.json; run the same sweep again into {{folder}}"


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        ("records.parquet", RUN),
        ("tokens.parquet", RUN),
        ("parts/*.json", RUN),
        ("parts/*.tokens.*", RUN),
        ("checkpoints/*/1/_METADATA", FIRST),
        ("summary.csv", "; draw it again with: jaxattn report {folder}"),
        ("figures/drawn.json", "; draw it again with: jaxattn report {folder}"),
        ("manifest.json", "; run the same sweep again in this folder to rebuild it"),
    ],
)
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_verify_reports_damaged_files_with_a_remedy(folder, pattern, remedy, damage):
    (path,) = folder.glob(pattern)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if damage == "missing":
        path.unlink()
    if (damage, pattern) == ("missing", "figures/drawn.json"):
        assert verify(folder) == []  # as of a run without a report
        return
    (line,) = verify(folder)
    assert line.startswith(f"{path}: {'damaged' if damage == 'flipped' else 'missing'}")
    assert remedy.format(folder=folder) in line
    assert "\n" not in line


def test_verify_reports_a_batch_with_a_different_config(folder):
    cells = [{"cell": 0, "settings": {}, "config_hash": "f" * 16}]
    manifest.write_manifest(folder, manifest.read_manifest(folder) | {"cells": cells})
    (line,) = verify(folder)
    assert line.startswith(f"{folder}/parts/{BATCH}.json: cell 0 has another config")


def test_verify_command_exits_with_status_1_on_damage(folder, call):
    status, out, said = call("status", "--verify", folder)
    assert status == 0
    assert "planted: 100 % done, finished" in out
    assert "made by jaxattn 0.1.0 at commit 000000000000; this is" in said
    (folder / "manifest.json").unlink()
    (folder / "parts" / f"{BATCH}.json").write_text("{}")
    status, _, said = call("status", "--verify", folder)
    assert status == 1
    assert said.count("\njaxattn: ") == 2
