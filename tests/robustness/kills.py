"""SIGKILL at random moments: of runs, of one of two runs in a folder, and of reports.

Half of the kills happen after a random time, and half of them at a file operation: before a file is created,
renamed or deleted, or when half of it is written. The killed command is repeated until it ends. Every result
on the way is right, no saved step is computed again, and the end is that of an undisturbed run.
"""

import json
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
from pathlib import Path
from typing import Any, NamedTuple

import folders

from jaxattn.lab.cli.status import run_status
from jaxattn.lab.pages import report
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import checkpoints, files, memo

# Imported once for all processes, because it is slow to import.
checkpoints.prepare()
# Other processes are forked from a process that has imported everything.
FRESH = multiprocessing.get_context("forkserver")
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


class Kind(NamedTuple):
    """What is killed: a command, the folder in which it begins, and how many processes run it at once."""

    command: Callable[[Path], None]
    begin: str
    processes: int = 1


def _run(folder: Path, seeds: int = len(folders.SEEDS)) -> None:
    folders.run(folder, folders.study(steps=6, seeds=seeds))


def _report(folder: Path) -> None:
    for _ in range(2):
        report.write_report(folder)


KINDS = {
    "run": Kind(_run, "nothing"),
    "run with more seeds": Kind(_run, "one seed"),
    "one of two runs": Kind(_run, "nothing", 2),
    "report": Kind(_report, "whole"),
}


def attack(count: int, seed: int) -> dict[str, int]:
    """Kill a process `count` times, and repeat its command.

    Returns:
        Number of kills by kind and moment, and of folders that ended like undisturbed ones.

    Raises:
        AssertionError: different numbers or files, an exception, or a traceback.
    """
    outcomes: Counter[str] = Counter()
    drawn, killed = random.Random(f"kill {seed}"), 0
    with tempfile.TemporaryDirectory() as name, _keeping_programs(Path(name)):
        root = Path(name).resolve()
        expected, lengths = _undisturbed(root)
        begun: list[str] = []
        while killed < count or begun:
            kind = drawn.choice(list(KINDS)) if killed < count else begun[0]
            folder = root / "attacked" / kind
            if kind not in begun:
                shutil.copytree(root / KINDS[kind].begin, folder)
                begun.append(kind)
            seconds, operations = lengths[kind]
            moment = (
                (drawn.uniform(0, seconds), None)
                if drawn.random() < 0.5
                else (None, drawn.randint(1, operations))
            )
            case = f"seed {seed}, kill {killed}, of {kind} at {moment}"
            try:
                was = _attempt(kind, folder, *(moment if killed < count else (None, None)))
                _check(kind, folder, expected, ended=not was)
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            killed += bool(was)
            outcomes[f"{kind}: {was or 'ended like an undisturbed one'}"] += 1
            print(f"{killed} of {count}: {case}: {was or 'ended'}", file=sys.stderr, flush=True)
            if not was:
                shutil.rmtree(folder)
                begun.remove(kind)
    return dict(sorted(outcomes.items()))


def _undisturbed(root: Path) -> tuple[dict[str, Any], dict[str, tuple[float, int]]]:
    """Make the folders in which attacks begin.

    Returns:
        What every kind leads to, and the length of each kind in seconds and in file operations.
    """
    (root / "nothing").mkdir()
    _run(root / "one seed", seeds=1)
    lengths = {}
    for kind in KINDS:
        folder = shutil.copytree(root / KINDS[kind].begin, root / "lengths" / kind)
        lengths[kind] = _work(kind, folder)[1:]
        if kind == "run":
            shutil.copytree(folder, root / "finished")
            shutil.copytree(folder, root / "whole")
            report.write_report(root / "whole")
    content = folders.content(root / "finished")
    expected = {"content": content, "batches": _tables_of(root / "finished")}
    return expected | {"report": _report_files(root / "whole")}, lengths


def _attempt(kind: str, folder: Path, seconds: float | None, operation: int | None) -> str:
    """Run a command that may be killed; check that it does not compute what was saved."""
    saved, finished, begin = _saved(folder), folders.batches(folder), time.time()
    was = _work(kind, folder, seconds, operation)[0]
    now = folders.batches(folder)
    assert {name: now.get(name) for name in finished} == finished, "a finished batch was changed"
    for key, state in saved.items():
        again = [place for place in _measured(folder, key, begin) if place <= state]
        assert not again, f"{again} computed again, although {state} was saved"
    return was


def _saved(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the phase and the step of the newest state of every unfinished batch, by its key."""
    found: dict[str, tuple[int, int]] = {}
    for one in memo.partials(folder):
        if one.record.tables:
            state = one.record.phase, one.record.step
            found[one.record.key] = max(state, found.get(one.record.key, state))
    return found


def _measured(folder: Path, key: str, since: float) -> Iterator[tuple[int, int]]:
    """Yield the phases and the steps that were measured in a batch after a point in time."""
    for path in (folder / "runs").glob(f"{key}*/metrics.jsonl"):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError):
                entry = files.unsealed(json.loads(line))
                if entry["time"] > since and entry["metrics"]:
                    yield ("embed", "query").index(entry["phase"]), entry["step"]


def _check(kind: str, folder: Path, expected: dict[str, Any], *, ended: bool) -> None:
    """Check what is there: it is right, or one line reports that it is missing."""
    if kind == "report":
        report.write_report(folder)
        assert verify(folder) == []
        assert _report_files(folder) == expected[kind]
    elif ended or KINDS[kind].processes > 1:
        folders.check_content(folder, expected["content"])
        if not ended and (left := memo.partials(folder)):
            # Both processes may have started with the same batch. The next run deletes what is left of the
            # killed one.
            finished = {record.key for record in memo.finished(folder, lambda error: None).values()}
            assert all(one.record.key in finished and not one.is_running for one in left), left
            _run(folder)
        assert _tables_of(folder) == expected["batches"]
        assert verify(folder) == []
        if ended:
            folders.check_leftovers(folder)
            assert {path.name for path in folder.iterdir()} == {"study.json", "runs"}
    else:
        folders.refusal(lambda: folders.check_tables(folder, expected["content"]))
        folders.refusal(lambda: run_status(folder))


def _tables_of(folder: Path) -> dict[str, str]:
    """Return the checksums of the tables of all batches."""
    found = (folder / "runs").glob("*/*.parquet")
    return {str(path.relative_to(folder)): files.digest(path.read_bytes()) for path in found}


def _report_files(folder: Path) -> dict[str, bytes]:
    paths = [folder / "report.html", folder / "summary.csv", *(folder / "figures").iterdir()]
    return {path.name: path.read_bytes() for path in paths if not path.name.startswith(".")}


class _Operations:
    """Counts the file operations in a folder, and kills this process at one of them."""

    def __init__(self, folder: Path, last: int | None):
        self.folder, self.last, self.number, self.sync = str(folder), last, 0, os.fsync
        os.fsync = self.half_written
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or (event == "open" and not _writes(arguments[2])):
            return
        # Folders are deleted relative to an open folder.
        if self.folder in str(arguments[0]) or (event != "open" and arguments[-1] not in (-1, None)):
            self.count()

    def half_written(self, handle: int) -> None:
        if os.path.isfile(f"/proc/self/fd/{handle}"):
            size = os.fstat(handle).st_size
            self.count(lambda: os.ftruncate(handle, size // 2))
        self.sync(handle)

    def count(self, last_act: Callable[[], None] = lambda: None) -> None:
        self.number += 1
        if self.number == self.last:
            last_act()
            os.kill(os.getpid(), signal.SIGKILL)


def _writes(mode: Any) -> bool:
    return isinstance(mode, int) and bool(mode & (os.O_WRONLY | os.O_RDWR))


def _in_child(kind: str, folder: Path, said: Path, operation: int | None) -> None:
    with open(said, "wb") as file:
        os.dup2(file.fileno(), 2)
    operations = _Operations(folder, operation)
    KINDS[kind].command(folder)
    said.with_suffix(".operations").write_text(str(operations.number))


def _work(
    kind: str, folder: Path, seconds: float | None = None, operation: int | None = None
) -> tuple[str, float, int]:
    """Run a command in other processes, and kill the first one after some seconds or at a file operation.

    Returns:
        How it was killed, or "" if it was not; the seconds that it took; and its number of file operations.
    """
    begin, every = time.monotonic(), []
    for number in range(KINDS[kind].processes):
        said = folder.with_name(f"{folder.name} {number}")
        arguments = kind, folder, said, operation if number == 0 else None
        every.append((said, FRESH.Process(target=_in_child, args=arguments)))
        every[-1][1].start()
    first = every[0][1]
    first.join(seconds)
    lasted = time.monotonic() - begin
    first.kill()
    for said, process in every:
        process.join()
        text = said.read_text(errors="replace") if said.exists() else ""
        assert "Traceback" not in text, text
        assert process.exitcode == 0 or (process is first and process.exitcode == -signal.SIGKILL), text
    if first.exitcode:
        return f"killed {'after a time' if operation is None else 'at a file operation'}", lasted, 0
    return "", lasted, int(every[0][0].with_suffix(".operations").read_text())


@contextmanager
def _keeping_programs(root: Path) -> Iterator[None]:
    """Let all processes share compiled programs."""
    kept = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(root / "compiled")),
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
