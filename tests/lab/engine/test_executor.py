"""Batches in the workers of an executor give the results of a run in one process."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import jax
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.core import backend
from jaxattn.lab.engine import devices, worker
from jaxattn.lab.engine import executor as executors
from jaxattn.lab.engine.attempt import Attempt
from jaxattn.lab.engine.monitor import Interrupted

SPAWN = multiprocessing.get_context("spawn")
# Imported before pytest replaces the streams, to which its loggers refer.
submitit = pytest.importorskip("submitit")


CALL = """
import pickle, sys
sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)()))
"""


class Subprocesses:
    """An executor in ten lines: each call runs in a new Python process."""

    def submit(self, function):
        future = Future()

        def call():
            command = [sys.executable, "-c", CALL]
            done = subprocess.run(command, input=pickle.dumps(function), capture_output=True, check=True)
            future.set_result(pickle.loads(done.stdout))

        threading.Thread(target=call).start()
        return future


class Instantly:
    """Executor whose workers return given results, or raise given exceptions, without computing anything."""

    def __init__(self, *results):
        self.results, self.jobs = list(results), []

    def submit(self, job):
        self.jobs.append(job)
        future = Future()
        found = self.results.pop(0)
        if isinstance(found, BaseException):
            future.set_exception(found)
        elif found is not None:
            future.set_result(found)
        return future


def one_gpu():
    """Return which GPU this worker would see."""
    return jax.config.read("jax_cuda_visible_devices")


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(2, mp_context=SPAWN) as made:
        yield made


@pytest.fixture
def alone(tmp_path):
    """Return a function that runs a study in this process."""
    return lambda study: study.run(tmp_path / "alone", quiet=True, report=False)


def in_folder(study, folder, executor, **options):
    return study.run(folder, quiet=True, report=False, executor=executor, **options)


@pytest.mark.slow
def test_a_process_pool_gives_the_same_results(tmp_path, study, pool, alone):
    wanted = study(chunk=1, seeds=2, axes={"phases.query.step_size": [0.1, 0.2]})
    found = in_folder(wanted, tmp_path / "pool", pool)
    pd.testing.assert_frame_equal(found.records, alone(wanted).records, check_exact=True)
    processes = {path.name for path in (tmp_path / "pool" / "runs").iterdir()}
    assert len(processes) == 4
    gpus = {pool.submit(one_gpu).result() for _ in range(20)}
    assert gpus <= {"0", "1"}
    # A finished study submits nothing.
    assert in_folder(wanted, tmp_path / "pool", Instantly()).records.equals(found.records)


@pytest.mark.slow
def test_an_executor_of_ones_own_needs_ten_lines(tmp_path, study, alone):
    wanted = study(chunk=1)
    found = in_folder(wanted, tmp_path / "own", Subprocesses())
    pd.testing.assert_frame_equal(found.records, alone(wanted).records, check_exact=True)


@pytest.mark.slow
def test_workers_with_other_devices_have_the_same_runs(tmp_path, study, alone, monkeypatch):
    """Three host devices here, and one there: the same keys, and the same numbers up to rounding."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    wanted = study(chunk=3, seeds=3)
    found = in_folder(wanted, tmp_path / "own", Subprocesses())
    (record,) = (tmp_path / "own" / "runs").glob("*/run.json")
    assert json.loads(record.read_text())["origin"]["device"]["count"] == 3
    assert "0 of 3 runs missing" in wanted.plan(tmp_path / "own", quick=True).sentence
    expected = alone(wanted).records
    keys = [name for name in expected.columns if name != "value"]
    pd.testing.assert_frame_equal(found.records[keys], expected[keys])
    np.testing.assert_allclose(found.records["value"], expected["value"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_submitit_and_dask_give_the_same_results(tmp_path, study, alone):
    wanted = study(chunk=1)
    queue = submitit.LocalExecutor(tmp_path / "jobs")
    queue.update_parameters(timeout_min=10)
    expected = alone(wanted).records
    found = in_folder(wanted, tmp_path / "submitit", queue)
    pd.testing.assert_frame_equal(found.records, expected, check_exact=True)
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        found = in_folder(wanted, tmp_path / "dask", client.get_executor())
    pd.testing.assert_frame_equal(found.records, expected, check_exact=True)


@pytest.mark.slow
def test_launch_runs_jobs_of_submitit_and_writes_the_report(tmp_path, call, study, monkeypatch, alone):
    monkeypatch.chdir(tmp_path)
    wanted = study(seeds=2)
    sweep = str(wanted.write(tmp_path / "small.toml"))
    status, out, _ = call("launch", sweep, "--jobs", "2", "--cluster", "local", "--out", "run", "--quiet")
    assert status == 0
    assert "report.html" in out
    found = ja.load("run")
    assert len(found.manifest["batches"]) == 2
    pd.testing.assert_frame_equal(found.records, alone(study(chunk=1)).records, check_exact=True)
    assert list((tmp_path / "run-jobs").glob("*.out"))


def test_a_queue_that_does_not_exist_is_refused_in_one_line(tmp_path, call, study, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, error = call("launch", str(study().write(tmp_path / "small.toml")), "--jobs", "2")
    assert status == 2
    assert "cannot be submitted to slurm" in error
    assert error.endswith("use --cluster local to run them on this machine\n")


NOTEBOOK = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import jax.numpy as jnp
import jaxattn as ja

SCALE = 2.0

def softened(logits, labels, *, softness: float = 0.5):
    return SCALE * jnp.logaddexp(0, -softness * labels * logits)

if __name__ == "__main__":
    study = ja.Study(
        name="t", seeds=2, chunk=1, loss=softened, model=ja.models.OneLayer(dim=3),
        data=ja.data.Independent(vocab_size=6, relevant=4, length=3, sequences=8),
        phases=[{"name": "embed", "kind": "one_step", "step_size": 1.0}],
    )
    here = study.run(sys.argv[1] + "/here", quiet=True, report=False)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = study.run(sys.argv[1] + "/there", quiet=True, report=False, executor=pool)
    assert there.records.equals(here.records)
"""


@pytest.mark.slow
def test_code_of_a_notebook_travels_with_cloudpickle(tmp_path):
    pytest.importorskip("cloudpickle")
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    # As in a notebook, the classes of this script belong to __main__ and are not imported by the workers.
    command = [sys.executable, "notebook.py", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_notebook_code_without_cloudpickle_is_refused_in_one_line(monkeypatch, study):
    made = study()
    made.names.given["__main__:Loss"] = print
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        ja.InputError, match=r"^__main__:Loss: workers cannot import it; run pip install cloudpickle"
    ):
        worker.pickle_study(made)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda: ThreadPoolExecutor(1),
            "executor: its workers are threads of this process; use one whose workers",
        ),
        (
            lambda: ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")),
            "executor: it forks",
        ),
    ],
)
def test_threads_and_forks_are_refused_in_one_line(tmp_path, study, made, said):
    with made() as refused, pytest.raises(ja.InputError, match=f"^{said}"):
        in_folder(study(), tmp_path / "run", refused)
    assert not list(tmp_path.glob("run/runs/*"))


def test_dashboards_are_refused(tmp_path, study):
    with pytest.raises(ja.InputError, match="log, profile: these are of one process"):
        in_folder(study(), tmp_path / "run", Instantly(), log=["tensorboard"])


FAILED = Attempt(({"cell": 0, "seed": 1, "phase": "query", "step": 2, "reason": "NaN"},))


def jobs(*results, width=2):
    return Instantly({0: width}, *results)


def batches_of(executor):
    """Return the seeds of each submitted batch, and whether it is the last attempt."""
    calls = [pickle.loads(job.payload) for job in executor.jobs]
    return [
        ([seed for _, seed in task.runs], task.is_last)
        for call, _, task, *_ in calls
        if call is worker.compute
    ]


def test_a_batch_that_does_not_fit_in_memory_is_halved(tmp_path, study):
    workers = jobs(Attempt(is_too_large=True), Attempt(), Attempt())
    in_folder_of(tmp_path, study(seeds=2), workers)
    assert batches_of(workers) == [([0, 1], True), ([0], True), ([1], True)]


def in_folder_of(tmp_path, study, workers, **options):
    from jaxattn.lab.engine.progress import Reporter
    from jaxattn.lab.engine.run_study import run_study

    with Reporter(quiet=True) as reporter:
        return run_study(
            study, tmp_path / "run", command="test", reporter=reporter, executor=workers, **options
        )


@pytest.mark.parametrize(("results", "tries"), [([FAILED, Attempt()], 2), ([FAILED] * 3, 3)])
def test_a_failed_batch_is_tried_again(tmp_path, study, results, tries):
    workers = jobs(*results)
    in_folder_of(tmp_path, study(), workers, on_failure="retry")
    assert batches_of(workers) == [([0, 1], False), ([0, 1], False), ([0, 1], True)][:tries]


def test_failures_stop_the_run_if_asked_to(tmp_path, study):
    with pytest.raises(ja.RunError, match="seeds 0 to 1: NaN; the run was stopped"):
        in_folder_of(tmp_path, study(), jobs(FAILED), on_failure="stop")
    outcome = in_folder_of(tmp_path, study(), jobs(Attempt(reason="no memory")))
    assert [error["reason"] for error in outcome.errors] == ["no memory"]


def test_a_worker_that_ends_without_a_result_is_reported_in_one_line(tmp_path, study):
    workers = jobs(OSError("killed\nby the kernel"))
    with pytest.raises(ja.RunError, match=r"its worker ended without a result \(OSError: killed\); finished"):
        in_folder_of(tmp_path, study(), workers)


@pytest.mark.parametrize("error", [ja.InputError("data: no such file"), ja.RunError("disk full")])
def test_errors_of_workers_are_raised(tmp_path, study, error):
    with pytest.raises(type(error), match=str(error)):
        in_folder_of(tmp_path, study(), jobs(error))


def test_an_interrupted_driver_says_what_goes_on(tmp_path, study, monkeypatch):
    monkeypatch.setattr(executors, "STOP_S", 0.0)
    workers = jobs(Attempt(), None, width=1)

    def stop(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(executors.Pool, "show", stop)
    with pytest.raises(Interrupted, match="1 of 2 batches finished"):
        in_folder_of(tmp_path, study(), workers)


def test_workers_refuse_other_code_and_files(tmp_path, study):
    origin = worker.origin_of(study(), str(tmp_path), "test", {}, None)
    elsewhere = origin._replace(process=("elsewhere", 1))
    with pytest.raises(ja.InputError, match="has another version of jaxattn; install the same one"):
        worker.widths(elsewhere._replace(computing="0"), {0: 1}, None, 1, frozenset())
    assert worker.widths(elsewhere, {0: 2}, None, 2, frozenset()) == {0: 1}


def test_an_object_that_is_no_executor_is_refused_in_one_line(tmp_path, study):
    with pytest.raises(ja.InputError, match="executor: object has no method `submit`; use a Process"):
        in_folder(study(), tmp_path / "run", object())


def test_an_executor_that_loses_results_is_refused_in_one_line(tmp_path, study):
    class Forgetful(Instantly):
        def submit(self, job):
            future = Future()
            future.set_result(None)
            return future

    with pytest.raises(
        ja.RunError, match=r"its executor returned None in place of what the function returned"
    ):
        in_folder(study(chunk=2), tmp_path / "run", Forgetful())


def test_a_worker_reads_a_study_again_when_its_code_or_files_have_changed(tmp_path, study, monkeypatch):
    read = []
    monkeypatch.setattr(worker, "_LAST", {})
    monkeypatch.setattr(worker, "_read", lambda origin: read.append(origin.code))
    origin = worker.origin_of(study(), str(tmp_path), "", {"mine.py:f": "a"}, None)
    elsewhere = origin._replace(process=("elsewhere", 1))
    for code in ({"mine.py:f": "a"}, {"mine.py:f": "a"}, {"mine.py:f": "b"}):
        worker._prepare(elsewhere._replace(code=code))
    assert read == [{"mine.py:f": "a"}, {"mine.py:f": "b"}]


def test_each_worker_of_a_pool_gets_its_share_of_the_machine(monkeypatch):
    shares, gpus = [], []
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(devices, "use_all_cores", shares.append)
    monkeypatch.setattr(devices, "use_one_gpu", gpus.append)
    monkeypatch.setattr(worker, "_NUMBERS", {})
    with ProcessPoolExecutor(2, mp_context=SPAWN) as made:
        pool = executors.pool_of(made)
    assert pool.workers == 2
    pool.take_share()
    pool.take_share()
    assert (shares, gpus) == ([4, 4], [0])
    # The lock of another process is that of another file here.
    first = worker._NUMBERS.pop(pool)
    pool.take_share()
    assert gpus == [0, 1]
    second = worker._NUMBERS.pop(pool)
    with pytest.raises(ja.RunError, match="more than 2 workers"):
        pool.take_share()
    os.close(first[1])
    pool.take_share()
    assert gpus == [0, 1, 0]
    os.close(second[1])
    os.close(worker._NUMBERS[pool][1])
    assert executors.workers_of(Instantly()) == 1
    assert executors.pool_of(Instantly()) is None


def test_a_driver_that_holds_the_gpu_is_refused_in_one_line(tmp_path, study, monkeypatch):
    monkeypatch.setattr(backend, "platform", lambda: "gpu")
    with (
        ProcessPoolExecutor(2, mp_context=SPAWN) as made,
        pytest.raises(ja.InputError, match=r"holds the GPU that its workers need; call jax\.config\.update"),
    ):
        study().run(tmp_path, executor=made, quiet=True)


def test_runs_of_another_platform_are_finished_here(tmp_path, study, monkeypatch, capsys):
    """A login node without a GPU sees what workers on GPUs have stored, and a table says where each ran."""
    pretended = {"platform": "gpu", "kind": "NVIDIA H200", "count": 1}
    monkeypatch.setattr(devices, "describe_devices", lambda: pretended)
    study(seeds=1).run(tmp_path, quiet=True, report=False)
    monkeypatch.undo()
    wanted = study(seeds=2)
    assert "1 of 2 runs missing" in wanted.plan(tmp_path, quick=True).sentence
    results = wanted.run(tmp_path, quiet=True, report=False)
    assert results.finished
    assert "NVIDIA H200" in str(results.manifest["mixed"])
