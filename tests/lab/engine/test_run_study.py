"""Runs: only what is missing is computed, changed code is never mixed, and failed batches are listed."""

import json
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.core.errors import UserCodeError
from jaxattn.lab.cli.status import run_status
from jaxattn.lab.engine import attempt, description, missing, programs, run_study
from jaxattn.lab.engine.monitor import Interrupted
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.storage import study_file
from jaxattn.lab.study import identity
from jaxattn.lab.study.import_paths import ImportPaths


def of_seeds(records, *seeds):
    return records[records["seed"].isin(seeds)].reset_index(drop=True)


@pytest.mark.parametrize("name", ["small", pytest.param("own", marks=pytest.mark.more)])
def test_a_finished_study_computes_and_traces_nothing(name, tmp_path, monkeypatch, go, study, contents):
    go(tmp_path, study(name))
    before, events = contents(tmp_path), []
    for owner, function in (
        (attempt, "run_batch"),
        (missing, "rehearse_groups"),
        (missing.batches, "widths"),
        (ProgramCache, "of"),
        (programs, "Programs"),
    ):
        monkeypatch.setattr(owner, function, None)

    def note(event, *_, **__):
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        outcome, lines = go(tmp_path, study(name))
        assert (outcome.already_finished, outcome.renewed, lines) == (True, False, [])
        assert [event for event in events if event.startswith("/jax/core/compile")] == []
        with pytest.raises(TypeError):
            go(tmp_path, study(name, seeds=3))
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert contents(tmp_path) == before


def test_more_and_fewer_seeds_compute_only_missing_runs(
    two_batches, tmp_path, go, study, read, counted, contents, assert_same
):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    before = contents(folder / "runs")
    assert go(folder, study(seeds="1:4", chunk=1))[0].batches == 2
    assert [runs for runs, _ in counted] == [[(0, 2)], [(0, 3)]]
    go(tmp_path / "fresh", study(seeds="1:4", chunk=1))
    assert_same(folder, tmp_path / "fresh")
    counted.clear()
    assert go(folder, study(seeds=[3, 0], chunk=1))[0].already_finished
    assert set(read(folder)[0]["seed"]) == {0, 3}
    assert go(folder, study(chunk=1))[0].already_finished
    assert_same(folder, two_batches)
    assert counted == []
    assert before.items() <= contents(folder / "runs").items()


STEP_SIZE = "phases.query.step_size"


def with_step_size(study, step_size, **changes):
    first, last = study().tree["phases"]
    return study(phases=[first, last | {"step_size": step_size}], chunk=1, **changes)


def test_another_step_size_computes_its_runs_and_going_back_computes_nothing(
    two_batches, tmp_path, go, study, read, counted, assert_same
):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    assert go(folder, with_step_size(study, 0.2))[0].batches == 2
    go(tmp_path / "fresh", with_step_size(study, 0.2))
    assert_same(folder, tmp_path / "fresh")
    assert not read(folder)[0].equals(read(two_batches)[0])
    counted.clear()
    outcome, _ = go(folder, study(chunk=1))
    assert (outcome.already_finished, outcome.renewed, counted) == (True, True, [])
    assert_same(folder, two_batches)


def test_more_cells_compute_only_the_cells_that_are_missing(
    two_batches, tmp_path, go, study, read, counted, contents
):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    go(folder, with_step_size(study, 0.2))
    before = contents(folder / "runs")
    counted.clear()
    sweep = study(axes={STEP_SIZE: [0.3, 0.2, 0.1]}, chunk=1)
    assert go(folder, sweep)[0].batches == 2
    assert [runs for runs, _ in counted] == [[(0, 0)], [(0, 1)]]
    assert before.items() <= contents(folder / "runs").items()
    records = read(folder)[0]
    assert set(zip(records["cell"], records["seed"], strict=True)) == {
        (c, s) for c in range(3) for s in (0, 1)
    }
    # The last cell is the original study.
    original = read(two_batches)[0]
    mine = records[records["cell"] == 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine.assign(cell=original["cell"]), original, check_exact=True)
    go(tmp_path / "fresh", sweep)
    fresh = read(tmp_path / "fresh")[0]
    keys = ["cell", "seed", "phase", "step", "metric"]
    pd.testing.assert_frame_equal(records[keys], fresh[keys])
    # The program of several cells rounds differently.
    np.testing.assert_allclose(
        records["value"][records["metric"] == "loss"], fresh["value"][fresh["metric"] == "loss"], rtol=1e-5
    )
    # Indices of cells are those of the study that is asked for, also in failures and parameters.
    assert ja.load(folder).lookup(2, STEP_SIZE) == 0.1
    np.testing.assert_array_equal(
        ja.load(folder).params(cell=2, seed=1).p, ja.load(two_batches).params(seed=1).p
    )
    assert go(folder, study(axes={STEP_SIZE: [0.2]}, chunk=1))[0].already_finished
    assert set(read(folder)[0]["cell"]) == {0}


def test_cells_with_equal_settings_are_computed_once(tmp_path, go, study, read, counted):
    blocks = {"one": {}, "same": {}, "other": {"phases": {"query": {"step_size": 0.2}}}}
    wanted = study(blocks=blocks, chunk=1)
    assert not go(tmp_path, wanted)[0].errors
    assert sorted(run for runs, _ in counted for run in runs) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    records = read(tmp_path)[0]
    one, same, other = (
        records[records["cell"] == cell].drop(columns="cell").reset_index(drop=True) for cell in range(3)
    )
    pd.testing.assert_frame_equal(one, same, check_exact=True)
    assert not one.equals(other)
    assert go(tmp_path, wanted)[0].already_finished


def test_results_do_not_depend_on_jax_settings(small_run, study, go, tmp_path, assert_same):
    with jax.default_prng_impl("rbg"), jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        go(tmp_path / "run", study())
    assert_same(tmp_path / "run", small_run)


def test_interrupted_batch_is_finished_first_at_its_width(
    tmp_path, go, stop, study, counted, read, two_batches, assert_same
):
    """One seed was asked for, and then three in batches of two."""
    straight = shutil.copytree(two_batches, tmp_path / "straight")
    assert go(straight, study(seeds=1))[0].already_finished
    stop(tmp_path / "grown", study(seeds=1), 5)
    done = counted[0][1]
    counted.clear()
    assert go(tmp_path / "grown", study(seeds=3, chunk=2))[0].batches == 2
    assert [runs for runs, _ in counted] == [[(0, 0)], [(0, 1), (0, 2)]]
    assert counted[0][1] == 21 - done < 21
    records = read(tmp_path / "grown")[0]
    pd.testing.assert_frame_equal(of_seeds(records, 0), read(straight)[0], check_exact=True)
    assert go(tmp_path / "grown", study(seeds=1))[0].already_finished
    assert_same(tmp_path / "grown", straight)


def test_interrupted_batch_with_an_unwanted_seed_stays_until_it_is_wanted(
    tmp_path, go, stop, study, counted, listed, small_run, assert_same
):
    stop(tmp_path / "both", study(), 5)
    go(tmp_path / "both", study(seeds=1))
    assert [runs for runs, _ in counted] == [[(0, 0), (0, 1)], [(0, 0)]]
    assert [len(names) for names in listed(tmp_path / "both")] == [1, 1, 0]
    go(tmp_path / "both", study(seeds="1:2"))
    assert [runs for runs, _ in counted[2:]] == [[(0, 1)]]


def failing(monkeypatch, times):
    """Let the device fail on the first batch some times."""
    original, calls = attempt.run_batch, []

    def execute_or_fail(batch, *arguments, **options):
        calls.append(batch.name)
        if batch.runs[0][1] == 0 and calls.count(batch.name) <= times:
            raise jax.errors.JaxRuntimeError("INTERNAL: the driver is gone\nand more lines")
        return original(batch, *arguments, **options)

    monkeypatch.setattr(attempt, "run_batch", execute_or_fail)
    return calls


def test_failed_batch_is_listed_and_run_again(
    tmp_path, monkeypatch, go, study, read, two_batches, assert_same
):
    with monkeypatch.context() as patch:
        calls = failing(patch, times=9)
        outcome, _ = go(tmp_path, study(chunk=1))
    assert calls == ["cell 0, seed 0", "cell 0, seed 1"]
    (error,) = outcome.errors
    assert error["cells"] == [0]
    assert error["reason"].startswith("INTERNAL: the driver is gone; smaller batches may help")
    table, whole = run_status(tmp_path)
    assert table["state"].tolist() == ["failed"]
    assert "50 % done" in whole
    found = ja.load(tmp_path)
    assert set(found.records["seed"]) == {1}
    assert (found.manifest["status"], found.finished) == ("failed", False)
    assert [each["reason"] for each in found.manifest["errors"]] == [error["reason"]]
    assert not go(tmp_path, study(chunk=1))[0].errors
    assert run_status(tmp_path)[0]["state"].tolist() == ["finished"]
    assert ja.load(tmp_path).manifest["errors"] == []
    assert_same(tmp_path, two_batches)


def out_of_memory(monkeypatch, most, stop_after=99):
    """Let batches of more than `most` runs fail for lack of memory, and stop after some others."""
    original, done = attempt.run_batch, []

    def execute_or_fail(batch, *arguments, **options):
        if batch.width > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nand more lines")
        found = original(batch, *arguments, **options)
        done.append(batch.name)
        if len(done) == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(attempt, "run_batch", execute_or_fail)
    return done


@pytest.mark.more
def test_batch_that_runs_out_of_memory_is_split_in_half_and_resumed(
    tmp_path, monkeypatch, go, study, listed, assert_same
):
    with monkeypatch.context() as patch:
        done = out_of_memory(patch, most=1, stop_after=1)
        with pytest.raises(Interrupted):
            go(tmp_path / "halves", study(seeds=3))
    assert done == ["cell 0, seed 0"]
    with monkeypatch.context() as patch:
        done = out_of_memory(patch, most=1)
        outcome, lines = go(tmp_path / "halves", study(seeds=3))
    assert not outcome.errors
    assert done == ["cell 0, seed 1", "cell 0, seed 2"]
    assert lines == ["cell 0, seeds 1 to 2: out of memory; running cell 0, seed 1 and cell 0, seed 2 instead"]
    assert [len(names) for names in listed(tmp_path / "halves")] == [3, 0, 0]
    go(tmp_path / "singles", study(seeds=3, chunk=1))
    assert_same(tmp_path / "halves", tmp_path / "singles")


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
        patch.setattr(run_study.devices, "put", full)
        outcome, lines = go(folder, wanted)
    # It was read to the host, so no device had to hold all runs.
    assert {type(x) for x in held} == {np.ndarray}
    assert "Out of memory; a single seed does not fit" in outcome.errors[0]["reason"]
    assert not any("damaged" in line for line in lines)
    assert not go(folder, wanted)[0].errors
    go(tmp_path / "straight", wanted)
    assert_same(folder, tmp_path / "straight")


def test_batches_that_run_out_of_memory_are_retried_only_as_single_seeds(tmp_path, monkeypatch, go, study):
    out_of_memory(monkeypatch, most=0)
    _, lines = go(tmp_path, study(seeds=2), on_failure="retry")
    again = [line.partition(":")[0] for line in lines if "running it again" in line]
    assert set(again) == {f"cell 0, seed {seed}" for seed in range(2)}


def test_single_seed_that_runs_out_of_memory_gives_a_one_line_error(tmp_path, monkeypatch, go, study):
    out_of_memory(monkeypatch, most=0)
    errors = go(tmp_path, study(seeds=2))[0].errors
    assert [error["batch"] for error in errors] == ["cell 0, seed 0", "cell 0, seed 1"]
    assert "Out of memory; a single seed does not fit" in errors[0]["reason"]


def test_stopping_while_adding_seeds_leaves_the_run_unfinished(small_run, tmp_path, monkeypatch, go, study):
    folder, execute_batch = shutil.copytree(small_run, tmp_path / "small"), attempt.run_batch

    def then_stop(*given, **options):
        found = execute_batch(*given, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return found

    handler = signal.getsignal(signal.SIGTERM)
    wanted = study(seeds=4, chunk=1)
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "run_batch", then_stop)
        with pytest.raises(Interrupted):
            go(folder, wanted)
    assert signal.getsignal(signal.SIGTERM) is handler
    found = ja.load(folder)
    assert not found.finished
    assert found.manifest["status"] == "stopped"
    assert set(found.records["seed"]) == {0, 1, 2}
    assert go(folder, wanted)[0].batches == 1
    assert ja.load(folder).finished
    pd.testing.assert_frame_equal(of_seeds(ja.load(folder).records, 0, 1, 2), found.records, check_exact=True)


class Raising(ja.Model, kw_only=True):
    """Model of one parameter, whose code fails for one setting."""

    size: int = 1

    def init(self, key, like, *, dtype):
        return {"a": jnp.ones((), dtype)}

    def outputs(self, params, data):
        if self.size == 2:
            raise ValueError("no size of 2")
        return params["a"] * jnp.ones(len(data.targets))


def test_on_failure_stop_stops_before_the_first_batch_if_custom_code_fails(tmp_path):
    data = {"kind": "independent", "vocab_size": 6, "relevant": 4, "length": 3, "sequences": 8}
    phase = {
        "name": "fit",
        "kind": "descent",
        "train": ["a"],
        "optimizer": "sgd",
        "step_size": 1.0,
        "steps": 1,
    }
    # Sizes are constants of a program, so there are two.
    axes, probes = {"model.size": [1, 2]}, {"tokens": False}
    study = ja.Study(name="t", data=data, model=Raising(), phases=[phase], axes=axes, probes=probes)
    with pytest.raises(ja.RunError, match="ValueError in outputs"):
        study.run(tmp_path / "stopped", quiet=True, report=False, on_failure="stop")
    assert not list(tmp_path.glob("stopped/runs/*"))
    results = study.run(tmp_path / "went_on", quiet=True, report=False)
    assert set(results.records["cell"]) == {0}


def test_on_failure_stop_keeps_finished_batches(tmp_path, monkeypatch, go, study):
    with monkeypatch.context() as patch:
        calls = failing(patch, times=9)
        with pytest.raises(ja.RunError, match="use --on-failure continue"):
            go(tmp_path, study(chunk=1, seeds=[1, 0]), on_failure="stop")
    assert len(calls) == 1
    assert not go(tmp_path, study(chunk=1))[0].errors


def test_on_failure_retry_restarts_the_batch(tmp_path, monkeypatch, go, study, two_batches, assert_same):
    calls = failing(monkeypatch, times=2)
    assert not go(tmp_path / "one", study(chunk=1), on_failure="retry")[0].errors
    assert len(calls) == 4
    assert_same(tmp_path / "one", two_batches)
    calls = failing(monkeypatch, times=3)
    assert len(go(tmp_path / "other", study(chunk=1), on_failure="retry")[0].errors) == 1
    assert len(calls) == 4


def test_on_failure_stop_stops_at_nan(tmp_path, monkeypatch, go, study):
    original = programs.Programs.start

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=params.p * jnp.nan)

    monkeypatch.setattr(programs.Programs, "start", poisoned)
    with pytest.raises(ja.RunError, match="not finite; the run was stopped"):
        go(tmp_path / "stop", study(chunk=1), on_failure="stop")
    outcome, _ = go(tmp_path / "on", study(chunk=1))
    assert {failure["seed"] for failure in outcome.failures} == {0, 1}
    # Failed seeds are finished runs, and are listed each time.
    again, _ = go(tmp_path / "on", study(chunk=1))
    assert again.already_finished
    assert again.failures == outcome.failures
    assert [each["seed"] for each in go(tmp_path / "on", study(seeds=1))[0].failures] == [0]


@pytest.mark.more
def test_retried_batch_keeps_the_failures_of_the_last_attempt(tmp_path, monkeypatch, go, study):
    original, calls = programs.Programs.start, []

    def poisoned(*arguments):
        params = original(*arguments)
        calls.append(len(calls))
        return params.replace(p=params.p.at[0].set(jnp.nan)) if len(calls) < 3 else params

    monkeypatch.setattr(programs.Programs, "start", poisoned)
    assert go(tmp_path / "one", study(), on_failure="retry")[0].failures == []
    assert calls == [0, 1, 2]
    assert len(go(tmp_path / "one", study())[0].failures) == 0


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
        return ja.Study.from_tables(tree, ImportPaths(folder))

    return write


CHANGED = "logits = 2 * logits"


@pytest.mark.more
def test_changed_code_is_computed_again_and_never_mixed(tmp_path, own, go, read, counted, assert_same):
    folder = tmp_path / "run"
    go(folder, own(chunk=1))
    before = read(folder)[0]
    assert set(study_file.read_study(folder)["code"]) == {"mine.py:loss", "mine.py:size"}
    assert go(folder, own(chunk=1))[0].already_finished
    counted.clear()
    _, lines = go(folder, own(CHANGED, seeds=2, chunk=1))
    assert [runs for runs, _ in counted] == [[(0, 0)], [(0, 1)]]
    assert len(lines) == 1
    assert lines[0].startswith("1 run computed again, because mine.py:loss, mine.py:size have changed")
    go(tmp_path / "fresh", own(CHANGED, seeds=2, chunk=1))
    assert_same(folder, tmp_path / "fresh")
    assert not of_seeds(read(folder)[0], 0).equals(before)
    # The results of the older code are still there.
    counted.clear()
    assert go(folder, own(chunk=1))[0].already_finished
    pd.testing.assert_frame_equal(read(folder)[0], before, check_exact=True)
    assert counted == []


def test_runs_of_another_version_of_the_package_are_computed_again_or_reused(
    two_batches, tmp_path, go, study, counted, monkeypatch, assert_same
):
    folder = shutil.copytree(two_batches, tmp_path / "small")
    for module in (identity, missing, description):
        monkeypatch.setattr(module, "package_hash", lambda: "another")
    outcome, lines = go(folder, study(chunk=1), reuse_code=True)
    assert (outcome.already_finished, lines, counted) == (True, [], [])
    assert_same(folder, two_batches)
    _, lines = go(folder, study(chunk=1))
    assert lines == ["2 runs computed again, because this package has changed; earlier results are kept"]
    assert [runs for runs, _ in counted] == [[(0, 0)], [(0, 1)]]
    assert_same(folder, two_batches)


@pytest.mark.more
def test_reuse_code_takes_older_runs_of_changed_code(tmp_path, own, go, read, counted, flip, listed):
    folder = tmp_path / "run"
    go(folder, own(chunk=1))
    before = read(folder)[0]
    (name,) = listed(folder).finished
    counted.clear()
    outcome, lines = go(folder, own(CHANGED, seeds=2, chunk=1), reuse_code=True)
    assert [runs for runs, _ in counted] == [[(0, 1)]]
    assert (outcome.batches, lines) == (1, [])
    found = ja.load(folder)
    assert found.finished
    pd.testing.assert_frame_equal(of_seeds(found.records, 0), before, check_exact=True)
    assert found.params(seed=0).p.shape == found.params(seed=1).p.shape
    assert go(folder, own(CHANGED, seeds=2, chunk=1), reuse_code=True)[0].already_finished
    # Without it, the other seed is computed with the changed code.
    saved = shutil.copytree(folder, tmp_path / "saved")
    counted.clear()
    go(folder, own(CHANGED, seeds=2, chunk=1))
    assert [runs for runs, _ in counted] == [[(0, 0)]]
    assert not of_seeds(read(folder)[0], 0).equals(before)
    # Current runs come before older ones.
    assert go(folder, own(CHANGED, seeds=2, chunk=1), reuse_code=True)[0].already_finished
    assert not of_seeds(read(folder)[0], 0).equals(before)
    # An older run that is damaged is computed with the changed code.
    flip(saved / "runs" / name / "records.parquet")
    counted.clear()
    _, lines = go(saved, own(CHANGED, seeds=2, chunk=1), reuse_code=True)
    assert [name in line for line in lines if "damaged" in line] == [True]
    assert [runs for runs, _ in counted] == [[(0, 0)]]
    pd.testing.assert_frame_equal(read(saved)[0], read(folder)[0], check_exact=True)


@pytest.mark.more
def test_reuse_code_does_not_take_runs_of_other_settings_or_files(tmp_path, own, go, counted):
    go(tmp_path / "run", own())
    counted.clear()
    go(tmp_path / "run", own(CHANGED, model={"kind": "one_layer", "dim": 5}), reuse_code=True)
    assert [runs for runs, _ in counted] == [[(0, 0)]]


CELL = """
import threading
import jax.numpy as jnp
import jaxattn as ja

LOCK = threading.Lock()
SCALE = {scale}


def scaled(x):
    return {helper} * x


def closing(shift):
    def add(x):
        return x + shift
    return add


add = closing({shift})


class Softened(ja.Loss):
    def __call__(self, outputs, targets):
        return jnp.logaddexp(0, {factor} * outputs * scaled(add(SCALE * targets))){reads}
"""


@pytest.fixture
def notebook(tables):
    """Return a function that makes a study of a loss defined in a notebook cell, a module without a file."""

    def make(factor=-1.0, scale=1.0, helper=1.0, shift=0.0, reads="", **changes):
        cell = {"__name__": "a_notebook"}
        exec(CELL.format(factor=factor, scale=scale, helper=helper, shift=shift, reads=reads), cell)
        tree = tables(
            loss="__main__:Softened", **{"seeds": 1, "probes": {"bins": 0, "min_count": 1}} | changes
        )
        return ja.Study.from_tables(tree, ImportPaths(given={"__main__:Softened": cell["Softened"]}))

    return make


@pytest.mark.more
def test_changed_notebook_code_is_computed_again(tmp_path, notebook, go, read, counted):
    """The class, a global variable, a function that the class calls, or the closure of one changes."""
    seen = []
    for changed in ({}, {"factor": -2.0}, {"scale": 4.0}, {"helper": 3.0}, {"shift": 0.5}):
        _, lines = go(tmp_path, notebook(**changed))
        assert len(lines) == bool(changed)
        assert all("computed again, because __main__:Softened has changed" in line for line in lines)
        assert go(tmp_path, notebook(**changed))[0].already_finished
        seen.append(read(tmp_path)[0])
        assert not any(seen[-1].equals(before) for before in seen[:-1])
    assert [runs for runs, _ in counted] == [[(0, 0)]] * 5
    assert go(tmp_path, notebook())[0].already_finished
    assert read(tmp_path)[0].equals(seen[0])


@pytest.mark.more
def test_runs_of_unhashable_code_are_found_only_by_the_process_that_computed_them(
    tmp_path, notebook, go, counted, monkeypatch
):
    unknown = notebook(reads=" + 0 * LOCK.locked()")
    _, lines = go(tmp_path / "run", unknown)
    (line,) = lines
    assert line.startswith(
        "__main__:Softened: its code has no hash, because LOCK (lock), which it uses, has none, so another"
    )
    assert go(tmp_path / "run", unknown)[0].already_finished
    monkeypatch.setattr(identity, "_UNKNOWN", "another process")
    counted.clear()
    assert go(tmp_path / "run", unknown, reuse_code=True)[0].already_finished
    assert not go(tmp_path / "run", unknown)[0].already_finished
    assert [runs for runs, _ in counted] == [[(0, 0)]]


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
    with pytest.raises(ja.InputError, match=message) as caught:
        go(tmp_path / "run", study("own", seeds=1, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [[0.4, 0.1], [0.2, 0.1, 0.4]], ids=str)
def test_a_stopped_study_is_resumed_after_its_cells_have_other_indices(
    values, tmp_path, study, go, stop, every_step, read
):
    """A saved state is found by its settings, so its rows belong to the cells that have them now."""

    def sizes(*values):
        # Both runs have batches of this width, because another width changes last digits.
        return study(chunk=2, seeds=2, axes={"phases.query.step_size": list(values)})

    place = stop(tmp_path / "stopped", sizes(0.1, 0.4), 6, intervals=every_step)
    (partial,) = (place / "runs").glob("*.partial-*")
    assert json.loads((partial / "run.json").read_text())["tables"]
    go(place, sizes(*values))
    go(tmp_path / "straight", sizes(*values))
    for mine, theirs in zip(read(place, True), read(tmp_path / "straight", True), strict=True):
        pd.testing.assert_frame_equal(mine, theirs, check_exact=True)


def test_a_state_that_does_not_fit_in_memory_here_is_kept(
    tmp_path, study, go, stop, every_step, assert_same, monkeypatch
):
    """Its runs are computed in smaller batches, and a device with more memory could have resumed it."""
    wanted = study(chunk=2, seeds=2)
    place = stop(tmp_path / "stopped", wanted, 6, intervals=every_step)
    (partial,) = (place / "runs").glob("*.partial-*")
    real = attempt.run_batch

    def on_a_smaller_device(batch, cache, where, *rest, **options):
        if batch.width > 1:
            where.resume()
            raise MemoryError
        return real(batch, cache, where, *rest, **options)

    monkeypatch.setattr(attempt, "run_batch", on_a_smaller_device)
    outcome, _ = go(place, wanted)
    assert not outcome.failures
    (kept,) = (place / "runs").glob("*.partial-*")
    assert kept.name.partition(".")[0] == partial.name.partition(".")[0]
    assert json.loads((kept / "error.json").read_text())["reason"] == "does not fit in memory here"
    go(tmp_path / "straight", study(chunk=1, seeds=2))
    assert_same(place, tmp_path / "straight", ordered=True)
    # What nobody needs any more is deleted.
    go(place, wanted)
    assert not list((place / "runs").glob("*.partial-*"))
