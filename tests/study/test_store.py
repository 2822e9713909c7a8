"""What a results folder survives: kills at any moment, damage, a second launcher."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from jaxattn.errors import InputError, RunError
from jaxattn.study import execute, run, store, sweepfile
from jaxattn.study.progress import Reporter

SMALL = Path(__file__).with_name("small.toml")
KILLS = 20
# Saves after every step, so that most kills hit a checkpoint that is being written.
CHILD = """
import sys
from pathlib import Path
from jaxattn.study import execute, run, sweepfile
from jaxattn.study.progress import Reporter
execute.CHECKPOINT_EVERY_S = execute.BLOCK_S = 0.0
execute.CHECKPOINT_SHARE = float("inf")
timed = execute._Pace.timed
def telling(self, *arguments):
    result = timed(self, *arguments)
    print("step", flush=True)
    return result
execute._Pace.timed = telling
sweep = sweepfile.load(Path(sys.argv[1]), ["chunk=1", "phases.query.steps=60", "probes.per_decade=2"])
with Reporter(quiet=True) as reporter:
    run.run_sweep(sweep, Path(sys.argv[2]), command="test", reporter=reporter)
"""


class Lines(Reporter):
    """A reporter that keeps its notes."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def note(self, line):
        self.lines.append(line)


def go(directory, **changes):
    sweep = sweepfile.check(tomllib.loads(SMALL.read_text()) | changes)
    with Lines() as reporter:
        outcome = run.run_sweep(sweep, directory, command="test", reporter=reporter)
    return outcome, reporter.lines


def tables(directory):
    return [pd.read_parquet(directory / f"{name}.parquet") for name in ("records", "tokens")]


def assert_equal(one, other):
    for a, b in zip(tables(one), tables(other), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two seeds, one unit each."""
    directory = tmp_path_factory.mktemp("whole") / "small"
    go(directory, chunk=1)
    return directory


@pytest.fixture
def copy(whole, tmp_path):
    subprocess.run(["cp", "-r", whole, tmp_path / "small"], check=True)
    return tmp_path / "small"


def start(directory, cache):
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", CHILD, str(SMALL), str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


def test_a_run_killed_at_random_moments_ends_with_bit_identical_tables(tmp_path):
    with start(tmp_path / "straight", tmp_path / "cache") as process:
        process.communicate()
    assert process.returncode == 0
    moments = random.Random(0)
    killed = 0
    for _ in range(KILLS):
        with start(tmp_path / "killed", tmp_path / "cache") as process:
            for _ in range(moments.randint(1, 4)):
                process.stdout.readline()
            time.sleep(moments.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
    assert killed >= KILLS // 2
    with start(tmp_path / "killed", tmp_path / "cache") as process:
        process.communicate()
    assert process.returncode == 0
    assert_equal(tmp_path / "killed", tmp_path / "straight")


@pytest.mark.parametrize("table", ["records", "tokens"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_part_is_named_set_aside_and_computed_again(copy, whole, table, damage):
    path = copy / "parts" / f"cells-00000-00000-seeds-00001-00001.{table}.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-20] if damage == "truncated" else content)
    other = copy / "parts" / f"cells-00000-00000-seeds-00000-00000.{table}.parquet"
    before = other.stat().st_mtime_ns
    outcome, lines = go(copy, chunk=1)
    assert not outcome.already_finished
    assert any("cells-00000-00000-seeds-00001-00001" in line and table in line for line in lines)
    assert path.with_name(path.name + ".damaged").exists() == (damage != "missing")
    assert other.stat().st_mtime_ns == before
    assert_equal(copy, whole)


def test_a_damaged_mark_or_merged_table_is_mended(copy, whole):
    (copy / "parts" / "cells-00000-00000-seeds-00000-00000.json").write_text("{")
    assert not go(copy, chunk=1)[0].already_finished
    assert_equal(copy, whole)
    (copy / "records.parquet").write_bytes(b"PAR1")
    assert not go(copy, chunk=1)[0].already_finished
    assert_equal(copy, whole)
    assert go(copy, chunk=1)[0].already_finished


@pytest.mark.parametrize("victim", ["state", "flipped", "position", "table"])
def test_a_damaged_checkpoint_is_set_aside_and_its_unit_starts_anew(tmp_path, monkeypatch, victim):
    count = 0
    timed = execute._Pace.timed

    def stopping(self, *arguments):
        nonlocal count
        count += 1
        if count == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return timed(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(execute._Pace, "timed", stopping)
        with pytest.raises(execute.Interrupted):
            go(tmp_path / "small")
    (unit,) = (tmp_path / "small" / "checkpoints").iterdir()
    if victim == "table":
        (tmp_path / "small" / "parts" / f"{unit.name}.records.partial.parquet").write_bytes(b"PAR1")
    elif victim == "flipped":
        files = [path for path in unit.glob("*/state/**/*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    else:
        files = [path for path in unit.glob(f"*/{victim}/**/*") if path.is_file()]
        assert files
        for path in files:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    _, lines = go(tmp_path / "small")
    assert any(unit.name in line and "set aside" in line for line in lines)
    assert list((tmp_path / "small" / "damaged").iterdir())
    go(tmp_path / "straight")
    assert_equal(tmp_path / "small", tmp_path / "straight")


def test_a_unit_killed_before_its_mark_goes_on_from_its_last_checkpoint(tmp_path, monkeypatch):
    def killed(self, unit):
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "CHECKPOINT_EVERY_S", 0.0)
    monkeypatch.setattr(execute, "BLOCK_S", 0.0)
    monkeypatch.setattr(execute, "CHECKPOINT_SHARE", float("inf"))
    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "_mark", killed)
        patch.setattr(store.Store, "is_finished", lambda self, unit: False)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "small")
    restored = []
    restore = store.Store.restore
    monkeypatch.setattr(store.Store, "restore", lambda *given: restored.append(given[1]) or restore(*given))
    _, lines = go(tmp_path / "small")
    assert len(restored) == 1
    assert not any("anew" in line for line in lines)
    go(tmp_path / "straight")
    assert_equal(tmp_path / "small", tmp_path / "straight")
    (unit,) = (tmp_path / "small" / "checkpoints").iterdir()
    assert len([path for path in unit.iterdir() if path.name.isdigit()]) == 1


def test_a_folder_in_which_nothing_was_computed_takes_another_config(tmp_path, monkeypatch):
    data = tomllib.loads(SMALL.read_text())["data"]

    def stopped(*_):
        raise execute.Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(run, "execute", stopped)
        with pytest.raises(execute.Interrupted):
            go(tmp_path / "small", data=data | {"relevant": 4})
    assert (tmp_path / "small" / "manifest.json").exists()
    assert not go(tmp_path / "small")[0].already_finished
    with pytest.raises(InputError, match="holds results of another config"):
        go(tmp_path / "small", data=data | {"relevant": 6})


def test_a_second_launcher_stops_with_a_clear_line(tmp_path):
    folder = store.Store(tmp_path / "small")
    code = (
        "import sys; from pathlib import Path; from jaxattn.study.store import Store\n"
        "with Store(Path(sys.argv[1])).locked():\n    print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "small")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in\n"
        with pytest.raises(RunError, match=rf"small: process {process.pid} on .* is running there; wait"):
            go(tmp_path / "small")
        process.kill()
    # A lock dies with its holder.
    with folder.locked():
        pass
    assert not go(tmp_path / "small")[0].failures
    assert json.loads((tmp_path / "small" / "manifest.json").read_text())["status"] == "finished"
