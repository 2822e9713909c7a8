"""Status of a run, read from its folder while it runs, when it has stopped, and when it is finished."""

import json
import os
import shutil
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.cli import status as cli_status
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.engine import programs
from jaxattn.lab.storage import files, memo, run_log, study_file


def sweep(study, **changes):
    return study(chunk=1, axes={"phases.query.step_size": [0.1, 0.2]}, **changes)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, stop, study):
    """Return a sweep of two cells with one batch per run, stopped in the second batch."""
    return stop(tmp_path_factory.mktemp("stopped") / "small", sweep(study), 30)


def alone(folder):
    (one,) = memo.partials(folder)
    return one.path


@pytest.mark.more
def test_status_shows_progress_and_loss_of_a_stopped_run(stopped, tmp_path, abandon):
    table, whole = run_status(stopped)
    assert table["state"].tolist() == ["stopped", "waiting"]
    assert table["phases.query.step_size"].tolist() == [0.1, 0.2]
    share = int(table["done"][0].removesuffix(" %"))
    assert 50 < share < 100
    assert table["done"][1] == "0 %"
    assert table["phase"][0].partition(" ")[0] in ("embed", "query", "compiling", "drawing")
    assert float(table["loss"][0]) > 0
    assert whole.endswith(", stopped")
    folder = shutil.copytree(stopped, tmp_path / "small")
    abandon(folder, os.getppid())
    table, whole = run_status(folder)
    assert table["state"].tolist() == ["running", "waiting"]
    assert "running" in whole
    abandon(folder)
    assert run_status(folder)[0]["state"].tolist() == ["stopped", "waiting"]


@pytest.mark.more
def test_status_shows_the_median_loss_of_each_cell_of_unfinished_batches(tmp_path, go, stop, study, read):
    wanted = study(seeds=3, axes={"phases.query.step_size": [0.01, 5.0]})
    stop(tmp_path, wanted, 9)
    line = run_log.latest(alone(tmp_path), tmp_path).measured
    records, _ = read(tmp_path)
    last = records.query(f"metric == 'loss' and phase == '{line.phase}' and step == {line.step}")
    own = [f"{np.median(last.loc[last['cell'] == cell, 'value']):.4g}" for cell in (0, 1)]
    assert len({*own, f"{np.median(last['value']):.4g}"}) == 3
    assert run_status(tmp_path)[0]["loss"].tolist() == own
    go(tmp_path, wanted)
    table, whole = run_status(tmp_path)
    assert table["state"].tolist() == ["finished"] * 2
    assert table["done"].tolist() == ["100 %"] * 2
    assert table["loss"].tolist() == [""] * 2
    assert whole == "small: 100 % done, finished"


@pytest.mark.more
def test_status_counts_only_the_runs_that_are_wanted(two_batches, tmp_path, go, study):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    go(folder, study(seeds="1:3", chunk=1))
    (row,) = run_status(folder)[0].to_dict("records")
    assert (row["state"], row["done"]) == ("finished", "100 %")
    content = json.loads((folder / "study.json").read_text())
    study_file.write_study(folder, content | {"seeds": [0, 1, 2, 3]})
    (row,) = run_status(folder)[0].to_dict("records")
    assert (row["state"], row["done"]) == ("waiting", "75 %")


@pytest.mark.more
def test_status_counts_the_failed_seeds_of_a_finished_run(tmp_path, monkeypatch, go, study):
    original = programs.Programs.start

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=params.p.at[1].set(jnp.nan))

    monkeypatch.setattr(programs.Programs, "start", poisoned)
    go(tmp_path / "small", study())
    table, whole = run_status(tmp_path / "small")
    assert table["state"].tolist() == ["finished"]
    assert table["failed seeds"].tolist() == [1]
    assert whole == "small: 100 % done, finished"


@pytest.mark.more
def test_status_says_that_batches_have_failed(stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "small")
    assert run_status(folder)[1].endswith(", stopped")
    (alone(folder) / memo.ERROR_FILE).write_text('{"reason": "out of memory"}')
    table, whole = run_status(folder)
    assert "failed" in table["state"].tolist()
    assert whole.endswith(", failed")


@pytest.mark.more
def test_log_has_one_line_per_measurement_and_tolerates_damage(stopped, tmp_path):
    folder = shutil.copytree(stopped, tmp_path / "small")
    path = alone(folder) / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"batch", "phase", "step", "share", "overall", "metrics", "failures"} <= set(lines[0])
    # A long operation is logged before it starts, without a time left.
    doing = [line["doing"] for line in lines if "doing" in line]
    assert doing[:4] == ["compiling", "drawing", "embed begins", "query begins"]
    assert lines[0]["left"] is None
    measured = [line for line in lines if "doing" not in line]
    assert measured[0]["metrics"]["loss"] == pytest.approx(np.log(2), abs=0.3)
    shares = [line["overall"] for line in lines]
    assert shares == sorted(shares)
    with open(path, "a") as file:
        file.write('{"batch": "cell-0')
    found = run_log.latest(path.parent, folder).line
    assert (found.phase, found.step) == (lines[-1]["phase"], lines[-1]["step"])
    assert run_status(folder)[1].endswith("stopped")


def test_status_subtracts_elapsed_time_from_the_time_left(tmp_path, stopped, monkeypatch, abandon):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (path,) = abandon(folder, os.getppid())
    line = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    del line[files.SEAL]
    for remaining, ago, said in ((100.0, 20.0, ", about 80 s left"), (100.0, 200.0, ""), (None, 1.0, "")):
        last = line | {"time": 1_000.0 - ago, "left": remaining}
        (path / "metrics.jsonl").write_bytes(files.sealed(last))
        monkeypatch.setattr(cli_status, "time", SimpleNamespace(time=lambda: 1_000.0))
        assert run_status(folder)[1].endswith(f"running{said}")


def test_status_of_other_folders_raises(tmp_path):
    with pytest.raises(ja.InputError, match=r"no study.json, so not a results folder"):
        run_status(tmp_path)
    with pytest.raises(ja.InputError, match=r"none: no such folder"):
        run_status(tmp_path / "none")
