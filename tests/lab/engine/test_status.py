import json
import shutil
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core.errors import InputError
from jaxattn.lab.cli import status as cli_status
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.engine import programs
from jaxattn.lab.engine.store import Store
from jaxattn.lab.storage import files, run_log


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, stop, study):
    """Return a sweep of two cells with one batch per seed, stopped in the second batch."""
    wanted = study(chunk=1, axes={"phases.query.steps": [20, 30]})
    return stop(tmp_path_factory.mktemp("stopped") / "small", wanted, 12)


@pytest.mark.more
def test_status_shows_progress_and_loss_of_a_stopped_run(stopped):
    table, whole = run_status(stopped)
    assert table["state"].tolist() == ["stopped", "waiting"]
    assert table["phases.query.steps"].tolist() == [20, 30]
    share = int(table["done"][0].removesuffix(" %"))
    assert 0 < share < 100
    assert table["phase"][0].partition(" ")[0] in ("embed", "query", "compiling", "drawing")
    assert float(table["loss"][0]) > 0
    assert whole.endswith("stopped")
    with Store(stopped).locked():
        table, whole = run_status(stopped)
        assert table["state"].tolist() == ["running", "waiting"]
        assert "running" in whole


@pytest.mark.more
@pytest.mark.parametrize("chunk", [2, pytest.param(100, marks=pytest.mark.more)])
def test_status_shows_the_median_loss_of_each_cell(tmp_path, go, study, read, chunk):
    """Both cells are in one batch, or each has several batches."""
    rates = [0.01, 5.0]
    go(tmp_path / "small", study(seeds=3, chunk=chunk, axes={"phases.query.step_size": rates}))
    records, _ = read(tmp_path / "small")
    last = records[(records["metric"] == "loss") & (records["phase"] == "query")]
    last = last[last["step"] == last["step"].max()]
    own = [f"{np.median(last.loc[last['cell'] == cell, 'value']):.4g}" for cell in (0, 1)]
    assert len({*own, f"{np.median(last['value']):.4g}"}) == 3
    table, _ = run_status(tmp_path / "small")
    assert table["loss"].tolist() == own


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


def test_log_has_one_line_per_measurement_and_tolerates_damage(stopped):
    path = stopped / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"batch", "phase", "step", "share", "overall", "metrics", "failures"} <= set(lines[0])
    # A long operation is logged before it starts, without a time left.
    doing = [line["doing"] for line in lines if "doing" in line]
    assert doing[:4] == ["compiling", "drawing", "embed begins", "query begins"]
    assert all(line["left"] is None for line in lines if "doing" in line)
    measured = [line for line in lines if "doing" not in line]
    assert measured[0]["metrics"]["loss"] == pytest.approx(np.log(2), abs=0.3)
    shares = [line["overall"] for line in lines]
    assert shares == sorted(shares)
    with open(path, "a") as file:
        file.write('{"batch": "cell-0')
    last = lines[-1]["batch"], lines[-1]["phase"], lines[-1]["step"]
    found = run_log.latest(stopped)[-1]
    assert (found["batch"], found["phase"], found["step"]) == last
    assert run_status(stopped)[1].endswith("stopped")


def test_status_subtracts_elapsed_time_from_the_time_left(tmp_path, stopped, monkeypatch):
    folder = shutil.copytree(stopped, tmp_path / "small")
    *_, line = run_log.latest(folder)
    for remaining, ago, said in ((100.0, 20.0, ", about 80 s left"), (100.0, 200.0, ""), (None, 1.0, "")):
        last = line | {"time": 1_000.0 - ago, "left": remaining}
        (folder / "metrics.jsonl").write_bytes(files.sealed(last))
        monkeypatch.setattr(cli_status, "time", SimpleNamespace(time=lambda: 1_000.0))
        with Store(folder).locked():
            assert run_status(folder)[1].endswith(f"running{said}")


def test_status_without_a_manifest_raises(tmp_path):
    with pytest.raises(InputError, match=r"no manifest.json, so not a results folder"):
        run_status(tmp_path)
