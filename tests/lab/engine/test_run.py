"""Runs: resumed, rejected, failed, and extended by seeds."""

import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from jaxattn import Study
from jaxattn.core.errors import InputError, RunError, UserCodeError
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.engine import programs, run
from jaxattn.lab.engine.monitor import Interrupted
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results import load
from jaxattn.lab.study.import_paths import ImportPaths


def test_a_finished_run_is_not_run_again(small_run, monkeypatch, go, study):
    before = {path: path.stat().st_mtime_ns for path in small_run.glob("*.parquet")}
    monkeypatch.setattr(run, "run_batch", None)
    assert go(small_run, study())[0].already_finished
    assert before == {path: path.stat().st_mtime_ns for path in small_run.glob("*.parquet")}


def test_folders_with_a_different_config_or_unrelated_files_raise(small_run, tmp_path, go, study):
    with pytest.raises(InputError, match=r"a different config \(model.dim: 16 -> 8\)"):
        go(small_run, study(model={"kind": "one_layer", "dim": 8}))
    (tmp_path / "thesis.txt").write_text("my life's work")
    with pytest.raises(InputError, match="neither empty nor a results folder"):
        go(tmp_path, study())
    assert (tmp_path / "thesis.txt").exists()


def test_full_disk_raises_a_one_line_error_and_keeps_results(tmp_path, monkeypatch, go, study):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_parquet", full)
        with pytest.raises(RunError, match=r"the disk is full .* run the same command again"):
            go(tmp_path / "small", study())
    assert json.loads((tmp_path / "small" / "manifest.json").read_text())["status"] == "running"
    assert not go(tmp_path / "small", study())[0].already_finished


def test_seeds_are_added_without_changing_existing_results(two_batches, tmp_path, go, study, read):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    parts = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "parts").iterdir()}
    assert not go(folder, study(seeds="1:4", chunk=1))[0].already_finished
    assert go(folder, study(seeds="0:4", chunk=1))[0].already_finished
    assert all((path.stat().st_mtime_ns, path.read_bytes()) == was for path, was in parts.items())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["seeds"] == [0, 1, 2, 3]
    assert manifest["status"] == "finished"
    go(tmp_path / "whole", study(seeds=4, chunk=1))
    for one, other in zip(read(folder, ordered=True), read(tmp_path / "whole", ordered=True), strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def failing(monkeypatch, times):
    """Let the device fail on the first batch some times."""
    original, calls = run.run_batch, []

    def execute_or_fail(batch, *arguments):
        calls.append(batch.name)
        if batch.seeds.start == 0 and calls.count(batch.name) <= times:
            raise jax.errors.JaxRuntimeError("INTERNAL: the driver is gone\nand more lines")
        return original(batch, *arguments)

    monkeypatch.setattr(run, "run_batch", execute_or_fail)
    return calls


def test_failed_batch_is_listed_and_run_again(tmp_path, monkeypatch, go, study, read):
    with monkeypatch.context() as patch:
        calls = failing(patch, times=9)
        outcome, _ = go(tmp_path, study(chunk=1))
    assert len(calls) == 2
    (error,) = outcome.errors
    assert error["cells"] == [0]
    assert error["reason"].startswith("INTERNAL: the driver is gone; smaller batches may help")
    table, whole = run_status(tmp_path)
    assert table["state"].tolist() == ["failed"]
    assert "50 % done" in whole
    assert set(read(tmp_path)[0]["seed"]) == {1}
    assert not go(tmp_path, study(chunk=1))[0].errors
    assert run_status(tmp_path)[0]["state"].tolist() == ["finished"]


def out_of_memory(monkeypatch, most, stop_after=99):
    """Let batches of more than `most` runs fail for lack of memory, and stop after some others."""
    original, done = run.run_batch, []

    def execute_or_fail(batch, *arguments):
        if batch.width > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nand more lines")
        found = original(batch, *arguments)
        done.append(batch.name)
        if len(done) == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(run, "run_batch", execute_or_fail)
    return done


@pytest.mark.more
def test_batch_that_runs_out_of_memory_is_split_in_half_and_resumed(tmp_path, monkeypatch, go, study, read):
    with monkeypatch.context() as patch:
        done = out_of_memory(patch, most=1, stop_after=1)
        with pytest.raises(Interrupted):
            go(tmp_path / "halves", study(seeds=3))
    assert len(done) == 1
    with monkeypatch.context() as patch:
        done = out_of_memory(patch, most=1)
        assert not go(tmp_path / "halves", study(seeds=3))[0].errors
    assert len(done) == 2
    names = [
        batch["name"] for batch in json.loads((tmp_path / "halves/manifest.json").read_text())["batches"]
    ]
    assert names == [f"cells-00000-00000-seeds-0000{seed}-0000{seed}" for seed in range(3)]
    go(tmp_path / "whole", study(seeds=3))
    (one, _), (other, _) = read(tmp_path / "halves", ordered=True), read(tmp_path / "whole", ordered=True)
    keys = ["cell", "seed", "phase", "step", "metric"]
    pd.testing.assert_frame_equal(one[keys], other[keys])
    loss = one["metric"] == "loss"
    np.testing.assert_allclose(one["value"][loss], other["value"][loss], rtol=1e-5)


def test_checkpoint_larger_than_device_memory_is_not_reported_as_damaged(
    tmp_path, monkeypatch, go, stop, study, assert_same
):
    wanted = study(seeds=1)
    folder = stop(tmp_path / "stopped", wanted, 5)
    held = []

    def full(tree, shared):
        held.extend(jax.tree.leaves(tree))
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(run.devices, "put", full)
        outcome, lines = go(folder, wanted)
    # It was read to the host, so no device had to hold all runs.
    assert {type(x) for x in held} == {np.ndarray}
    assert "Out of memory; a single seed does not fit" in outcome.errors[0]["reason"]
    assert not any("damaged" in line for line in lines)
    assert not (folder / "damaged").exists()
    assert not go(folder, wanted)[0].errors
    go(tmp_path / "straight", wanted)
    assert_same(folder, tmp_path / "straight")


def test_batches_that_run_out_of_memory_are_retried_only_as_single_seeds(tmp_path, monkeypatch, go, study):
    out_of_memory(monkeypatch, most=0)
    _, lines = go(tmp_path, study(seeds=2), on_failure="retry")
    again = [line.partition(":")[0] for line in lines if "running it again" in line]
    assert set(again) == {f"cells-00000-00000-seeds-0000{seed}-0000{seed}" for seed in range(2)}


def test_single_seed_that_runs_out_of_memory_gives_a_one_line_error(tmp_path, monkeypatch, go, study):
    out_of_memory(monkeypatch, most=0)
    errors = go(tmp_path, study(seeds=2))[0].errors
    assert [error["batch"][-11:] for error in errors] == ["00000-00000", "00001-00001"]
    assert "Out of memory; a single seed does not fit" in errors[0]["reason"]


def test_quiet_run_reports_damage(two_batches, tmp_path, study, capsys):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    (folder / "records.parquet").write_bytes(b"PAR1")
    with Reporter(quiet=True) as reporter:
        reporter.note("hidden")
        run.run_study(study(chunk=1), folder, command="test", reporter=reporter)
    line = f"{folder}/records.parquet: damaged (its checksum differs); merging the tables again\n"
    assert capsys.readouterr().err == line


def test_stopping_while_adding_seeds_leaves_the_run_unfinished(small_run, tmp_path, monkeypatch, go, study):
    folder, execute_batch = shutil.copytree(small_run, tmp_path / "small"), run.run_batch

    def then_stop(*given):
        found = execute_batch(*given)
        os.kill(os.getpid(), signal.SIGTERM)
        return found

    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(run, "run_batch", then_stop)
        with pytest.raises(Interrupted):
            go(folder, study(seeds=3))
    assert signal.getsignal(signal.SIGTERM) is handler
    found = load(folder)
    assert not found.finished
    assert set(found.records["seed"]) == {0, 1, 2}
    monkeypatch.setattr(run, "run_batch", None)
    assert not go(folder, study(seeds=3))[0].already_finished
    assert load(folder).finished
    pd.testing.assert_frame_equal(load(folder).records, found.records)


def test_on_failure_stop_keeps_finished_batches(tmp_path, monkeypatch, go, study):
    with monkeypatch.context() as patch:
        calls = failing(patch, times=9)
        with pytest.raises(RunError, match="use --on-failure continue"):
            go(tmp_path, study(chunk=1), on_failure="stop")
    assert len(calls) == 1
    assert not go(tmp_path, study(chunk=1))[0].errors


def test_on_failure_retry_restarts_the_batch(tmp_path, monkeypatch, go, study):
    calls = failing(monkeypatch, times=2)
    assert not go(tmp_path, study(chunk=1), on_failure="retry")[0].errors
    assert len(calls) == 4
    calls = failing(monkeypatch, times=3)
    assert len(go(tmp_path / "other", study(chunk=1), on_failure="retry")[0].errors) == 1
    assert len(calls) == 4


def test_on_failure_stop_stops_at_nan(tmp_path, monkeypatch, go, study):
    original = programs.Programs.start

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=params.p * jnp.nan)

    monkeypatch.setattr(programs.Programs, "start", poisoned)
    with pytest.raises(RunError, match="not finite; the run was stopped"):
        go(tmp_path, study(chunk=1), on_failure="stop")
    outcome, _ = go(tmp_path / "on", study(chunk=1))
    assert {failure["seed"] for failure in outcome.failures} == {0, 1}


MODEL = """
import jax.numpy as jnp


def loss(logits, labels):
    {first}
    return jnp.logaddexp(0, -labels * logits)


def size(params, corpus):
    return jnp.linalg.norm(params.p)
"""


@pytest.fixture
def own(tmp_path, tables):
    """Return a function that writes a study with a custom loss in a file."""
    changes = {
        "loss": "mine.py:loss",
        "probes": {"bins": 0, "min_count": 1, "own": ["mine.py:size"]},
    }

    def write(first="", **further):
        # A module stays imported, so each version of the file has a separate folder, as in a new process.
        folder = tmp_path / f"code-{abs(hash(first))}"
        folder.mkdir(exist_ok=True)
        (folder / "mine.py").write_text(MODEL.format(first=first or "'''The logistic loss.'''"))
        tree = tables(seeds=1) | changes | further
        tree["phases"][1]["steps"] = 2
        return Study.of_tables(tree, ImportPaths(folder))

    return write


@pytest.mark.more
def test_changed_custom_code_raises_unless_accepted(tmp_path, own, go, read):
    go(tmp_path / "run", own())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert set(manifest["code"]) == {"mine.py:loss", "mine.py:size"}
    assert go(tmp_path / "run", own())[0].already_finished
    changed = own("labels = 1 * labels", seeds=2)
    message = r"mine.py:loss, mine.py:size changed since this run started; .* \(command line: --accept-code\)"
    with pytest.raises(InputError, match=message):
        go(tmp_path / "run", changed)
    outcome, _ = go(tmp_path / "run", changed, accept_code=True)
    assert not outcome.already_finished
    assert set(read(tmp_path / "run")[0]["seed"]) == {0, 1}
    # The next command is compared with the accepted code.
    assert go(tmp_path / "run", changed)[0].already_finished


CELL = """
import threading
import jax.numpy as jnp
import jaxattn as ja

LOCK = threading.Lock()


class Softened(ja.Loss):
    def __call__(self, outputs, targets):
        return jnp.logaddexp(0, {factor} * outputs * targets){reads}
"""


@pytest.fixture
def notebook(tables):
    """Return a function that makes a study of a loss defined in a notebook cell, a module without a file."""

    def make(factor, reads="", **changes):
        cell = {"__name__": "a_notebook"}
        exec(CELL.format(factor=factor, reads=reads), cell)
        tree = tables(
            loss="__main__:Softened", **{"seeds": 1, "probes": {"bins": 0, "min_count": 1}} | changes
        )
        return Study.of_tables(tree, ImportPaths(given={"__main__:Softened": cell["Softened"]}))

    return make


@pytest.mark.more
def test_changed_notebook_class_raises(tmp_path, notebook, go):
    go(tmp_path / "run", notebook(-1.0))
    assert go(tmp_path / "run", notebook(-1.0))[0].already_finished
    for changed in (notebook(-2.0), notebook(-2.0, seeds=2)):
        with pytest.raises(
            InputError, match="__main__:Softened changed since this run started; choose another"
        ):
            go(tmp_path / "run", changed)


@pytest.mark.more
def test_unhashable_code_resumes_only_if_accepted(tmp_path, notebook, go):
    unknown = notebook(-1.0, reads=" + 0 * LOCK.locked()")
    _, lines = go(tmp_path / "run", unknown)
    assert (
        "__main__:Softened: its code has no hash, because LOCK (lock), which it uses, has none; pass"
        in lines[0]
    )
    with pytest.raises(InputError, match="Softened cannot be compared with the code that started this run;"):
        go(tmp_path / "run", unknown)
    assert go(tmp_path / "run", unknown, accept_code=True)[0].already_finished


def test_exception_in_custom_code_shows_its_traceback(tmp_path, own, go):
    with pytest.raises(UserCodeError, match=r"KeyError in loss, line 6 of .*mine\.py") as caught:
        go(tmp_path / "run", own("raise KeyError(labels.shape)"))
    assert "\n" not in str(caught.value)
    assert "raise KeyError(labels.shape)" in caught.value.trace
    assert "jaxattn/lab/engine" not in caught.value.trace


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"loss": "mine.py:of_wrong_shape"},
            r"mine.py:of_wrong_shape returns float\d+\[\]; return floats of shape \(12,\)",
        ),
        (
            {"probes": {"bins": 0, "own": ["mine.py:spread", {"kind": "mine.py:spread", "name": "loss"}]}},
            r"'loss' is also a metric of a standard probe; choose another name",
        ),
        (
            {"probes": {"bins": 0, "own": ["mine.py:pair_of_numbers"]}},
            r"pair_of_numbers returns .*2, 1",
        ),
    ],
)
def test_invalid_return_value_of_custom_code_gives_a_one_line_error(tmp_path, go, study, change, message):
    with pytest.raises(InputError, match=message) as caught:
        go(tmp_path / "run", study("own", seeds=1, **change))
    assert "\n" not in str(caught.value)
