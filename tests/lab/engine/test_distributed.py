"""Studies on several processes: shared folders, job queues, dashboards."""

import os
import shutil
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import jax
import pandas as pd
import pytest

from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.cli import studies
from jaxattn.lab.engine import distributed, loggers
from jaxattn.lab.engine.store import Store
from jaxattn.lab.results.combine import combine
from jaxattn.lab.results.load import load
from jaxattn.lab.storage import manifest
from jaxattn.lab.storage.folder import ResultsFolder

SMALL = Path(__file__).parents[2] / "sweeps" / "small.toml"
KEYS = ["cell", "seed", "phase", "step", "metric"]


def start(*words):
    cache = jax.config.jax_compilation_cache_dir
    return subprocess.Popen(
        [sys.executable, "-m", "jaxattn", *map(str, words)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


STUDY = ["run", SMALL, "--seeds", "4", "--set", "phases.query.steps=3"]


@pytest.mark.more
def test_job_returns_its_status_and_prints_errors_once(tmp_path, capfd):
    assert studies.Shard(["run", str(tmp_path / "missing.toml")])() == 2
    error = capfd.readouterr().err
    assert "missing.toml" in error
    assert error.count("\n") == 1


def start_all(folder, *options, count=2):
    every = range(count)
    return [start(*STUDY, *options, "--out", folder, "--distributed", f"{count},{one}") for one in every]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the folder of an undisturbed run of two processes, and the output of both."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, [finish(process) for process in start_all(folder, "--quiet")]


def records(folder, count=2):
    shards = combine([load(folder / f"shard-{number + 1}-of-{count}") for number in range(count)])
    return shards.records.sort_values(KEYS).reset_index(drop=True)


@pytest.mark.slow
def test_two_processes_share_a_sweep_and_print_one_table(undisturbed, tmp_path):
    folder, (first, second) = undisturbed
    finish(start(*STUDY, "--quiet", "--out", tmp_path, "--set", "chunk=2"))
    one = load(tmp_path).records.sort_values(KEYS).reset_index(drop=True)
    pd.testing.assert_frame_equal(records(folder), one, check_exact=True)
    assert "(n=2)" not in first
    assert "(n=2)" in second


@pytest.mark.slow
def test_four_processes_match_a_single_process_bitwise_in_float64(tmp_path):
    """Each process has one core, and vmaps as many runs as the single process."""
    options = ["--quiet", "--set", "dtype=float64", "--set", "chunk=1"]
    printed = [finish(process) for process in start_all(tmp_path / "four", *options, count=4)]
    finish(start(*STUDY, *options, "--out", tmp_path / "one"))
    one = load(tmp_path / "one").records.sort_values(KEYS).reset_index(drop=True)
    pd.testing.assert_frame_equal(records(tmp_path / "four", 4), one, check_exact=True)
    assert ["(n=1)" in text for text in printed] == [False, True, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_killed_process_resumes_and_does_not_stop_the_other_processes(undisturbed, tmp_path, killed):
    both = start_all(tmp_path, "--distributed-timeout", "2")
    shard = tmp_path / f"shard-{killed + 1}-of-2"
    while not (shard / "metrics.jsonl").exists() and both[killed].poll() is None:
        time.sleep(0.01)
    both[killed].kill()
    both[killed].communicate()
    _, error = both[1 - killed].communicate(timeout=600)
    if not (shard / "records.parquet").exists():
        assert both[1 - killed].returncode == 1
        last = error.splitlines()[-1]
        assert last.startswith(
            f"jaxattn: {shard}: not finished, and no process has worked on it for 2 s; run the"
        )
        assert "Traceback" not in error
    for process in start_all(tmp_path, "--quiet"):
        finish(process)
    pd.testing.assert_frame_equal(records(tmp_path), records(undisturbed[0]), check_exact=True)


@pytest.fixture(scope="module")
def shards(go, study, tmp_path_factory):
    """Return two finished shards of a study."""
    folder = tmp_path_factory.mktemp("shards")
    for number in (1, 2):
        go(folder / f"shard-{number}-of-2", study(), shard=(number, 2))
    return folder


class Clock:
    """Clock that advances in `sleep`, with events at given times."""

    def __init__(self):
        self.now, self.looks, self.meanwhile = 1000.0, 0, lambda look: None

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now, self.looks = self.now + seconds, self.looks + 1
        self.meanwhile(self.looks)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(distributed, "time", made)
    return made


@pytest.fixture
def wait(clock, study):
    notes = []

    def until(folder, limit=10.0, **changes):
        return distributed.wait(study(**changes), folder, 2, limit, notes.append), notes

    return until


@pytest.mark.more
def test_wait_returns_the_folders_of_finished_shards(shards, wait):
    assert wait(shards) == ([shards / "shard-1-of-2", shards / "shard-2-of-2"], [])


def test_wait_continues_while_a_shard_is_running(shards, wait, clock, tmp_path):
    folder = shutil.copytree(shards, tmp_path / "copy")
    shard = folder / "shard-2-of-2"
    store = Store(shard)
    finished = manifest.read_manifest(shard)
    store.write_manifest(finished | {"status": "running"})
    with pytest.raises(RunError, match="shard-2-of-2: not finished, and no process has worked on it for 10"):
        wait(folder)
    assert clock.now == 1000.0 + 10.0 + ResultsFolder.look_s

    with ExitStack() as work:
        work.enter_context(store.locked())

        def finish(look):
            if look == 100:  # This is long after the limit.
                store.write_manifest(finished)
                work.close()

        clock.looks, clock.meanwhile = 0, finish
        found, notes = wait(folder)
    assert clock.looks == 100
    assert found[1] == shard
    assert notes[-1] == f"{shard}: waiting for this shard to finish"


def test_shards_with_fewer_seeds_or_a_different_config_are_rejected(shards, wait):
    with pytest.raises(RunError, match=r"shard-[12]-of-2: not finished"):
        wait(shards, seeds=3)
    with pytest.raises(InputError, match=r"a different config \(model.dim: 16 -> 8\)"):
        wait(shards, model={"kind": "one_layer", "dim": 8})


def test_shards_with_different_batches_raise(shards, wait, monkeypatch):
    existing = Store.existing

    def other_width(self, *arguments):
        return existing(self, *arguments) | {"widths": [int(self.directory.name[6])]}

    monkeypatch.setattr(Store, "existing", other_width)
    with pytest.raises(
        RunError, match="the shards use different batch sizes, because the hosts differ in memory"
    ):
        wait(shards)


@pytest.mark.parametrize(("text", "shard"), [("2,0", (1, 2)), ("host:9876,3,2", (3, 3)), ("1,0", (1, 1))])
def test_process_index_determines_the_shard(text, shard):
    assert distributed.read_process(text) == shard


SLURM = {"SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
MPI = {
    f"OMPI_COMM_WORLD_{name}": text for name, text in {"SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}.items()
}


@pytest.fixture
def launched(monkeypatch):
    """Return a function that sets the variables of a launcher and returns the JAX settings that change."""
    for name in (*SLURM, *MPI):
        monkeypatch.delenv(name, raising=False)
    updated = {}
    monkeypatch.setattr(distributed.jax.config, "update", updated.__setitem__)

    def launch(variables):
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        return updated

    return launch


@pytest.mark.parametrize(
    ("variables", "shard", "gpu"), [(SLURM, (3, 4), "0"), (MPI, (6, 8), "1"), (SLURM | MPI, (6, 8), "1")]
)
def test_launcher_variables_determine_the_process(launched, variables, shard, gpu):
    updated = launched(variables)
    assert distributed.read_process("auto") == shard
    assert updated == {"jax_cuda_visible_devices": gpu, "jax_rocm_visible_devices": gpu}


@pytest.mark.parametrize("missing", SLURM)
def test_distributed_auto_without_a_launcher_raises(launched, missing):
    updated = launched({name: text for name, text in SLURM.items() if name != missing})
    with pytest.raises(
        InputError,
        match=r"--distributed auto: no .* of Slurm .* or Open MPI .* are set; pass --distributed N,I instead",
    ):
        distributed.read_process("auto")
    assert updated == {}


def test_non_numeric_launcher_variables_raise(launched):
    launched(SLURM | {"SLURM_PROCID": "two"})
    with pytest.raises(InputError, match="SLURM_PROCID=two, SLURM_LOCALID=0; pass --distributed N,I"):
        distributed.read_process("auto")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost", "expected auto, or N,I"),
        ("localhost:1,2", "expected auto, or N,I"),
        ("a,b,2,0", "expected auto, or N,I"),
        ("localhost:1,2,2", "the index must be between 0 and 1"),
    ],
)
def test_invalid_distributed_option_raises(text, message):
    with pytest.raises(InputError, match=message):
        distributed.read_process(text)


@pytest.mark.slow
def test_submitit_runs_the_shards(tmp_path):
    words = ["--executor", "local", "--wait", "--seeds", "2", "--set", "chunk=1", "--out", tmp_path / "jobs"]
    out = finish(start("launch", SMALL, "--shards", "2", *words))
    assert out.count("job ") == 2
    assert "test_accuracy" in out
    shards = combine([load(tmp_path / "jobs" / f"shard-{number}-of-2") for number in (1, 2)])
    assert sorted(shards.records["seed"].unique()) == [0, 1]


def test_preempted_job_is_requeued():
    shard = studies.Shard(["run", "x.toml"])
    assert shard.checkpoint().function is shard


def test_missing_slurm_raises_a_one_line_error(tmp_path):
    with pytest.raises(InputError, match=r"cannot be submitted to slurm: .*; use --executor local to run"):
        studies.submit([["doctor"]], tmp_path, "slurm", 5, {})


def test_time_limit_passed_as_a_submitit_option_raises(tmp_path):
    with pytest.raises(InputError, match="--option timeout_min=5: not supported; use --minutes"):
        studies.submit([["doctor"]], tmp_path, "local", 5, {"timeout_min": 5})


def events(path):
    """Read a TensorBoard file: records of length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, position = path.read_bytes(), 0
    while position < len(data):
        (length,) = struct.unpack("<Q", data[position : position + 8])
        event = Event()
        event.ParseFromString(data[position + 12 : position + 12 + length])
        yield event
        position += length + 16


@pytest.mark.slow
def test_dashboard_values_match_the_records(tmp_path):
    finish(start("run", SMALL, "--quiet", "--out", tmp_path, "--profile", "--log", "tensorboard", "wandb"))
    (board,) = (tmp_path / "tensorboard").iterdir()
    written = {
        (value.tag, event.step): value.simple_value
        for event in events(board)
        for value in event.summary.value
    }
    records = load(tmp_path).records
    last = records[(records.phase == "query") & (records.metric == "loss") & (records.step == 20)]
    tag = "cells-00000-00000-seeds-00000-00001/query/loss"
    assert written[tag, 20] == pytest.approx(last["value"].median(), rel=1e-6)
    (offline,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert offline.stat().st_size > 1000
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_missing_dashboard_package_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"pip install 'jaxattn\[tensorboard\]'"):
        loggers.open_dashboard("tensorboard", tmp_path, "small")
