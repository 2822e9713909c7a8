"""Damage of any file of an unfinished or finished folder: it is reported and fixed, or has no effect.

One bit is flipped, the file is truncated, or it is replaced by an earlier version, by the file of another
run, or by one with another digit, with or without a new checksum.
"""

import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd

import jaxattn as ja
from jaxattn.core import pytrees
from jaxattn.core.errors import InputError
from jaxattn.lab.engine import run as engine
from jaxattn.lab.engine.monitor import Interrupted, Intervals
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.results import report
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import files

SMALL = Path(__file__).parents[1] / "sweeps" / "small.toml"
SEEDS = (0, 1)
SAVING = Intervals(block_s=0.0, checkpoint_s=0.0, checkpoint_share=np.inf)
# Longest allowed silence in seconds.
LONGEST_S = 5.0
KINDS = (
    "a bit", "cut off", "an earlier file", "another run's file", "a digit", "a digit, resealed",
)  # fmt: skip
WITHOUT_CHECKSUM = (".lock", "metrics.jsonl")


class Reading(NamedTuple):
    """What a reader gets from a folder: the tables, and the parameters of every seed if it is finished."""

    tables: tuple[pd.DataFrame, pd.DataFrame]
    params: tuple[Any, ...]


class Words(Reporter):
    """Reporter that measures the longest silence, and may stop a run after some steps."""

    def __init__(self, steps: int = -1):
        super().__init__(quiet=True)
        self.longest, self.last, self.steps = 0.0, time.monotonic(), steps

    def __exit__(self, *error: object) -> None:
        self.warn("")

    def warn(self, line: str) -> None:
        now = time.monotonic()
        self.longest, self.last = max(self.longest, now - self.last), now

    def update(
        self, description: str, fraction: float | None = None, state: str = "", remaining: float | None = None
    ) -> None:
        self.warn("")
        self.steps -= fraction is not None
        if self.steps == 0:
            raise Interrupted


def attack(count: int, seed: int) -> dict[str, int]:
    """Damage a file `count` times; read, verify, resume and fix the folder each time.

    Returns:
        Number of times of each outcome.

    Raises:
        AssertionError: different numbers, an exception, a traceback, or a long silence.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        # Silence during compilation is allowed.
        with Words() as words:
            engine.run_study(
                _other(), root / "other", command="another command", reporter=words, intervals=SAVING
            )
        report.write_report(root / "other")
        stack.enter_context(_compiled_once())
        folders = {"finished": root / "finished", "half-finished": root / "half"}
        _make(folders["finished"], folders["half-finished"])
        others = {"an earlier file": folders["half-finished"], "another run's file": root / "other"}
        expected = {state: _read(folder) for state, folder in folders.items()}
        for number in range(count):
            drawn = random.Random(f"{seed} {number}")
            state = drawn.choice(sorted(folders))
            folder = shutil.copytree(folders[state], root / "damaged")
            path = _choose(folder, drawn)
            kind = drawn.choice(KINDS)
            before = path.read_bytes()
            kind = _damage(kind, folder, path, others, drawn)
            case = f"seed {seed}, damage {number}: {kind} of {path.relative_to(folder)}, {state}"
            try:
                found = _suffer(folder, path, expected[state], expected["finished"], before, kind)
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            outcomes[f"{kind}, {state}: {found}"] += 1
            shutil.rmtree(folder)
            print(f"{number + 1} of {count}: {kind}, {state}: {found}", file=sys.stderr, flush=True)
    return dict(sorted(outcomes.items()))


def _choose(folder: Path, drawn: random.Random) -> Path:
    """Choose the kind of file first, because most files are parts of checkpoints."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    kinds = sorted({path.relative_to(folder).parts[0] for path in files})
    kind = drawn.choice(kinds)
    return drawn.choice([path for path in files if path.relative_to(folder).parts[0] == kind])


def _suffer(folder: Path, path: Path, before: Reading, after: Reading, content: bytes, kind: str) -> str:
    """Use a damaged folder as a user would, and return the outcome."""
    if path.read_bytes() == content:
        return "the same bytes"
    with _listening() as heard:
        damaged = _timed(lambda: _verified(folder))
        # An earlier manifest is intact, and describes the run at that time; checksums are not signatures.
        earlier = kind == "an earlier file" and path.name == "manifest.json"
        resealed = kind == "a digit, resealed"
        assert damaged or earlier or resealed or path.name in WITHOUT_CHECKSUM, "not noticed"
        # With an earlier manifest the run is unfinished, and has no final parameters.
        begun = before._replace(params=()) if earlier and not ja.load(folder).finished else before
        _compare(folder, path, begun)
        refused = _refused(folder)
        if refused:
            # Another run's manifest or commit record is intact. It is detected by its config.
            assert "different config" in refused or path.name in refused, refused
            path.unlink()
            _run(folder)
        if resealed and not damaged and not refused:
            return "accepted; tables and parameters unchanged"
        _compare(folder, path, after)
        result = "reported, fixed by the same command" if damaged else "of no consequence"
        for line in verify(folder):
            result = "reported, fixed by the suggested command"
            if "jaxattn report" in line:
                report.write_report(folder)
            else:
                named = line.partition("; delete ")[2].partition(";")[0]
                (Path(named) if named else path).unlink(missing_ok=True)
                _run(folder)
        assert verify(folder) == []
        _same(_read(folder), after)
    assert "Traceback" not in heard[0], heard[0]
    return result


def _verified(folder: Path) -> list[str]:
    """Verify a folder; an intact but inconsistent manifest is rejected in one line."""
    try:
        return verify(folder)
    except InputError as error:
        return [str(error)]


def _compare(folder: Path, path: Path, expected: Reading) -> None:
    """Read a folder: the result is correct, or an error in one line with the name of the file."""
    try:
        found = _timed(lambda: _read(folder))
    except InputError as error:
        line = str(error)
    else:
        _same(found, expected)
        return
    # A manifest refers to tables and commit records that another manifest lacks.
    apart = (
        "records.parquet", "tokens.parquet", "has another config than in the manifest",
        "differs from the manifest", "has no measurements yet", "that are not in the manifest",
    )  # fmt: skip
    batch = path.name.partition(".")[0] if path.parent.name == "parts" else path.name
    assert any(each in line for each in (batch, *(apart if path.name == "manifest.json" else ()))), line
    assert "\n" not in line


def _read(folder: Path) -> Reading:
    results = ja.load(folder)
    params = (results.params(seed=seed) for seed in SEEDS) if results.finished else ()
    return Reading((results.records, results.tokens), tuple(params))


def _same(found: Reading, expected: Reading) -> None:
    for mine, theirs in zip(found.tables, expected.tables, strict=True):
        pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
    for one, other in zip(found.params, expected.params, strict=True):
        for name in pytrees.names(other):
            np.testing.assert_array_equal(pytrees.get(one, name), pytrees.get(other, name))


def _make(finished: Path, half: Path) -> None:
    """Make a finished folder with its report, and an unfinished one that stopped in its second batch.

    The programs are compiled here, because compilation is silent for long.
    """
    with Words() as words:
        engine.run_study(_study(), finished, command="the same command", reporter=words, intervals=SAVING)
    report.write_report(finished)
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


@cache
def _other() -> ja.Study:
    """Return another run: its files have the same names, and its cells another config."""
    tree = dict(_study().tree)
    tree["phases"] = [tree["phases"][0], tree["phases"][1] | {"steps": 4}]
    return ja.Study.of_tables(tree)


@contextmanager
def _compiled_once() -> Iterator[None]:
    """Let all runs share their compiled programs."""
    groups, programs = engine.compile_groups(_study().cells), engine.ProgramCache()
    with (
        mock.patch.object(engine, "compile_groups", return_value=groups),
        mock.patch.object(engine, "ProgramCache", return_value=programs),
    ):
        yield


def _run(folder: Path, steps: int = -1) -> None:
    with Words(steps) as words:
        engine.run_study(_study(), folder, command="the same command", reporter=words, intervals=SAVING)
    assert words.longest < LONGEST_S, f"run said nothing for {words.longest:.1f} s"


def _timed(function: Callable[[], Any]) -> Any:
    begin = time.monotonic()
    try:
        return function()
    finally:
        assert time.monotonic() - begin < LONGEST_S, f"nothing for {time.monotonic() - begin:.1f} s"


def _damage(kind: str, folder: Path, path: Path, others: dict[str, Path], drawn: random.Random) -> str:
    """Damage a file and return the kind of damage; a bit is flipped if the kind does not apply."""
    if kind == "cut off":
        os.truncate(path, drawn.randrange(path.stat().st_size))
        return kind
    if kind in others:
        same = others[kind] / path.relative_to(folder)
        if same.is_file() and same.read_bytes() not in (b"", path.read_bytes()):
            shutil.copy(same, path)
            return kind
    if kind.startswith("a digit") and path.suffix == ".json" and b'"seal"' in path.read_bytes():
        text = path.read_text()
        places = [found.start() for found in re.finditer(r"\d", text)]
        place = drawn.choice(places)
        other = drawn.choice([digit for digit in "123456789" if digit != text[place]])
        path.write_text(text[:place] + other + text[place + 1 :])
        if kind == "a digit, resealed":
            with suppress(ValueError):
                content = json.loads(path.read_text())
                content.pop(files.SEAL)
                path.write_bytes(files.sealed(content))
        return kind
    _flip(path, drawn)
    return "a bit"


def _refused(folder: Path) -> str:
    """Run the same command again; return the error if it is rejected, else ""."""
    try:
        _run(folder)
    except InputError as error:
        return str(error)
    return ""


def _flip(path: Path, drawn: random.Random) -> int:
    content = bytearray(path.read_bytes())
    bit = drawn.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return bit


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Capture the output of libraries to stderr, also from outside of Python."""
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
