"""Attacks on folders in a bucket: kills, failed requests and races, compared with an undisturbed run.

The server is moto's, on this machine. Requests fail during a study of two batches. Kills and races use the
same results folder with arithmetic steps, since a study takes seconds to compile: two batches, saved after
every step. A killed run resumes with the same command, at times on another machine, which is a process
without local copies. After every attack all commit records of the bucket are compared with the objects that
they refer to.
"""

import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, get_args
from unittest import mock

import damages
import kills
import numpy as np
import obstore.store  # noqa: F401  slow to import, too
import pandas as pd
from s3_server import FAULTS, Server

import jaxattn as ja
from jaxattn.core.errors import InputError, RunError
from jaxattn.lab.engine import run as engine
from jaxattn.lab.engine.manifest import new_manifest
from jaxattn.lab.engine.monitor import Intervals
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.store import Store
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import batch_state, checkpoints, lock
from jaxattn.lab.storage.folder import Kind, results_folder

# Imported once for all processes, because it is slow to import.
checkpoints.prepare()
# Locks are renewed and taken over faster than for users, who wait a minute.
WHOLE = get_args(Kind)
TIMES = {"BEAT_S": 0.2, "GONE_S": 1.5, "LOOK_S": 0.1}
# Fraction of attacks of each kind.
SHARES = {"kill": 100 / 170, "request": 50 / 170, "race": 20 / 170}
ENDING = ("denied", "expired")
STEPS = 12
DESCRIBED = "JAXATTN_TEST_STUDY"


class Scene(NamedTuple):
    """What attacks share: the server, a folder, the result of an undisturbed run, and random choices."""

    server: Server
    root: Path
    expected: dict[bool, Any]
    drawn: random.Random
    outcomes: Counter[str]

    def place(self, number: int, kind: str) -> str:
        """Make a bucket and return the address of a folder in it."""
        self.server.make_bucket(name := f"{kind}-{number}")
        return f"s3://{name}/results/small"

    def check(self, place: str, ended: bool, study: bool = False) -> None:
        """Check all objects that commit records refer to, and the tables and arrays of a finished run."""
        with mock.patch.dict(os.environ, JAXATTN_CACHE=str(self.root / "reader")):
            _check_marks(self.server.objects(place.split("/")[2]))
            if ended:
                assert verify(results_folder(place).fetch(*WHOLE)) == []
                tables, arrays = _end(Path(place))
                assert arrays == self.expected[study][1]
                for mine, theirs in zip(tables, self.expected[study][0], strict=True):
                    pd.testing.assert_frame_equal(mine, theirs, check_exact=True)


def _check_marks(there: dict[str, bytes]) -> None:
    """Compare the objects that commit records refer to with their checksums, without the package's code."""
    for path, content in there.items():
        folder, _, name = path.rpartition("/parts/")
        if not (folder and name.endswith(".json")):
            continue
        mark, batch = json.loads(content), name.removesuffix(".json")
        for table, sha256 in mark["tables"].items():
            held = there[f"{folder}/parts/{batch}.{table}.{sha256[:16]}.parquet"]
            assert hashlib.sha256(held).hexdigest() == sha256
        saved = mark["checkpoint"]
        for file, (size, sha256) in saved["files"].items():
            held = there[f"{folder}/checkpoints/{batch}/{saved['number']}/{file}"]
            assert len(held) == size
            assert sha256 in (None, hashlib.sha256(held).hexdigest())


def _end(place: Path) -> tuple[tuple[pd.DataFrame, pd.DataFrame], list[dict[str, int]]]:
    """Return the tables of a finished run, and the checksums of all arrays of its last checkpoints."""
    results = ja.load(place)
    assert results.finished
    marks = [batch_state.read_state(results.directory, x) for x in batch_state.batches(results.directory)]
    return (results.records, results.tokens), [mark.checkpoint.arrays for mark in marks if mark]


def attack(count: int, seed: int) -> dict[str, int]:
    """Attack runs into a bucket `count` times: kills, failing requests and races.

    Returns:
        Number of times of each outcome.

    Raises:
        AssertionError: a commit record refers to a missing object, tables differ, or a process raised.
    """
    with tempfile.TemporaryDirectory() as name, kills._keeping_programs(Path(name)):
        kills.FRESH.set_forkserver_preload(["buckets"])
        server, root = Server(), Path(name)
        with server.used(), mock.patch.multiple(lock, **TIMES):
            expected, outcomes = {}, Counter[str]()
            for study, runs in ((False, _arithmetic), (True, _study)):
                runs(folder := root / f"undisturbed-{study}", Reporter(quiet=True))
                expected[study] = _end(folder)
            for kind, share in SHARES.items():
                scene = Scene(server, root, expected, random.Random(f"{seed} {kind}"), outcomes)
                KINDS[kind](scene, max(1, round(share * count)))
        server.close()
    return dict(sorted(outcomes.items()))


def _kills(scene: Scene, count: int) -> None:
    """Kill runs at random moments, mostly during uploads; resume here or on another machine."""
    killed, run, host = 0, 0, 0
    place = scene.place(run, "kill")
    while True:
        last = killed >= count
        process = _Process(scene, place, host)
        was = process.kill_after(scene.drawn.randint(0, 8), scene.drawn.uniform(0, 0.2), last)
        scene.check(place, ended=not was)
        _tell(scene, f"kill: {was or 'ended like an undisturbed run'}")
        killed += bool(was)
        if was and scene.drawn.random() < 0.5:
            host += 1
            scene.outcomes["kill: resumed on another machine, after the lock was taken over"] += 1
        elif was:
            scene.outcomes["kill: resumed on the same machine, at once"] += 1
        if not was:
            run, host = run + 1, host + 1
            if last:
                return
            place = scene.place(run, "kill")


def _requests(scene: Scene, count: int) -> None:
    """Let some requests fail: the run repeats them, or ends with one line."""
    number, struck = 0, 0
    while struck < count:
        number += 1
        place, fault = scene.place(number, "request"), scene.drawn.choice(FAULTS + ENDING)
        first, length = scene.drawn.randint(1, 120), scene.drawn.randint(1, 4)
        seen = 0

        def fail(method: str, path: str, fault: str = fault, first: int = first, length: int = length) -> str:
            nonlocal seen
            seen += 1
            end = float("inf") if fault in ENDING else first + length
            return fault if first <= seen < end else ""

        scene.server.fault = fail
        with mock.patch.dict(os.environ, JAXATTN_CACHE=str(scene.root / f"requests-{number}")):
            said = _run_here(place)
            scene.server.fault = lambda method, path: ""
            # At the end only the lock is released; if this fails, nothing is lost.
            assert said or fault not in ENDING or seen < first + 3
            if said:
                assert fault in ENDING, said
                assert "\n" not in said, said
                assert "access denied; use" in said or "have expired; renew" in said, said
                scene.check(place, ended=False, study=True)
                assert not _run_here(place)
        scene.check(place, ended=True, study=True)
        if seen < first:
            continue  # The run had ended before.
        struck += 1
        shown = "one line, and fixed by the same command" if said else "ended like an undisturbed run"
        _tell(scene, f"request: {fault}: {shown}")


def _run_here(place: str) -> str:
    try:
        _study(Path(place), Reporter(quiet=True))
    except (InputError, RunError) as error:
        return str(error)
    return ""


def _races(scene: Scene, count: int) -> None:
    """Start two runs at once; in every other race the first one is suspended until it counts as gone."""
    for number in range(count):
        place, sleeps = scene.place(number, "race"), number % 2 == 1
        one, other = _Process(scene, place, f"race-{number}-a"), None
        if not sleeps:
            other = _Process(scene, place, f"race-{number}-b")
        else:
            one.until(scene.drawn.randint(2, 20))
            os.kill(one.process.pid, signal.SIGSTOP)
            other = _Process(scene, place, f"race-{number}-b")
            other.until(scene.drawn.randint(1, 12))
            os.kill(one.process.pid, signal.SIGCONT)
        said = sorted(filter(None, (one.end(), other.end())))
        for line in said:
            assert any(x in line for x in ("in use by", "taken over by", "was replaced by another")), line
        # On a busy machine both runs may lose the lock in turn; then a third one resumes.
        if len(said) == 2:
            assert not _Process(scene, place, f"race-{number}-c").end()
        scene.check(place, ended=True)
        who = "the first was suspended, the second took over" if sleeps else "two at once"
        told = "no error: one had ended" if not said else f"{len(said)} ended with one line"
        _tell(scene, f"race: {who}: {told}")


def _tell(scene: Scene, outcome: str) -> None:
    scene.outcomes[outcome] += 1
    print(f"{sum(scene.outcomes.values())}: {outcome}", file=sys.stderr, flush=True)


KINDS: dict[str, Callable[[Scene, int], None]] = {"kill": _kills, "request": _requests, "race": _races}


class _Process:
    """Run in a separate process, on a host with a separate folder."""

    def __init__(self, scene: Scene, place: str, host: object) -> None:
        self.here, there = kills.FRESH.Pipe(duplex=False)
        self.said = scene.root / f"said-{time.monotonic_ns()}"
        env = scene.server.env | {"JAXATTN_CACHE": str(scene.root / f"host-{host}")}
        env[DESCRIBED] = json.dumps(_described())
        self.process = kills.FRESH.Process(target=_in_child, args=(place, env, self.said, there))
        self.process.start()
        there.close()
        self.line, self.ended = "", False

    def until(self, steps: int) -> int:
        """Wait for some steps or the end of the process, and return the number of steps."""
        for seen in range(steps):
            try:
                word = self.here.recv()
            except EOFError:
                self.ended = True
                return seen
            if word != "step":
                self.line, self.ended = word, True
                return seen
        return steps

    def kill_after(self, steps: int, seconds: float, never: bool) -> str:
        seen = self.until(10**9 if never else steps)
        if not self.ended:
            time.sleep(seconds)
            self.process.kill()
        self.process.join()
        self._check()
        if self.process.exitcode == -signal.SIGKILL:
            return "killed before its first step" if seen < 1 else "killed before its end"
        assert not self.line, self.line
        return ""

    def end(self) -> str:
        """Wait for the end of the process, and return the line of its error."""
        if not self.ended:
            self.until(10**9)
        self.process.join()
        self._check()
        assert self.process.exitcode == 0, self.said.read_text()
        return self.line

    def _check(self) -> None:
        text = self.said.read_text(errors="replace") if self.said.exists() else ""
        assert "Traceback" not in text, text


def _in_child(place: str, env: dict[str, str], said: Path, told: Connection) -> None:
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 2)
    os.environ.update(env)
    for name, seconds in TIMES.items():
        setattr(lock, name, seconds)
    try:
        with kills.Telling(told) as reporter:
            _arithmetic(Path(place), reporter)
        told.send("")
    except (InputError, RunError) as error:
        told.send(str(error))


@cache
def _described() -> dict[str, Any]:
    """Return the manifest of a study, computed once for all processes."""
    if DESCRIBED in os.environ:
        return json.loads(os.environ[DESCRIBED])
    return json.loads(json.dumps(new_manifest(ja.Study.read(damages.SMALL), "test")))


def _arithmetic(place: Path, reporter: Reporter) -> None:
    """Run two batches of arithmetic steps, and save after every step."""
    described, store = _described(), Store(place, reporter.warn)
    cell = described["cells"][0]
    batches = [f"cells-00000-00000-seeds-{seed:05d}-{seed:05d}" for seed in described["seeds"]]
    with store.locked():
        known = store.join(described)
        known["batches"] = [
            {"name": name, "cells": [0], "seeds": [seed]} for seed, name in enumerate(batches)
        ]
        todo = [x for x in enumerate(batches) if not store.is_complete(x[1])]
        if not todo and known["status"] == "finished" and store.is_merged(known):
            return
        store.write_manifest(known | {"status": "running"})
        for seed, name in todo:
            saved, tables = store.resume(name)
            x = np.full(300, seed + 1)
            arrays = store.restore(name, saved, {"query": {"p": x, "q": x}}) if saved else None
            x = arrays["query"]["p"] if arrays else x
            for step in range(saved.step if saved else 0, STEPS):
                x = x * 48_271 % (2**31 - 1)
                row = {"cell": 0, "seed": seed, "phase": "query", "step": step, "metric": "loss"}
                tables["records"] = pd.concat(
                    [tables["records"], pd.DataFrame([row | {"value": x[0] / 2**31}])]
                )
                store.save(
                    name,
                    {"query": {"p": x, "q": x[::-1].copy()}},
                    lambda tables=tables: tables,
                    cells={"0": cell["config_hash"]},
                    phase=1,
                    step=step + 1,
                    failures=[],
                    finished=step + 1 == STEPS,
                )
                reporter.update("", 0.0)
        known |= store.merge(batches)
        store.write_manifest(known | {"status": "finished"})


def _study(place: Path, reporter: Reporter) -> None:
    changes = ["seeds=2", "chunk=1", "phases.query.steps=4", "probes.per_decade=2"]
    intervals = Intervals(block_s=0.0, checkpoint_s=0.0, checkpoint_share=float("inf"))
    study = ja.Study.read(damages.SMALL, changes)
    engine.run_study(study, place, command="test", reporter=reporter, intervals=intervals)
