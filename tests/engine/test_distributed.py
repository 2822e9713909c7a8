"""Processes of their own: hosts that share a sweep, jobs of a queue, dashboards."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import jax
import pandas as pd
import pytest

from jaxattn.engine import distributed, launch, loggers
from jaxattn.errors import InputError
from jaxattn.results.combine import combine
from jaxattn.results.load import load

SMALL = Path(__file__).parents[1] / "sweeps" / "small.toml"
KEYS = ["cell", "seed", "phase", "step", "metric"]


def start(*words):
    cache = jax.config.jax_compilation_cache_dir
    return subprocess.Popen(
        [sys.executable, "-m", "jaxattn.cli", *map(str, words)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def test_two_processes_share_a_sweep_and_print_one_table(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = ["run", SMALL, "--quiet", "--seeds", "4", "--set", "phases.query.steps=3", "--out"]
    both = [
        start(*words, tmp_path / "two", "--distributed", f"localhost:{port},2,{number}") for number in (0, 1)
    ]
    first, second = map(finish, both)
    finish(start(*words, tmp_path / "one", "--set", "chunk=2"))
    shards = combine([load(tmp_path / "two" / f"shard-{number}-of-2") for number in (1, 2)])
    one, other = (
        x.records.sort_values(KEYS).reset_index(drop=True) for x in (shards, load(tmp_path / "one"))
    )
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert "(n=2)" not in first
    assert "(n=2)" in second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localhost", "expected auto or HOST:PORT,N,I"),
        ("localhost:1,2", "expected auto or HOST:PORT,N,I"),
        ("localhost:1,2,2", "processes are numbered 0 to 1"),
    ],
)
def test_mistakes_in_distributed_are_named(text, message):
    with pytest.raises(InputError, match=message):
        distributed.join(text)


def test_a_queue_runs_the_shards(tmp_path):
    words = ["--executor", "local", "--wait", "--seeds", "2", "--set", "chunk=1", "--out", tmp_path / "jobs"]
    out = finish(start("launch", SMALL, "--shards", "2", *words))
    assert out.count("job ") == 2
    assert "test_accuracy" in out
    shards = combine([load(tmp_path / "jobs" / f"shard-{number}-of-2") for number in (1, 2)])
    assert sorted(shards.records["seed"].unique()) == [0, 1]


def test_a_job_that_is_preempted_is_sent_again():
    shard = launch.Shard(["run", "x.toml"])
    assert shard.checkpoint().function is shard


def test_a_queue_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"slurm does not take the jobs: .*; --executor local runs them"):
        launch.submit([["doctor"]], tmp_path, "slurm", 5, {})


def test_the_time_limit_is_given_in_one_place(tmp_path):
    with pytest.raises(InputError, match="--option timeout_min=5: give the time limit as --minutes"):
        launch.submit([["doctor"]], tmp_path, "local", 5, {"timeout_min": 5})


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


def test_dashboards_get_what_the_log_has(tmp_path):
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


def test_a_dashboard_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"pip install 'jaxattn\[tensorboard\]'"):
        loggers.writer("tensorboard", tmp_path, "small")
