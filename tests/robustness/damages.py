"""One flipped bit in any file of a half-finished or a finished folder: named and mended, or no matter."""

import os
import random
import shutil
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd

import jaxattn as ja
from jaxattn import trees
from jaxattn.engine import run as engine
from jaxattn.engine.execute import Clock, Interrupted
from jaxattn.engine.progress import Reporter
from jaxattn.errors import InputError
from jaxattn.results import report
from jaxattn.results.verify import verify

SMALL = Path(__file__).parents[1] / "sweeps" / "small.toml"
SEEDS = (0, 1)
SAVING = Clock(block_s=0.0, checkpoint_s=0.0, checkpoint_share=np.inf)
# Nothing may take longer without a word.
LONGEST_S = 5.0
WITHOUT_CHECKSUM = (".lock", "metrics.jsonl")


class Reading(NamedTuple):
    """What a reader gets of a folder: the tables, and the parameters of every seed if it is finished."""

    tables: tuple[pd.DataFrame, pd.DataFrame]
    params: tuple[Any, ...]


class Words(Reporter):
    """Knows how long nothing was said, and may stop a run after some steps."""

    def __init__(self, steps: int = -1):
        super().__init__(quiet=True)
        self.longest, self.last, self.steps = 0.0, time.monotonic(), steps

    def __exit__(self, *error: object) -> None:
        self.warn("")

    def warn(self, line: str) -> None:
        now = time.monotonic()
        self.longest, self.last = max(self.longest, now - self.last), now

    def update(self, description: str, fraction: float, state: str = "", part: str = "") -> None:
        self.warn("")
        self.steps -= 1
        if self.steps == 0:
            raise Interrupted


def attack(count: int, seed: int) -> dict[str, int]:
    """Flip one bit `count` times; read, verify, continue and mend the folder each time.

    Returns:
        How often each outcome was seen.

    Raises:
        AssertionError: numbers that differ, an exception, a traceback, a wait without a word.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, _compiled_once():
        root = Path(name)
        folders = {"finished": root / "finished", "half-finished": root / "half"}
        _make(folders["finished"], folders["half-finished"])
        expected = {state: _read(folder) for state, folder in folders.items()}
        for number in range(count):
            drawn = random.Random(f"{seed} {number}")
            state = drawn.choice(sorted(folders))
            folder = shutil.copytree(folders[state], root / "damaged")
            path = _choose(folder, drawn)
            bit = _flip(path, drawn)
            case = f"seed {seed}, damage {number}: bit {bit} of {path.relative_to(folder)}, {state}"
            try:
                found = _suffer(folder, path, expected[state], expected["finished"])
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            outcomes[f"{state}, {found}"] += 1
            shutil.rmtree(folder)
    return dict(sorted(outcomes.items()))


def _choose(folder: Path, drawn: random.Random) -> Path:
    """Choose a kind of file first: most files are parts of checkpoints."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    kinds = sorted({path.relative_to(folder).parts[0] for path in files})
    kind = drawn.choice(kinds)
    return drawn.choice([path for path in files if path.relative_to(folder).parts[0] == kind])


def _suffer(folder: Path, path: Path, before: Reading, after: Reading) -> str:
    """Do with a damaged folder what a user would do; say what came of it."""
    with _listening() as heard:
        damaged = _timed(lambda: verify(folder))
        assert all(path.name in line for line in damaged), f"not named: {damaged}"
        assert damaged or path.name in WITHOUT_CHECKSUM, "not noticed"
        _compare(folder, path, before)
        _run(folder)
        _compare(folder, path, after)
        result = "named, mended by the same command" if damaged else "of no consequence"
        for line in verify(folder):
            result = "named, mended by the command that is named"
            if "jaxattn report" in line:
                report.write(folder)
            else:
                Path(line.partition("; delete ")[2].partition(" and mend it with: ")[0]).unlink()
                _run(folder)
        assert verify(folder) == []
        _same(_read(folder), after)
    assert "Traceback" not in heard[0], heard[0]
    return result


def _compare(folder: Path, path: Path, expected: Reading) -> None:
    """Read a folder: what it gives is right, or an error in one line that names the file."""
    try:
        found = _timed(lambda: _read(folder))
    except InputError as error:
        line = str(error)
    else:
        _same(found, expected)
        return
    assert path.name in line, f"not named: {line}"
    assert "\n" not in line


def _read(folder: Path) -> Reading:
    results = ja.load(folder)
    params = (results.params(seed=seed) for seed in SEEDS) if results.finished else ()
    return Reading((results.records, results.tokens), tuple(params))


def _same(found: Reading, expected: Reading) -> None:
    for mine, theirs in zip(found.tables, expected.tables, strict=True):
        pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
    for one, other in zip(found.params, expected.params, strict=True):
        for name in trees.names(other):
            np.testing.assert_array_equal(trees.get(one, name), trees.get(other, name))


def _make(finished: Path, half: Path) -> None:
    """Make a finished folder with its report, and one that was left in its second batch.

    Nothing is damaged yet, and the programs are compiled here, in one piece: how long that is silent is the
    compiler's affair.
    """
    with Words() as words:
        engine.run(_study(), finished, command="the same command", reporter=words, clock=SAVING)
    report.write(finished)
    try:
        _run(half, steps=7)
    except Interrupted:
        return
    raise AssertionError("the run was not stopped")


@cache
def _study() -> ja.Study:
    tree = tomllib.loads(SMALL.read_text(encoding="utf-8"))
    tree["phases"][1]["steps"] = 3
    return ja.Study.of_tables(tree | {"chunk": 1, "seeds": len(SEEDS), "figures": ["curves"]})


@contextmanager
def _compiled_once() -> Iterator[None]:
    """Let all runs share their programs, which they would trace and compile anew."""
    groups, programs = engine.compile_groups(_study().cells), engine.CompilationCache(lambda *_: None)
    with (
        mock.patch.object(engine, "compile_groups", return_value=groups),
        mock.patch.object(engine, "CompilationCache", return_value=programs),
    ):
        yield


def _run(folder: Path, steps: int = -1) -> None:
    with Words(steps) as words:
        engine.run(_study(), folder, command="the same command", reporter=words, clock=SAVING)
    assert words.longest < LONGEST_S, f"run said nothing for {words.longest:.1f} s"


def _timed(function: Callable[[], Any]) -> Any:
    begin = time.monotonic()
    try:
        return function()
    finally:
        assert time.monotonic() - begin < LONGEST_S, f"nothing for {time.monotonic() - begin:.1f} s"


def _flip(path: Path, drawn: random.Random) -> int:
    content = bytearray(path.read_bytes())
    bit = drawn.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return bit


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Catch what libraries write to stderr, also from outside of Python."""
    heard = [""]
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield heard
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            heard[0] = file.read().decode(errors="replace")
