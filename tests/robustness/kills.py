"""SIGKILL at random moments: of new runs, of runs with more seeds, of reports and of aggregated tables.

The killed command is repeated, and ends with the numbers and files of an undisturbed one.
"""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import damages
import pandas as pd

import jaxattn as ja
from jaxattn.core.errors import InputError
from jaxattn.lab.engine import run as engine
from jaxattn.lab.engine.monitor import Intervals
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results import layout, report
from jaxattn.lab.results.read import verify

# Other processes are forked from a process that has imported everything.
FRESH = multiprocessing.get_context("forkserver")
FIRST, ALL = 3, 7
TABLE = "table.csv"
TIMES = 20


class Telling(Reporter):
    """Reporter that notifies another process of every step."""

    def __init__(self, told: Connection):
        super().__init__(quiet=True)
        self.told = told

    def update(
        self, description: str, fraction: float | None = None, state: str = "", remaining: float | None = None
    ) -> None:
        if fraction is not None:
            self.told.send("step")


def attack(count: int, seed: int) -> dict[str, int]:
    """Kill a process `count` times, and repeat its command.

    Returns:
        Number of kills by kind and moment, and of folders that ended like undisturbed ones.

    Raises:
        AssertionError: different numbers or files, an exception, or a traceback.
    """
    outcomes: Counter[str] = Counter()
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, _keeping_programs(Path(name)):
        root = Path(name)
        begun, expected = _undisturbed(root)
        killed, number = 0, 0
        while killed < count or any((root / kind).exists() for kind in KINDS):
            number += 1
            kind = list(KINDS)[number % len(KINDS)]
            folder = root / kind
            if not folder.exists():
                if killed >= count:
                    continue
                shutil.copytree(begun[kind], folder)
            # A report has no steps.
            steps, seconds = (1, 3.0) if kind == "report" else (8, 0.15)
            wait = (moments.randint(0, steps), moments.uniform(0, seconds)) if killed < count else None
            case = f"seed {seed}, kill {killed}, of {kind}"
            try:
                was = _work(root, kind, folder, wait)
                _check(kind, folder, expected, ended=not was)
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            killed += bool(was)
            outcomes[f"{kind}: {was or 'ended like an undisturbed run'}"] += 1
            print(f"{killed} of {count}: {kind}: {was or 'ended'}", file=sys.stderr, flush=True)
            if not was:
                shutil.rmtree(folder)
    return dict(sorted(outcomes.items()))


def _undisturbed(root: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Make the initial state and the expected result of every kind of attack."""
    first, whole, topped = root / "first", root / "whole", root / "topped"
    (root / "nothing").mkdir()
    _work(root, "run with fewer seeds", first, None)
    _work(root, "run", shutil.copytree(root / "nothing", whole), None)
    _work(root, "run with more seeds", shutil.copytree(first, topped), None)
    _work(root, "report", whole, None)
    wanted = set()
    for number in range(2):
        layout.write_page(_aggregated(whole, number), whole / TABLE)
        wanted.add((whole / TABLE).read_bytes())
    assert len(wanted) == 2
    expected = {
        "run": damages._read(whole),
        "run with more seeds": damages._read(topped),
        "report": _files(whole),
        "aggregate": wanted,
    }
    begun = {"run": root / "nothing", "run with more seeds": first, "report": whole, "aggregate": whole}
    return begun, expected


def _check(kind: str, folder: Path, expected: dict[str, Any], *, ended: bool) -> None:
    """Check that the existing files are correct, or that one line reports a missing one."""
    if kind == "aggregate":
        assert (folder / TABLE).read_bytes() in expected[kind], "half a table"
    elif kind == "report":
        report.write_report(folder)
        assert verify(folder) == []
        assert _files(folder) == expected[kind]
    elif ended:
        damages._same(damages._read(folder), expected[kind])
    else:
        with suppress(InputError):
            ja.load(folder)


def _files(folder: Path) -> dict[str, bytes]:
    paths = [folder / "report.html", folder / "summary.csv", *(folder / "figures").iterdir()]
    return {path.name: path.read_bytes() for path in paths if not path.name.startswith(".")}


def _run(folder: Path, told: Connection, seeds: int = ALL) -> None:
    """Run a study that saves after every step, so that most kills interrupt a write."""
    changes = [f"seeds={seeds}", "chunk=3", "phases.query.steps=20", "probes.per_decade=2"]
    intervals = Intervals(block_s=0.0, checkpoint_s=0.0, checkpoint_share=float("inf"))
    with Telling(told) as reporter:
        study = ja.Study.read(damages.SMALL, changes)
        engine.run_study(study, folder, command="test", reporter=reporter, intervals=intervals)


def _report(folder: Path, told: Connection) -> None:
    for _ in range(TIMES):
        report.write_report(folder)
        told.send("step")


def _tables(folder: Path, told: Connection) -> None:
    found = [_aggregated(folder, number) for number in range(2)]
    for number in range(1000 * TIMES):
        layout.write_page(found[number % 2], folder / TABLE)
        if number % 100 == 0:
            told.send("step")


def _aggregated(folder: Path, number: int) -> pd.DataFrame:
    """Return one of two tables that differ in every interval, to be written in turn."""
    return ja.load(folder).aggregate(confidence=(0.9, 0.95)[number])


def _run_first(folder: Path, told: Connection) -> None:
    _run(folder, told, FIRST)


KINDS: dict[str, Callable[[Path, Connection], None]] = {
    "run": _run,
    "run with more seeds": _run,
    "report": _report,
    "aggregate": _tables,
}


def _in_child(kind: str, folder: Path, said: Path, told: Connection) -> None:
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 2)
    told.send("begun")
    (KINDS | {"run with fewer seeds": _run_first})[kind](folder, told)
    told.send("ended")


def _work(root: Path, kind: str, folder: Path, wait: tuple[int, float] | None) -> str:
    """Run in a separate process, and kill it after some steps and seconds; return the moment, or ""."""
    here, there = FRESH.Pipe(duplex=False)
    said = root / "said"
    process = FRESH.Process(target=_in_child, args=(kind, folder, said, there))
    process.start()
    there.close()
    seen = 0
    with suppress(EOFError):
        while wait is None or seen <= wait[0]:
            if here.recv() == "ended":
                break
            seen += 1
        else:
            time.sleep(wait[1])
            process.kill()
    process.join()
    here.close()
    text = said.read_text(errors="replace")
    assert "Traceback" not in text, text
    if process.exitcode == -signal.SIGKILL:
        return "killed before its first step" if seen <= 1 else "killed before its end"
    assert process.exitcode == 0, text
    return ""


@contextmanager
def _keeping_programs(root: Path) -> Iterator[None]:
    """Let all processes share compiled programs."""
    kept = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(root / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    before = {name: os.environ.get(name) for name in kept}
    os.environ.update(kept)
    FRESH.set_forkserver_preload(["kills"])
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
