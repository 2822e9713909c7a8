"""What a results folder survives: kills at any moment, damage, a second launcher."""

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
from jaxattn.storage import marks

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


def flip(path):
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FIRST, SECOND = (f"cells-00000-00000-seeds-{seed:05d}-{seed:05d}" for seed in (0, 1))


@pytest.mark.parametrize("table", ["records", "tokens"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_part_is_named_set_aside_and_computed_again(
    copy, two_batches, go, study, assert_same, table, damage
):
    (path,) = (copy / "parts").glob(f"{SECOND}.{table}.*.parquet")
    if damage == "flipped":
        flip(path)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    (other,) = (copy / "parts").glob(f"{FIRST}.{table}.*.parquet")
    before = other.stat().st_mtime_ns
    outcome, lines = go(copy, study(chunk=1))
    assert not outcome.already_finished
    (line,) = [line for line in lines if SECOND in line]
    assert line.startswith(f"{path}: ")
    aside = copy / "damaged" / SECOND
    assert f"set aside in {aside}, computing {SECOND} anew" in line
    assert (aside / path.name).exists() == (damage != "missing")
    assert other.stat().st_mtime_ns == before
    assert_same(copy, two_batches)


def test_a_damaged_mark_or_merged_table_is_mended(copy, two_batches, go, study, assert_same):
    (copy / "parts" / f"{FIRST}.json").write_text("{")
    assert not go(copy, study(chunk=1))[0].already_finished
    assert_same(copy, two_batches)
    flip(copy / "records.parquet")
    outcome, lines = go(copy, study(chunk=1))
    assert not outcome.already_finished
    assert any("records.parquet: damaged" in line for line in lines)
    assert_same(copy, two_batches)
    assert go(copy, study(chunk=1))[0].already_finished


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, stop, study):
    """A run that was stopped in its second phase, which tests must not write into."""
    return stop(tmp_path_factory.mktemp("stopped") / "small", study(), 5)


@pytest.mark.parametrize("victim", ["checkpoint", "mark", "records", "tokens"])
def test_a_damaged_checkpoint_is_set_aside_and_its_batch_starts_anew(
    stopped, small_run, tmp_path, go, study, assert_same, victim
):
    folder = shutil.copytree(stopped, tmp_path / "small")
    (batch,) = store.Store(folder).batches()
    if victim == "checkpoint":
        files = [path for path in (folder / "checkpoints" / batch).rglob("*") if path.is_file()]
        damaged = max(files, key=lambda path: path.stat().st_size)
    elif victim == "mark":
        damaged = marks.path(folder, batch)
    else:
        (damaged,) = (folder / "parts").glob(f"{batch}.{victim}.*.parquet")
    flip(damaged)
    _, lines = go(folder, study())
    assert any(line.startswith(f"{damaged}: damaged") and "set aside" in line for line in lines)
    assert list((folder / "damaged").iterdir())
    assert_same(folder, small_run)


def test_a_batch_killed_before_its_mark_goes_on_from_its_last_checkpoint(
    tmp_path, monkeypatch, go, study, every_step, small_run, assert_same
):
    write = marks.write

    def killed(directory, batch, mark):
        if mark.finished:
            raise KeyboardInterrupt
        write(directory, batch, mark)

    with monkeypatch.context() as patch:
        patch.setattr(marks, "write", killed)
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
    assert len(list(batch.iterdir())) == 1
    assert len(list((tmp_path / "small" / "parts").iterdir())) == 3


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
