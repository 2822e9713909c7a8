"""A study in a bucket on moto's S3 server: processes that run it, faults of the server, and expected results.

The study has three batches of one run, which are saved after every step. The real `run_study` plans, claims,
resumes and publishes the batches. Only the training steps are replaced by integer arithmetic, because every
process would otherwise compile them for several seconds.
"""

import hashlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import folders
import kills
import numpy as np
import obstore.store  # noqa: F401  slow to import
import pandas as pd
from s3_server import Server

from jaxattn.lab.engine import attempt, queue
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import checkpoints, memo, objects
from jaxattn.lab.storage.folder import results_folder
from jaxattn.lab.storage.workplace import Workplace

# Imported once for all processes, because it is slow to import.
checkpoints.prepare()
STEPS = 3
# Seconds that a process may take.
LONGEST_S = 120.0
# Seconds after which a silent process of another machine counts as killed, and between looks at it.
GONE_S, LOOK_S = 1.0, 0.2
# Seconds for which failed requests are repeated.
RETRY_S = 2.0


class Scene(NamedTuple):
    """State shared by all attacks of one kind.

    Attributes:
        server: the S3 server.
        root: temporary folder for the caches of all machines.
        expected: content of an undisturbed run in a local folder, by number of seeds.
        length: duration of a run in the bucket in seconds, and its number of requests.
        drawn: source of random choices.
        outcomes: number of times of each outcome.
    """

    server: Server
    root: Path
    expected: dict[int, folders.Content]
    length: tuple[float, int]
    drawn: random.Random
    outcomes: Counter[str]

    def objects(self, place: Path) -> dict[str, bytes]:
        """Return the objects of a results folder, by name relative to it."""
        bucket, _, folder = str(place).removeprefix("s3:/").partition("/")
        return {name.removeprefix(f"{folder}/"): x for name, x in self.server.objects(bucket).items()}

    def cache(self) -> Path:
        """Return an empty cache."""
        return Path(tempfile.mkdtemp(dir=self.root))

    def check_end(self, place: Path, seeds: int = len(folders.SEEDS)) -> str:
        """Check a finished study from another machine: the same bits, and no other objects.

        Returns:
            A note if a killed process has left objects, which the next run deletes.
        """
        note = ""
        if _leftovers(there := self.objects(place)):
            time.sleep(GONE_S)
            assert not Process(self, place, self.cache(), "cleaner", seeds).end()
            assert records_of(self.objects(place), whole=True) == records_of(there, whole=True), (
                "computed again"
            )
            note = ", leftovers were deleted by the next run"
        check_objects(there := self.objects(place))
        assert not _leftovers(there), _leftovers(there)
        with (
            mock.patch.dict(os.environ, JAXATTN_CACHE=str(self.cache())),
            mock.patch.object(folders, "SEEDS", range(seeds)),
        ):
            folders.check_content(place, self.expected[seeds])
            assert verify(results_folder(place).fetch("tables", "log", "checkpoints")) == []
        return note


def records_of(there: dict[str, bytes], whole: bool = False) -> dict[str, bytes]:
    """Return the content of run.json by batch, for all batches or only for the finished ones."""
    found = {name.split("/")[1]: x for name, x in there.items() if name.endswith("/run.json")}
    return {name: x for name, x in found.items() if not whole or memo.KEY.fullmatch(name)}


def _referenced(batch: str, record: dict[str, Any]) -> dict[str, str | None]:
    """Return the checksums of the objects to which a record refers, by name."""
    number = "" if record["finished"] else f"-{record['saved']}"
    found = {f"runs/{batch}/{name}{number}.parquet": sha for name, sha in record["tables"].items()}
    state = "checkpoint" if record["finished"] else f"state{number}"
    saved = record["checkpoint"] or {"files": {}}
    return found | {f"runs/{batch}/{state}/{name}": sha for name, (_, sha) in saved["files"].items()}


def check_objects(there: dict[str, bytes]) -> None:
    """Compare all objects to which records refer with their checksums."""
    for batch, content in records_of(there).items():
        for name, sha256 in _referenced(batch, json.loads(content)).items():
            assert name in there, f"{name} is missing"
            assert sha256 in (None, hashlib.sha256(there[name]).hexdigest()), f"{name} is damaged"


def _leftovers(there: dict[str, bytes]) -> set[str]:
    """Return the names of objects that an undisturbed run would not have left."""
    known = {"study.json"}
    for batch, content in records_of(there, whole=True).items():
        known |= {f"runs/{batch}/run.json", f"runs/{batch}/metrics.jsonl"}
        known |= _referenced(batch, json.loads(content)).keys()
    return there.keys() - known


def progress_of(there: dict[str, bytes]) -> dict[str, tuple[int, int]]:
    """Return the phase and the step of the newest state of each batch, by key."""
    found: dict[str, tuple[int, int]] = {}
    for batch, content in records_of(there).items():
        record, key = json.loads(content), batch.partition(".")[0]
        found[key] = max(found.get(key, (0, 0)), (record["phase"], record["step"]))
    return found


def arithmetic(batch: Any, cache: Any, place: Workplace, monitor: Any, **options: Any) -> list[Any]:
    """Compute a batch of one run like `run_batch`, with integer arithmetic as steps."""
    saved, tables = place.resume()
    if saved is not None and saved.finished:
        place.publish()
        return []

    def arrays(x: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
        parts = np.split(x, [320, 336])
        shapes = {"E": (1, 20, 16), "p": (1, 16), "v": (1, 16)}
        return {"query": {name: part.reshape(shapes[name]) for name, part in zip("Epv", parts, strict=True)}}

    ((cell, seed),) = batch.runs
    x = np.arange(1.0, 353.0) + 1000 * seed
    if saved is not None:
        if (state := place.restore(saved, arrays(x))) is None:
            return arithmetic(batch, cache, place, monitor, **options)
        x = np.concatenate([state["query"][name].ravel() for name in "Epv"])
    for step in range(saved.step if saved else 0, STEPS):
        x = x * 48_271 % (2**31 - 1)
        keys = {"cell": cell.number, "seed": seed, "phase": "query", "step": step, "metric": "loss"}
        tables["records"] = pd.concat([tables["records"], pd.DataFrame([{**keys, "value": x[0] / 2**31}])])
        monitor.set_status(f"step {step}")
        last = step + 1 == STEPS
        progress = {"phase": 2, "step": 0} if last else {"phase": 1, "step": step + 1}
        place.save(arrays(x), lambda: tables, finished=last, **progress)
    return []


def _in_child(place: Path, seeds: int, env: dict[str, str], host: str, said: Path) -> None:
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 2)
    os.environ.update(env)
    memo._HOST, memo.GONE_S, queue.LOOK_REMOTE_S, objects.RETRY_S = host, GONE_S, LOOK_S, RETRY_S
    attempt.run_batch = arithmetic
    line = folders.refusal(lambda: folders.run(place, folders.study(seeds=seeds)))
    said.with_suffix(".line").write_text(line)


class Process:
    """Run of a study in a process on a machine with its own host name and cache."""

    def __init__(self, scene: Scene, place: Path, cache: Path, host: str, seeds: int = len(folders.SEEDS)):
        self.said = scene.root / f"said-{time.monotonic_ns()}"
        env = scene.server.env | {"JAXATTN_CACHE": str(cache)}
        self.process = kills.FRESH.Process(target=_in_child, args=(place, seeds, env, host, self.said))
        self.process.start()

    def kill_sometime(self, scene: Scene) -> None:
        """Kill the process at a random time or at a random request, which the server may still answer."""
        seconds, requests = scene.length
        if scene.drawn.random() < 0.5:
            self.process.join(scene.drawn.uniform(0, seconds))
            self.process.kill()
            return
        number = scene.drawn.randint(1, requests)
        scene.server.fault = Fault(
            scene.drawn.choice(["lost before", "lost after"]), number, 1, self.process.kill
        )

    def end(self) -> str:
        """Wait for the end; return "killed", the line of an error, or "" if the study is finished."""
        self.process.join(LONGEST_S)
        assert self.process.exitcode is not None, "the process does not end"
        text = self.said.read_text(errors="replace") if self.said.exists() else ""
        assert "Traceback" not in text, text
        if self.process.exitcode == -signal.SIGKILL:
            return "killed"
        assert self.process.exitcode == 0, text
        return self.said.with_suffix(".line").read_text()


class Fault:
    """Answer of the server to some requests, counted from the first one.

    Attributes:
        seen: number of requests so far.
    """

    def __init__(self, fault: str, first: int, length: float, strike: Callable[[], None] = lambda: None):
        self.fault, self.first, self.last, self.strike, self.seen = fault, first, first + length, strike, 0

    def __call__(self, method: str, path: str) -> str:
        self.seen += 1
        if self.seen == self.first:
            self.strike()
        return self.fault if self.first <= self.seen < self.last else ""


def no_fault(method: str, path: str) -> str:
    return ""
