"""Fixtures that run small studies and read their results."""

import os
import signal

import numpy as np
import pandas as pd
import pytest

from jaxattn.lab.engine.monitor import Interrupted, Intervals
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.run import run_study

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
            outcome = run_study(study, directory, command="test", reporter=reporter, **options)
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
    """Return a function that reads the tables of a folder, records and tokens, optionally sorted."""

    def tables(directory, ordered=False):
        found = [pd.read_parquet(directory / f"{name}.parquet") for name in ("records", "tokens")]
        if not ordered:
            return found
        return [
            table.sort_values([key for key in keys if key in table]).reset_index(drop=True)
            for table, keys in zip(found, (KEYS, TOKEN_KEYS), strict=True)
        ]

    return tables


@pytest.fixture(scope="session")
def assert_same(read):
    """Return a function that asserts that two folders have bitwise identical tables."""

    def compare(one, other):
        for mine, theirs in zip(read(one), read(other), strict=True):
            pd.testing.assert_frame_equal(mine, theirs, check_exact=True)

    return compare


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
        "data.vocab_size": [7, 40, 12],
        "phases.heavy.momentum": [0.0, 0.5],
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
    """Return a run of the exact flow to its limit, with more tokens than dimensions and with fewer."""
    axes = {"data.vocab_size": [12, 40], "phases.embed.step_size": [100.0, 50.0]}
    wanted = study("flow", axes=axes, seeds=2)
    folder = tmp_path_factory.mktemp("flows") / "together"
    assert not go(folder, wanted)[0].failures
    return folder, wanted
