"""Folders of finished and unfinished runs, read from their batches."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.pages import report
from jaxattn.lab.pages.overview import caveats
from jaxattn.lab.results import read
from jaxattn.lab.results.read import read_results, verify
from jaxattn.lab.storage import batch_record, checkpoints, files, memo, study_file
from jaxattn.lab.storage.batch_record import Failure

# Name of a process on this host that does not exist.
GONE = re.sub(r"-\d+-", "-999999999-", memo.writer())
CELLS = [{"cell": k, "settings": {"model.dim": d}, "key": str(k) * 32} for k, d in enumerate((8, 16))]
FAILED = Failure(cell=0, seed=0, phase="joint", step=100, reason="loss is not finite")


def runs_of(*seeds):
    return [(cell["cell"], seed) for cell in CELLS for seed in seeds]


def of_seeds(tables, *seeds):
    return {name: table[table["seed"].isin(seeds)] for name, table in tables.items()}


@pytest.fixture(scope="module")
def planted(write, batch_of, tmp_path_factory):
    """A study of two cells and three seeds, and its tables."""
    folder = write(
        tmp_path_factory.mktemp("planted") / "run",
        axes={"model.dim": [8, 16]},
        seeds=3,
        vocab_size=20,
        text=False,
        cells=CELLS,
    )
    return folder, {
        name: pd.read_parquet(batch_of(folder) / f"{name}.parquet") for name in ("records", "tokens")
    }


@pytest.fixture
def empty(planted, tmp_path):
    """The study without batches."""
    (tmp_path / "run" / "runs").mkdir(parents=True)
    shutil.copy(planted[0] / "study.json", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def running(empty, planted, batches):
    """A run of three batches: seed 0 finished, seed 1 running with a failure, seed 2 just started."""
    tables = planted[1]
    begun = {
        name: table[(table["seed"] == 1) & ((table["phase"] == "embed") | (table.get("step", 99) < 50))]
        for name, table in tables.items()
    }
    batches.write(empty, CELLS, runs_of(0), of_seeds(tables, 0), failures=[FAILED])
    batches.write(
        empty,
        CELLS,
        runs_of(1),
        begun,
        failures=[Failure(1, 1, "joint", 10, FAILED.reason)],
        writer=memo.writer(),
        saved=3,
        phase=1,
        step=40,
    )
    batches.write(empty, CELLS, runs_of(2), {}, writer=memo.writer(), checkpoint=None)
    return empty


def as_of(path, writer):
    """Return the path of an unfinished batch if another process had written it."""
    return path.with_name(f"{path.name.partition('.')[0]}.partial-{writer}")


def begun_in(folder):
    """Return the folder of the batch that has been saved, but is not finished."""
    (path,) = folder.glob("runs/*.partial-*/records-3.parquet")
    return path.parent


def finished_in(folder):
    (path,) = folder.glob("runs/*/records.parquet")
    return path.parent


def test_running_study_is_read_up_to_its_last_checkpoint(running):
    results = ja.load(running)
    assert not results.finished
    assert results.phases == ["embed", "joint"]
    records = results.records
    assert set(records["seed"]) == {0, 1}
    assert records.loc[records["seed"] == 1, "step"].max() < 50
    assert set(results.tokens.loc[results.tokens["seed"] == 1, "phase"]) == {"embed"}
    table = results.aggregate(metrics=["loss"], phases=["joint"])
    assert table.loc[table["step"] == 2000, "n"].tolist() == [0, 1]
    assert "running" in results._repr_html_()


def test_failures_of_a_running_study_are_read_from_the_records_of_its_batches(running):
    results = ja.load(running)
    assert list(results.failures.columns) == ["cell", "seed", "phase", "step", "reason"]
    assert results.failures[["cell", "seed", "step"]].to_numpy().tolist() == [[0, 0, 100], [1, 1, 10]]
    records = results.records
    records = records[(records["metric"] == "loss") & (records["phase"] == "joint")]
    failed = (records["cell"] == 1) & (records["seed"] == 1)
    np.testing.assert_array_equal(records.loc[failed, "value"].isna(), records.loc[failed, "step"] >= 10)


def test_manifest_describes_the_study_and_how_its_batches_were_computed(running):
    manifest = ja.load(running).manifest
    assert manifest["name"] == "planted"
    assert [cell["settings"] for cell in manifest["cells"]] == [{"model.dim": 8}, {"model.dim": 16}]
    assert manifest["seeds"] == [0, 1, 2]
    assert manifest["batches"] == [finished_in(running).name]
    expected = {"versions": {}, "git_commit": None, "mixed": "", "errors": [], "wall_time_s": 0.0}
    assert {name: manifest[name] for name in expected} == expected
    assert manifest["device"] == {"platform": "", "kind": "", "count": 1}
    assert manifest["made_by"] == [{"version": None, "commit": None, "source": None}]
    assert manifest["started"] == "2025-01-01T00:00:00Z"
    assert manifest["peak_memory_mib"] is None


def test_resources_of_batches_are_added_and_mixed_devices_are_reported(running, batches):
    other = batch_record.read_record(finished_in(running), running).origin
    other = msgspec.structs.replace(
        other, versions={"jax": "9"}, package={"version": "9", "commit": None, "source": None}
    )
    batches.change(finished_in(running), wall_time_s=2.0, peak_memory_mib=5.0)
    batches.change(begun_in(running), wall_time_s=3.0, peak_memory_mib=7.0, origin=other)
    manifest = ja.load(running).manifest
    assert (manifest["wall_time_s"], manifest["peak_memory_mib"]) == (5.0, 7.0)
    assert manifest["mixed"] == "computed with jax 9, jax None: last digits may differ"
    assert [one["version"] for one in manifest["made_by"]] == [None, "9"]


@pytest.mark.parametrize(
    ("writer", "status"), [(GONE, "stopped"), (memo.writer(), "running")], ids=["killed", "alive"]
)
def test_status_depends_on_whether_the_process_of_a_batch_is_alive(running, writer, status):
    for path in running.glob("runs/*.partial-*"):
        path.rename(as_of(path, writer))
    assert ja.load(running).manifest["status"] == status


def test_batch_of_an_unrelated_study_does_not_count_as_running(running, planted, batches):
    for path in running.glob("runs/*.partial-*"):
        path.rename(as_of(path, GONE))
    others = [cell | {"key": "e" * 32} for cell in CELLS[:1]]
    batches.write(running, others, [(0, 0)], {}, writer=memo.writer(), checkpoint=None)
    assert ja.load(running).manifest["status"] == "stopped"


def test_errors_of_unfinished_batches_are_listed(running):
    for path in running.glob("runs/*.partial-*"):
        (path / "error.json").write_text('{"reason": "no data"}')
    manifest = ja.load(running).manifest
    assert manifest["status"] == "failed"
    assert [(error["cells"], error["reason"]) for error in manifest["errors"]] == [([0, 1], "no data")] * 2


def test_error_for_a_run_without_measurements_shows_the_command(running):
    shutil.rmtree(finished_in(running))
    shutil.rmtree(begun_in(running))
    with pytest.raises(ja.InputError, match="has no measurements yet; run the same sweep again into"):
        ja.load(running)


def test_damaged_table_of_an_unfinished_batch_raises_a_one_line_error(running):
    path = begun_in(running) / "records-3.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ja.InputError, match=rf"{path.name}: damaged .* run the same sweep again into"):
        ja.load(running)
    path.unlink()
    with pytest.raises(ja.InputError, match=rf"{path.name}: missing; run the same sweep again into"):
        ja.load(running)


def test_damaged_record_of_a_batch_raises_a_one_line_error_if_runs_are_missing(running, planted, batches):
    path = finished_in(running) / "run.json"
    content = path.read_text()
    path.write_text(content.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ja.InputError, match=r"run\.json: damaged .* run the same sweep again into") as caught:
        ja.load(running)
    assert "\n" not in str(caught.value)
    # Another batch contains all runs.
    batches.write(running, CELLS, runs_of(2, 1, 0), planted[1])
    assert ja.load(running).finished


def test_damaged_record_of_an_unfinished_batch_is_ignored(running):
    (begun_in(running) / "run.json").write_text("{}")
    assert set(ja.load(running).records["seed"]) == {0}


def test_record_of_another_batch_is_rejected(running):
    path = finished_in(running)
    path.rename(path.with_name("f" * 32))
    with pytest.raises(ja.InputError, match=r"run\.json: is the record of another batch; run the same"):
        ja.load(running)


def test_table_of_another_batch_is_rejected(running, planted, batches):
    path = finished_in(running)
    other = batches.write(running, CELLS, runs_of(2), of_seeds(planted[1], 2))
    for name in ("records", "tokens"):
        shutil.copy(other / f"{name}.parquet", path)
    record = batch_record.read_record(other, running)
    batches.change(path, tables=record.tables)
    with pytest.raises(
        ja.InputError, match=r"records\.parquet: damaged \(this table belongs to another batch\)"
    ):
        ja.load(running)


def test_read_is_repeated_if_a_process_saves_at_the_same_time(running, monkeypatch):
    """The tables of a state have been replaced by those of a newer state."""
    partials = memo.partials
    stale = [one._replace(record=msgspec.structs.replace(one.record, saved=2)) for one in partials(running)]
    seen = iter([stale])
    monkeypatch.setattr(memo, "partials", lambda folder: next(seen, None) or partials(folder))
    assert set(ja.load(running).records["seed"]) == {0, 1}


def test_read_is_repeated_if_a_process_finishes_a_batch_at_the_same_time(running, monkeypatch):
    read_table, unfinished = read._Part.table, [begun_in(running)]

    def table(part, *given):
        for path in (unfinished.pop() for _ in unfinished[:]):
            record = batch_record.read_record(path, running)
            for each in record.tables:
                (path / f"{each}-3.parquet").rename(path / f"{each}.parquet")
            batch_record.write_record(path, msgspec.structs.replace(record, finished=True), running)
            path.rename(path.with_name(record.key))
        return read_table(part, *given)

    monkeypatch.setattr(read._Part, "table", table)
    results = ja.load(running)
    assert set(results.records["seed"]) == {0, 1}
    assert len(results.manifest["batches"]) == 2


def test_only_the_wanted_runs_are_read(planted, empty, batches, change_study):
    tables = planted[1]
    batches.write(empty, CELLS, runs_of(0, 1, 2), tables, failures=[FAILED])
    for seeds in ([1], [2, 1]):
        change_study(empty, seeds=seeds)
        found = ja.load(empty)
        assert found.finished
        assert len(found.failures) == 0
        for name in ("records", "tokens"):
            pd.testing.assert_frame_equal(
                getattr(found, name), of_seeds(tables, *seeds)[name].reset_index(drop=True)
            )
    change_study(empty, cells=CELLS[1:], seeds=[0])
    assert set(ja.load(empty).records["cell"]) == {1}


def test_a_run_in_two_batches_is_read_once(planted, empty, batches):
    tables = planted[1]
    batches.write(empty, CELLS, runs_of(0, 1), of_seeds(tables, 0, 1))
    batches.write(empty, CELLS, runs_of(1, 2), of_seeds(tables, 1, 2))
    batches.write(empty, CELLS, runs_of(2, 0), of_seeds(tables, 2, 0), writer=GONE)
    found = ja.load(empty)
    assert found.finished
    assert found.manifest["wall_time_s"] == 0
    keys = ["cell", "seed", "phase", "step", "metric"]
    pd.testing.assert_frame_equal(
        found.records.sort_values(keys, ignore_index=True),
        tables["records"].sort_values(keys, ignore_index=True),
    )


def test_of_two_unfinished_batches_the_one_with_more_steps_is_read(planted, empty, batches):
    tables = planted[1]
    for phase, step, seeds in ((1, 5, (0, 1)), (1, 20, (1, 2)), (0, 90, (2, 0))):
        records = of_seeds(tables, *seeds)["records"].assign(value=float(step))
        made = {"records": records, "tokens": of_seeds(tables, *seeds)["tokens"]}
        batches.write(empty, CELLS, runs_of(*seeds), made, writer=GONE, phase=phase, step=step)
    records = ja.load(empty).records
    assert {s: set(records.loc[records["seed"] == s, "value"]) for s in range(3)} == {
        0: {5},
        1: {20},
        2: {20},
    }


def test_a_cell_with_another_number_than_in_its_batch_is_read_with_its_number_in_the_study(
    planted, empty, batches, change_study
):
    tables = planted[1]
    batches.write(empty, CELLS, runs_of(0, 1, 2), tables, failures=[FAILED])
    change_study(empty, cells=[CELLS[1] | {"cell": 0}, CELLS[0] | {"cell": 1}])
    found = ja.load(empty)
    assert found.settings(1) == {"model.dim": 8}
    assert list(found.failures["cell"]) == [1]
    for name in ("records", "tokens"):
        table = getattr(found, name)
        assert table["cell"].is_monotonic_increasing
        for cell in (0, 1):
            ours = table[table["cell"] == cell].drop(columns="cell").reset_index(drop=True)
            theirs = tables[name][tables[name]["cell"] == 1 - cell].drop(columns="cell")
            if name == "records" and cell == 1:
                ours, theirs = ours[ours["seed"] > 0], theirs[theirs["seed"] > 0]
            pd.testing.assert_frame_equal(ours.reset_index(drop=True), theirs.reset_index(drop=True))


def test_a_run_of_two_cells_is_read_for_both(planted, empty, batches, change_study):
    tables = planted[1]
    batches.write(empty, CELLS, runs_of(0, 1, 2), tables, failures=[FAILED])
    change_study(empty, cells=[CELLS[0], CELLS[0] | {"cell": 5, "settings": {"model.dim": 9}}], seeds=[0, 2])
    found = ja.load(empty)
    assert found.finished
    assert found.failures[["cell", "seed"]].to_numpy().tolist() == [[0, 0], [5, 0]]
    for name in ("records", "tokens"):
        table = getattr(found, name)
        of_cells = [table[table["cell"] == cell].drop(columns="cell") for cell in (0, 5)]
        pd.testing.assert_frame_equal(*(own.reset_index(drop=True) for own in of_cells))
    assert set(found.records["cell"]) == {0, 5}


def test_runs_of_older_code_are_read_where_the_study_refers_to_them(planted, empty, batches, change_study):
    tables = planted[1]
    older = [cell | {"key": "c" * 32} for cell in CELLS[:1]]
    first = {name: table[table["cell"] == 0] for name, table in tables.items()}
    batches.write(empty, older, [(0, 0), (0, 1)], of_seeds(first, 0, 1))
    batches.write(empty, CELLS[:1], [(0, 1)], of_seeds(first, 1))
    change_study(empty, cells=[CELLS[0] | {"older": {"c" * 32: [0]}}], seeds=[0, 1])
    found = ja.load(empty)
    assert found.finished
    assert len(found.manifest["batches"]) == 2
    pd.testing.assert_frame_equal(found.records, of_seeds(first, 0, 1)["records"])
    assert found.table()["older_code"].tolist() == [True, False]
    assert "all metrics: computed by older code: cell 0: seeds 0" in caveats(found)


def test_duplicate_row_is_rejected(write, batch_of, rewrite, tmp_path):
    folder = write(tmp_path / "run", vocab_size=20, seeds=2)
    for name in ("tokens", "records"):
        table = pd.read_parquet(batch_of(folder) / f"{name}.parquet")
        rewrite(folder, name, pd.concat([table, table.iloc[5:6]]))
        with pytest.raises(
            ja.InputError,
            match=rf"{name}\.parquet: damaged \(it contains two rows with the same cell, seed, phase",
        ):
            ja.load(folder)
        rewrite(folder, name, table)


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_finished_table_must_contain_the_runs_of_its_batch(write, batch_of, rewrite, tmp_path, seeds):
    folder = write(tmp_path / "run", vocab_size=20, seeds=2)
    table = pd.read_parquet(batch_of(folder) / "records.parquet")
    of_one = table[table["seed"] == 0]
    rewrite(folder, "records", pd.concat([of_one.assign(seed=seed) for seed in seeds]))
    with pytest.raises(
        ja.InputError, match=r"records\.parquet: damaged \(this table belongs to another batch\)"
    ):
        ja.load(folder)


WRONG = {"value": "x", "step": 0.5, "seed": "0", "cell": 7, "phase": 3, "metric": None}


@pytest.mark.parametrize("column", list(WRONG))
def test_column_with_the_wrong_type_is_rejected(write, batch_of, rewrite, tmp_path, column):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    table = pd.read_parquet(batch_of(folder) / "records.parquet")
    rewrite(folder, "records", table.assign(**{column: WRONG[column]}))
    reason = (
        "this table belongs to another batch"
        if column in ("cell", "seed")
        else f"column '{column}' contains values other than"
    )
    with pytest.raises(ja.InputError, match=rf"records\.parquet: damaged \({reason}"):
        read_results(folder)


@pytest.mark.parametrize(
    "changes", [{"cells": []}, {"seeds": [-1]}, {"labels": 3}, {"dtype": 1}, {"seeds": [0, 0]}]
)
def test_invalid_study_values_are_rejected(write, tmp_path, changes):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    study_file.write_study(folder, study_file.read_study(folder) | changes)
    with pytest.raises(ja.InputError, match=r"study\.json: .*; use a folder written by `jaxattn run`"):
        read_results(folder)


@pytest.mark.parametrize(
    "changes", [{"wall_time_s": float("nan")}, {"wall_time_s": -1.0}, {"peak_memory_mib": float("nan")}]
)
def test_invalid_values_in_the_record_of_a_batch_are_rejected(write, batch_of, batches, tmp_path, changes):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    batches.change(batch_of(folder), **changes)
    with pytest.raises(ja.InputError, match=r"run\.json: damaged \(Expected .*\); run the same sweep again"):
        read_results(folder)


@pytest.mark.parametrize("bins", ["x", 2**40, [1]])
def test_invalid_bins_are_rejected(write, change_study, tmp_path, bins):
    folder = write(tmp_path / "run", vocab_size=20, seeds=1)
    change_study(folder, config=study_file.read_study(folder)["config"] | {"probes": {"bins": bins}})
    with pytest.raises(ja.InputError, match=r"study\.json: Expected .*config\.probes\.bins"):
        read_results(folder)


def test_status_lists_the_state_of_each_cell(running, planted, batches):
    table, complete = run_status(running)
    assert table["model.dim"].tolist() == [8, 16]
    assert table["state"].tolist() == ["running", "running"]
    assert table["done"].tolist() == ["33 %", "33 %"]
    assert table["failed seeds"].tolist() == [1, 1]
    assert complete == "planted: 33 % done, running"
    of_one = {name: t[(t["cell"] == 1) & (t["seed"] > 0)] for name, t in planted[1].items()}
    batches.write(running, CELLS[1:], [(1, 1), (1, 2)], of_one)
    unfinished = [path.rename(as_of(path, GONE)) for path in running.glob("runs/*.partial-*")]
    table, complete = run_status(running)
    assert table["state"].tolist() == ["stopped", "finished"]
    assert table["done"].tolist() == ["33 %", "100 %"]
    assert complete == "planted: 67 % done, stopped"
    for path in unfinished:
        (path / "error.json").write_text('{"reason": "no data"}')
    assert run_status(running)[0]["state"].tolist() == ["failed", "finished"]
    for path in unfinished:
        shutil.rmtree(path)
    assert run_status(running)[0]["state"].tolist() == ["waiting", "finished"]


def test_prune_command_shows_and_deletes_only_unwanted_batches(running, planted, batches, call):
    first = {name: table[table["cell"] == 0] for name, table in planted[1].items()}
    older = [cell | {"key": "c" * 32} for cell in CELLS[:1]]
    kept = {*running.glob("runs/*")}
    kept.add(batches.write(running, older, [(0, 2)], {}, writer=memo.writer(), checkpoint=None))
    # A batch with wanted and other runs.
    kept.add(batches.write(running, [*older, CELLS[1]], [(0, 0), (1, 0)], of_seeds(planted[1], 0)))
    unwanted = [
        batches.write(running, older, [(0, 0), (0, 1)], of_seeds(first, 0, 1)),
        batches.write(running, older, [(0, 2)], {}, writer=GONE, checkpoint=None),
    ]
    damaged = batches.write(running, CELLS, runs_of(2), of_seeds(planted[1], 2))
    (damaged / "run.json").write_text("{}")
    lines = {
        f"{unwanted[0]}: 2 runs of 2025-01-01T00:00:00Z",
        f"{unwanted[1]}: 1 run of 2025-01-01T00:00:00Z",
        f"{damaged}: damaged",
    }
    status, out, _ = call("prune", running)
    assert status == 0
    *shown, last = out.splitlines()
    assert set(shown) == lines
    assert last == "3 batches not wanted; delete them with --delete"
    assert {*running.glob("runs/*")} == {*kept, *unwanted, damaged}
    status, out, _ = call("prune", running, "--delete")
    assert status == 0
    assert out.splitlines()[-1] == "3 batches deleted"
    assert {*running.glob("runs/*")} == kept
    assert call("prune", running)[1] == "0 batches not wanted\n"


class Hostile:
    """An object whose pickle creates a file."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_nothing_in_a_folder_is_executed(write, batch_of, batches, change_study, tmp_path, monkeypatch):
    """Code in any place, pickles in place of tables, and names of custom code in the study."""
    folder = write(tmp_path / "run", vocab_size=20, seeds=1, figures=({"kind": "evil.py:draw"},))
    batch, trace = batch_of(folder), tmp_path / "trace"
    code = f"from pathlib import Path\nPath({str(trace)!r}).touch()\ndraw = Model = str\n"
    content = pickle.dumps(Hostile(trace))
    for place in (folder, folder / "runs", batch):
        for name in ("evil.py", "__init__.py", "sitecustomize.py", "conftest.py", "jaxattn.py"):
            (place / name).write_text(code)
        (place / "records.pkl").write_bytes(content)
    config = study_file.read_study(folder)["config"]
    change_study(folder, config=config | {"model": {"kind": "evil.py:Model"}, "data": {"kind": "evil:draw"}})
    monkeypatch.chdir(folder)
    results = ja.load(folder)
    report.write_report(folder)
    verify(folder)
    for read_more in (results.params, results.dataset):
        with pytest.raises(ja.InputError):
            read_more()
    code = f"from jaxattn.lab.loaded import load; load({str(folder)!r})"
    environment = os.environ | {"PYTHONPATH": str(Path(read.__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=tmp_path)
    record = batch_record.read_record(batch, folder)
    for name in ("records", "tokens"):
        (batch / f"{name}.parquet").write_bytes(content)
    batches.change(batch, tables=dict.fromkeys(record.tables, files.digest(content)))
    with pytest.raises(ja.InputError, match=r"records\.parquet: damaged \("):
        ja.load(folder)
    assert not trace.exists()
    pickle.loads(content)
    assert trace.exists()


@pytest.fixture(scope="module")
def made(write, batch_of, batches, tmp_path_factory):
    """A finished folder of one batch, with a checkpoint and a report."""
    folder = write(tmp_path_factory.mktemp("verified") / "run", seeds=1, vocab_size=20, text=False)
    batch = batch_of(folder)
    checkpoint = checkpoints.save(batch / "checkpoint", {"embed": {"E": np.ones((1, 2))}})
    batches.change(batch, checkpoint=checkpoint)
    (folder / "figures").mkdir()
    (folder / "summary.csv").write_text("a,b\n")
    drawn = {"own": [], "sha256": {"summary.csv": files.digest(b"a,b\n")}}
    (folder / "figures" / "drawn.json").write_bytes(files.sealed(drawn))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def test_verify_accepts_an_intact_folder(folder, batch_of, tmp_path):
    seen = []
    assert verify(folder, lambda name, share: seen.append((name, share))) == []
    assert seen == [(batch_of(folder).name, 0.0)]
    with pytest.raises(ja.InputError, match="no such folder"):
        verify(tmp_path / "none")


RUN = "; run the same sweep again into {folder}, which computes its runs again"
DRAW = "; draw it again with: jaxattn report {folder}"


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        ("runs/*/records.parquet", RUN),
        ("runs/*/tokens.parquet", RUN),
        ("runs/*/run.json", RUN),
        ("runs/*/checkpoint/_METADATA", RUN),
        ("summary.csv", DRAW),
        ("figures/drawn.json", DRAW),
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
    line, *others = verify(folder)
    assert line.startswith(f"{path}: {'damaged' if damage == 'flipped' else 'missing'}")
    assert remedy.format(folder=folder) in line
    assert "\n" not in line
    again = f"{folder}: 1 run missing; run the same sweep again into {folder}"
    assert others == ([again] if "run.json" in pattern else [])


def test_verify_rejects_a_folder_without_a_study(folder):
    (folder / "study.json").unlink()
    with pytest.raises(ja.InputError, match=r"no study\.json"):
        verify(folder)


def test_verify_checks_unfinished_batches_and_reports_runs_that_were_never_started(running):
    folder = running
    for path in folder.glob("runs/*"):
        saved = batch_record.read_record(path, folder)
        if saved.tables:
            checkpoint = checkpoints.save(path / saved.checkpoint_name, {"E": np.ones(2)})
            batch_record.write_record(path, msgspec.structs.replace(saved, checkpoint=checkpoint), folder)
    assert verify(folder) == []
    table = begun_in(folder) / "records-3.parquet"
    table.write_bytes(b"x")
    (line,) = verify(folder)
    assert line.startswith(f"{table}: damaged")
    shutil.rmtree(table.parent)
    assert verify(folder) == [f"{folder}: 4 runs missing; run the same sweep again into {folder}"]


def test_verify_ignores_a_state_that_a_process_replaces_at_the_same_time(running, monkeypatch):
    shutil.rmtree(finished_in(running))
    partials = memo.partials
    stale = [one._replace(record=msgspec.structs.replace(one.record, saved=2)) for one in partials(running)]
    seen = iter([stale])
    monkeypatch.setattr(memo, "partials", lambda folder: next(seen, None) or partials(folder))
    assert verify(running) == [f"{running}: 6 runs missing; run the same sweep again into {running}"]


def test_verify_command_exits_with_status_1_on_damage(folder, batch_of, call):
    status, out, _ = call("status", "--verify", folder)
    assert status == 0
    assert "planted: 100 % done, finished" in out
    assert "all files match their checksums" in out
    (batch_of(folder) / "run.json").write_text("{}")
    status, _, said = call("status", "--verify", folder)
    assert status == 1
    assert [line.partition(": ")[0] for line in said.splitlines()] == ["jaxattn"] * 2
