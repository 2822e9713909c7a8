"""What a results folder survives: kills at any moment, damage, a second launcher."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from jaxattn.engine import run, store
from jaxattn.engine.execute import Interrupted
from jaxattn.errors import InputError, RunError

SMALL = Path(__file__).parents[1] / "sweeps" / "small.toml"
# Saves after every step, so that most kills hit a checkpoint that is being written.
CHILD = """
import sys
from pathlib import Path
from jaxattn import Study
from jaxattn.engine.execute import Clock
from jaxattn.engine.progress import Reporter
from jaxattn.engine.run import run
class Telling(Reporter):
    def update(self, *_):
        print("step", flush=True)
study = Study.read(sys.argv[1], ["chunk=1", "phases.query.steps=60", "probes.per_decade=2"])
with Telling(quiet=True) as reporter:
    run(study, Path(sys.argv[2]), command="test", reporter=reporter, clock=Clock(0.0, 0.0, float("inf")))
"""


@pytest.fixture
def copy(two_batches, tmp_path):
    return shutil.copytree(two_batches, tmp_path / "small", copy_function=shutil.copy2)


def start(directory, cache):
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", CHILD, str(SMALL), str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_with_bit_identical_tables(tmp_path, assert_same, kills):
    cache = jax.config.jax_compilation_cache_dir
    with start(tmp_path / "straight", cache) as process:
        process.communicate()
    assert process.returncode == 0
    moments = random.Random(0)
    killed = 0
    for _ in range(kills):
        with start(tmp_path / "killed", cache) as process:
            for _ in range(moments.randint(1, 4)):
                process.stdout.readline()
            time.sleep(moments.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
    assert killed >= kills // 2
    with start(tmp_path / "killed", cache) as process:
        process.communicate()
    assert process.returncode == 0
    assert_same(tmp_path / "killed", tmp_path / "straight")


@pytest.mark.parametrize("table", ["records", "tokens"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_part_is_named_set_aside_and_computed_again(
    copy, two_batches, go, study, assert_same, table, damage
):
    path = copy / "parts" / f"cells-00000-00000-seeds-00001-00001.{table}.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-20] if damage == "truncated" else content)
    other = copy / "parts" / f"cells-00000-00000-seeds-00000-00000.{table}.parquet"
    before = other.stat().st_mtime_ns
    outcome, lines = go(copy, study(chunk=1))
    assert not outcome.already_finished
    assert any("cells-00000-00000-seeds-00001-00001" in line and table in line for line in lines)
    assert path.with_name(path.name + ".damaged").exists() == (damage != "missing")
    assert other.stat().st_mtime_ns == before
    assert_same(copy, two_batches)


def test_a_damaged_mark_or_merged_table_is_mended(copy, two_batches, go, study, assert_same):
    (copy / "parts" / "cells-00000-00000-seeds-00000-00000.json").write_text("{")
    assert not go(copy, study(chunk=1))[0].already_finished
    assert_same(copy, two_batches)
    (copy / "records.parquet").write_bytes(b"PAR1")
    assert not go(copy, study(chunk=1))[0].already_finished
    assert_same(copy, two_batches)
    assert go(copy, study(chunk=1))[0].already_finished


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, stop, study):
    """A run that was stopped in its second phase, which tests must not write into."""
    return stop(tmp_path_factory.mktemp("stopped") / "small", study(), 5)


@pytest.mark.parametrize("victim", ["state", "flipped", "position", "table"])
def test_a_damaged_checkpoint_is_set_aside_and_its_batch_starts_anew(
    stopped, small_run, tmp_path, go, study, assert_same, victim
):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (batch,) = (folder / "checkpoints").iterdir()
    if victim == "table":
        (folder / "parts" / f"{batch.name}.records.partial.parquet").write_bytes(b"PAR1")
    elif victim == "flipped":
        files = [path for path in batch.glob("*/state/**/*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    else:
        files = [path for path in batch.glob(f"*/{victim}/**/*") if path.is_file()]
        assert files
        for path in files:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, lines = go(folder, study())
    assert any(batch.name in line and "set aside" in line for line in lines)
    assert list((folder / "damaged").iterdir())
    assert_same(folder, small_run)


def test_a_batch_killed_before_its_mark_goes_on_from_its_last_checkpoint(
    tmp_path, monkeypatch, go, study, every_step, small_run, assert_same
):
    def killed(self, batch):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "_mark", killed)
        patch.setattr(store.Store, "is_finished", lambda self, batch: False)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "small", study(), clock=every_step)
    restored = []
    restore = store.Store.restore
    monkeypatch.setattr(store.Store, "restore", lambda *given: restored.append(given[1]) or restore(*given))
    _, lines = go(tmp_path / "small", study())
    assert len(restored) == 1
    assert not any("anew" in line for line in lines)
    assert_same(tmp_path / "small", small_run)
    (batch,) = (tmp_path / "small" / "checkpoints").iterdir()
    assert len([path for path in batch.iterdir() if path.name.isdigit()]) == 1


def test_a_folder_in_which_nothing_was_computed_takes_another_config(
    tmp_path, monkeypatch, go, study, tables
):
    data = tables()["data"]

    def stopped(*_):
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(run, "execute", stopped)
        with pytest.raises(Interrupted):
            go(tmp_path / "small", study(data=data | {"relevant": 4}))
    assert (tmp_path / "small" / "manifest.json").exists()
    assert not go(tmp_path / "small", study())[0].already_finished
    with pytest.raises(InputError, match="holds results of another config"):
        go(tmp_path / "small", study(data=data | {"relevant": 6}))


def test_a_second_launcher_stops_with_a_clear_line(tmp_path, go, study):
    folder = store.Store(tmp_path / "small")
    code = (
        "import sys; from pathlib import Path; from jaxattn.engine.store import Store\n"
        "with Store(Path(sys.argv[1])).locked():\n    print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "small")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in\n"
        with pytest.raises(RunError, match=rf"small: process {process.pid} on .* is running there; wait"):
            go(tmp_path / "small", study())
        process.kill()
    # A lock dies with its holder.
    with folder.locked():
        pass
    assert not go(tmp_path / "small", study())[0].failures
    assert json.loads((tmp_path / "small" / "manifest.json").read_text())["status"] == "finished"


def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(store.fcntl, "flock", no_locks)
    notes = []
    folder = store.Store(tmp_path / "small", notes.append)
    with folder.locked():
        folder.log({"x": 1})
    assert notes == [
        f"{tmp_path / 'small'}: this file system has no locks (No locks available); start no second run there"
    ]
    assert not folder.is_locked()
