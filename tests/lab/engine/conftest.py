"""Fixtures that run small studies and read their results."""

import os
import signal
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from jaxattn.lab.engine import attempt, run_study
from jaxattn.lab.engine.monitor import Interrupted, Intervals, RunMonitor
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results.read import read_results
from jaxattn.lab.storage import memo

KEYS = ["cell", "seed", "phase", "step", "metric"]
TOKEN_KEYS = ["cell", "seed", "phase", "id", "class"]


class Lines(Reporter):
    """Reporter that keeps its notes, and asks the run to stop after some calls to the device."""

    def __init__(self, stop_after=None):
        super().__init__(quiet=True)
        self.lines, self.calls, self.stop_after = [], 0, stop_after

    def note(self, line):
        self.lines.append(line)

    def warn(self, line):
        self.lines.append(line)

    def update(self, description, fraction=None, state="", remaining=None):
        self.calls += fraction is not None
        if self.calls == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="session")
def go():
    """Return a function that runs a study in a folder, and returns the outcome and the printed lines."""

    def start(directory, study, stop_after=None, **options):
        with Lines(stop_after) as reporter:
            outcome = run_study.run_study(study, directory, command="test", reporter=reporter, **options)
        return outcome, reporter.lines

    return start


@pytest.fixture(scope="session")
def stop(go):
    """Return a function that runs a study and stops it after some calls to the device."""

    def start(directory, study, after, **options):
        with pytest.raises(Interrupted):
            go(directory, study, stop_after=after, **options)
        return directory

    return start


@pytest.fixture(scope="session")
def every_step():
    """Return intervals that save after every step."""
    return Intervals(block_s=0.0, checkpoint_s=0.0, checkpoint_share=np.inf)


@pytest.fixture(scope="session")
def read():
    """Return a function that reads the wanted records and tokens of a folder, optionally sorted."""

    def tables(directory, ordered=False):
        _, *found = read_results(directory)
        if not ordered:
            return found
        return [
            table.sort_values([key for key in keys if key in table]).reset_index(drop=True)
            for table, keys in zip(found, (KEYS, TOKEN_KEYS), strict=True)
        ]

    return tables


@pytest.fixture(scope="session")
def finished():
    """Return a function that reads the records of the finished batches of a folder, all of them intact."""

    def records(directory):
        damaged = []
        found = memo.finished(directory, damaged.append)
        assert damaged == []
        return found

    return records


@pytest.fixture(scope="session")
def assert_same(read, finished):
    """Return a function that asserts that two folders have bitwise identical tables and final states.

    States are compared by the checksums of their arrays, for batches that both folders have.
    """

    def compare(one, other, ordered=False):
        for mine, theirs in zip(read(one, ordered), read(other, ordered), strict=True):
            pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
        both, others = finished(one), finished(other)
        for name in both.keys() & others.keys():
            assert both[name].checkpoint.arrays == others[name].checkpoint.arrays
            assert both[name].failures == others[name].failures

    return compare


class Folder(NamedTuple):
    """Finished and unfinished batches of a results folder."""

    finished: list[str]
    partial: list[str]
    others: list[str]


@pytest.fixture(scope="session")
def listed():
    """Return a function that lists the names of the batches in a folder, by their states."""

    def names(directory):
        found = Folder([], [], [])
        for name in sorted(path.name for path in (directory / memo.RUNS).iterdir()):
            kind = 0 if memo.KEY.fullmatch(name) else 1 if ".partial-" in name else 2
            found[kind].append(name)
        return found

    return names


@pytest.fixture(scope="session")
def contents():
    """Return a function that reads all files below a folder, with the times of their last changes."""

    def read(directory):
        files = (path for path in directory.rglob("*") if path.is_file())
        return {path.relative_to(directory): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    return read


@pytest.fixture(scope="session")
def flip():
    """Return a function that flips one bit in the middle of a file."""

    def change(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return change


@pytest.fixture(scope="session")
def dead():
    """Return the number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture(scope="session")
def abandon(dead):
    """Return a function that renames partial folders as if a process that was killed had left them.

    `process` is another process instead, such as one that is alive.
    """

    def rename(directory, process=None):
        found = []
        for path in sorted((directory / memo.RUNS).glob("*.partial-*")):
            host, _, token = path.name.partition(".partial-")[2].rsplit("-", 2)
            name = f"{path.name.partition('.')[0]}.partial-{host}-{process or dead}-{token[::-1]}"
            (path / memo.ERROR_FILE).unlink(missing_ok=True)
            found.append(path.rename(path.with_name(name)))
        return found

    return rename


@pytest.fixture
def counted(monkeypatch):
    """Collect the batches that are computed, and the steps that they take: (runs, steps)."""
    taken = []
    run_batch, stepping = attempt.run_batch, RunMonitor.stepping

    def begin(batch, *arguments, **options):
        taken.append([[(cell.number, seed) for cell, seed in batch.runs], 0])
        return run_batch(batch, *arguments, **options)

    def count(self, steps):
        taken[-1][1] += steps
        return stepping(self, steps)

    monkeypatch.setattr(attempt, "run_batch", begin)
    monkeypatch.setattr(RunMonitor, "stepping", count)
    return taken


@pytest.fixture(scope="session")
def small_run(go, study, tmp_path_factory):
    """Return a finished run of the small study, which tests must not change."""
    directory = tmp_path_factory.mktemp("finished") / "small"
    assert not go(directory, study())[0].failures
    return directory


@pytest.fixture(scope="session")
def flow_run(go, study, tmp_path_factory):
    """Return a finished run of the study with a flow, which tests must not change."""
    directory = tmp_path_factory.mktemp("finished") / "flow"
    assert not go(directory, study("flow"))[0].failures
    return directory


@pytest.fixture(scope="session")
def two_batches(go, study, tmp_path_factory):
    """Return a finished run of the small study with one batch for each of two seeds."""
    directory = tmp_path_factory.mktemp("finished") / "small"
    assert not go(directory, study(chunk=1))[0].failures
    return directory


INDEPENDENT = {
    "kind": "independent",
    "vocab_size": 12,
    "relevant": 4,
    "length": 5,
    "sequences": 16,
    "test_sequences": 8,
}
HEAVY = {"name": "heavy", "kind": "descent", "train": ["E", "p"], "optimizer": "sgd", "step_size": 0.1}
QUERY = {"name": "query", "kind": "descent", "train": ["p"], "optimizer": "polyak", "step_size": 0.5}
PHASES = [
    {"name": "embed", "kind": "one_step", "step_size": 20.0},
    HEAVY | {"steps": 3, "schedule": "cosine"},
    QUERY | {"steps": 4},
    {"name": "log", "kind": "log_descent", "method": "normalized", "step_size": 0.2, "steps": 3},
]


@pytest.fixture(scope="session")
def runs(tmp_path_factory, go, study):
    """Return a run of all kinds of descent over all kinds of numbers, vmapped in one program."""
    axes = {
        "data.vocab_size": [7, 14, 12],
        "phases.heavy.momentum": [0.2, 0.5],
    }
    zipped = {
        "data.max_posterior_difference": [0.9, 0.5],
        "phases.embed.step_size": [20.0, 5.0],
        "phases.heavy.step_size": [0.1, 0.3],
        "phases.query.step_size": [0.5, 0.2],
        "phases.log.step_size": [0.2, 0.1],
    }
    wanted = study(dtype="float64", data=INDEPENDENT, phases=PHASES, axes=axes, zip=zipped, seeds=2)
    folder = tmp_path_factory.mktemp("runs") / "together"
    assert not go(folder, wanted)[0].failures
    return folder, wanted


@pytest.fixture(scope="session")
def flows(tmp_path_factory, go, study):
    """Return a run of the exact flow to its limit, with more tokens than dimensions and with fewer.

    It has a program for each padded vocabulary.
    """
    axes = {"data.vocab_size": [12, 40], "phases.embed.step_size": [100.0, 50.0]}
    wanted = study("flow", axes=axes, seeds=2)
    folder = tmp_path_factory.mktemp("flows") / "together"
    assert not go(folder, wanted)[0].failures
    return folder, wanted
