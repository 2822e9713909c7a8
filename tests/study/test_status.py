import json
import os
import signal
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxattn.errors import InputError, RunError
from jaxattn.study import doctor, execute, run, sweepfile
from jaxattn.study.progress import Reporter
from jaxattn.study.status import status
from jaxattn.study.store import Store

SMALL = Path(__file__).with_name("small.toml")


def go(directory, on_failure="continue", **changes):
    sweep = sweepfile.check(tomllib.loads(SMALL.read_text()) | changes)
    with Reporter(quiet=True) as reporter:
        return run.run_sweep(sweep, directory, command="test", reporter=reporter, on_failure=on_failure)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A sweep of two cells, one unit per seed, stopped in the second unit."""
    timed = execute._Pace.timed
    calls = 0

    def stopping(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        return timed(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(execute._Pace, "timed", stopping)
        with pytest.raises(execute.Interrupted):
            go(tmp_path / "small", chunk=1, axes={"phases.query.steps": [20, 30]})
    return tmp_path / "small"


def test_a_stopped_run_shows_what_is_done_and_what_is_not(stopped):
    table, whole = status(stopped)
    assert table["state"].tolist() == ["stopped", "waiting"]
    assert table["phases.query.steps"].tolist() == [20, 30]
    share = int(table["done"][0].removesuffix(" %"))
    assert 0 < share < 100
    assert table["phase"][0] in ("embed", "query")
    assert float(table["loss"][0]) > 0
    assert whole.endswith("stopped")
    with Store(stopped).locked():
        table, whole = status(stopped)
        assert table["state"].tolist() == ["running", "waiting"]
        assert "running" in whole


def test_a_finished_run_with_a_failed_seed(tmp_path, monkeypatch):
    original = execute.init_params

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=params.p.at[1].set(np.nan))

    monkeypatch.setattr(execute, "init_params", poisoned)
    go(tmp_path / "small")
    table, whole = status(tmp_path / "small")
    assert table["state"].tolist() == ["finished"]
    assert table["failed seeds"].tolist() == [1]
    assert whole == "small: 100 % done, finished"


def failing(monkeypatch, times):
    """Let the machine fail the first unit some times."""
    original, calls = run.execute, []

    def execute_or_fail(unit, *arguments):
        calls.append(unit.name)
        if unit.seeds.start == 0 and calls.count(unit.name) <= times:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more lines")
        return original(unit, *arguments)

    monkeypatch.setattr(run, "execute", execute_or_fail)
    return calls


def test_a_unit_that_the_machine_fails_is_listed_and_the_next_run_mends_it(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        calls = failing(patch, times=9)
        outcome = go(tmp_path, chunk=1)
    assert len(calls) == 2
    (error,) = outcome.errors
    assert error["cells"] == [0]
    assert error["reason"].startswith("RESOURCE_EXHAUSTED: out of memory; smaller units may help")
    table, whole = status(tmp_path)
    assert table["state"].tolist() == ["failed"]
    assert "50 % done" in whole
    assert set(pd.read_parquet(tmp_path / "records.parquet")["seed"]) == {1}
    assert not go(tmp_path, chunk=1).errors
    assert status(tmp_path)[0]["state"].tolist() == ["finished"]


def test_stop_stops_and_keeps_what_is_done(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        calls = failing(patch, times=9)
        with pytest.raises(RunError, match="go on with --on-failure continue"):
            go(tmp_path, "stop", chunk=1)
    assert len(calls) == 1
    assert not go(tmp_path, chunk=1).errors


def test_retry_tries_again_from_the_start(tmp_path, monkeypatch):
    calls = failing(monkeypatch, times=2)
    assert not go(tmp_path, "retry", chunk=1).errors
    assert len(calls) == 4
    calls = failing(monkeypatch, times=3)
    assert len(go(tmp_path / "other", "retry", chunk=1).errors) == 1
    assert len(calls) == 4


def test_nan_stops_a_sweep_that_is_to_stop(tmp_path, monkeypatch):
    original = execute.init_params

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=params.p * jnp.nan)

    monkeypatch.setattr(execute, "init_params", poisoned)
    with pytest.raises(RunError, match="not finite; stopped"):
        go(tmp_path, "stop", chunk=1)
    outcome = go(tmp_path / "on", chunk=1)
    assert {failure["seed"] for failure in outcome.failures} == {0, 1}


def test_the_log_has_a_line_per_probe_and_survives_a_torn_one(stopped):
    path = stopped / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"unit", "phase", "step", "share", "overall", "metrics", "failures"} <= set(lines[0])
    assert lines[0]["metrics"]["loss"] == pytest.approx(np.log(2), abs=0.3)
    shares = [line["overall"] for line in lines]
    assert shares == sorted(shares)
    with open(path, "a") as file:
        file.write('{"unit": "cell-0')
    assert len(Store(stopped).read_log()) == len(lines)
    assert status(stopped)[1].endswith("stopped")


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no manifest.json, so not a results folder"):
        status(tmp_path)


def test_the_doctor_finds_this_machine_well(tmp_path):
    findings = {finding.name: finding for finding in doctor.examine(tmp_path / "compiled")}
    assert findings["float64"].state == "ok"
    assert "jax " in findings["packages"].found
    assert str(tmp_path) in findings["compiled programs"].found
    assert all(finding.state in ("ok", "note") for finding in findings.values())


def test_a_check_that_fails_is_a_finding(tmp_path, monkeypatch):
    def broken():
        raise RuntimeError("no device\nat all")

    monkeypatch.setattr(doctor, "_devices", broken)
    findings = {finding.name: finding for finding in doctor.examine(tmp_path)}
    assert findings["devices"] == ("devices", "broken", "RuntimeError: no device")


@pytest.mark.parametrize(
    ("platform", "jaxlib", "slow"),
    [("gpu", "0.10.2", True), ("gpu", "0.11.0", True), ("gpu", "0.11.1", False), ("cpu", "0.10.2", False)],
)
def test_known_slow_scatters(platform, jaxlib, slow):
    assert doctor.scatter_is_slow(platform, jaxlib) == slow
