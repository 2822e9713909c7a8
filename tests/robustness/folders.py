"""What the attacks on results folders share: a small study, how to run it, and what must come out."""

import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd

import jaxattn as ja
from jaxattn.core import pytrees
from jaxattn.lab.engine import missing
from jaxattn.lab.engine import run_study as engine
from jaxattn.lab.engine.monitor import Interrupted, Intervals
from jaxattn.lab.engine.program_cache import ProgramCache
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.storage import files, memo
from jaxattn.lab.study.groups import compile_groups

SMALL = Path(__file__).parents[1] / "sweeps" / "small.toml"
SEEDS = (0, 1, 2)
# Save after every block of steps.
SAVING = Intervals(block_s=0.0, checkpoint_s=0.0, checkpoint_share=np.inf)
# Files of a finished batch.
COMPLETE = {"run.json", "records.parquet", "tokens.parquet", "checkpoint", "metrics.jsonl"}
_KEYS = ("cell", "seed", "phase", "step", "metric", "id", "class")
# Writer of a partial folder whose process has ended: process numbers have fewer digits.
ENDED = f"{memo.writer().partition('-')[0]}-999999999-00000000"


class Content(NamedTuple):
    """What a reader gets from a folder: its tables, and the parameters of every seed."""

    tables: tuple[pd.DataFrame, pd.DataFrame]
    params: tuple[Any, ...]


class Warnings(Reporter):
    """Reporter that keeps the warnings, and may stop a run after some steps."""

    def __init__(self, steps: int = -1):
        super().__init__(quiet=True)
        self.lines: list[str] = []
        self.steps = steps

    def warn(self, line: str) -> None:
        self.lines.append(line)

    def update(
        self, description: str, fraction: float | None = None, state: str = "", remaining: float | None = None
    ) -> None:
        self.steps -= fraction is not None
        if self.steps == 0:
            raise Interrupted


@cache
def study(steps: int = 3, seeds: int = len(SEEDS), chunk: int = 1) -> ja.Study:
    """Return the small study; by default, it has three batches of one run."""
    tree = tomllib.loads(SMALL.read_text(encoding="utf-8"))
    tree["phases"][1]["steps"] = steps
    return ja.Study.from_tables(tree | {"chunk": chunk, "seeds": seeds, "figures": ["curves"]})


def run(folder: Path, of: ja.Study | None = None, steps: int = -1) -> list[str]:
    """Run the study in a folder, or stop it after some steps; return the warnings."""
    with Warnings(steps) as reporter:
        engine.run_study(
            of or study(), folder, command="the same command", reporter=reporter, intervals=SAVING
        )
    assert all("\n" not in line for line in reporter.lines), reporter.lines
    return reporter.lines


def stopped(folder: Path, steps: int) -> Path:
    """Stop the study after some steps, as if its process had been killed, and return the folder."""
    try:
        run(folder, steps=steps)
    except Interrupted:
        for path in (folder / "runs").glob("*.partial-*"):
            (path / memo.ERROR_FILE).unlink(missing_ok=True)
            path.rename(path.with_name(f"{path.name.partition('-')[0]}-{ENDED}"))
        return folder
    raise AssertionError("the run was not stopped")


@contextmanager
def compiled_once() -> Iterator[None]:
    """Let all runs of the study in this process share their compiled programs."""
    groups, programs = compile_groups(study().cells), ProgramCache()
    with (
        mock.patch.object(missing, "compile_groups", return_value=groups),
        mock.patch.object(engine, "ProgramCache", return_value=programs),
    ):
        yield


def content(folder: Path) -> Content:
    """Return the tables and parameters of a folder with a finished study."""
    found = ja.load(folder)
    assert found.finished, found.manifest["status"]
    return Content((found.records, found.tokens), tuple(found.params(seed=seed) for seed in SEEDS))


def check_content(folder: Path, expected: Content) -> None:
    """Assert that the study is finished, with the expected content bit by bit.

    The rows of runs that were computed together may alternate, but the rows of each run are in order.
    """
    found = content(folder)
    for mine, theirs in zip(found.tables, expected.tables, strict=True):
        by_run = mine.sort_values(["cell", "seed"], kind="stable", ignore_index=True)
        pd.testing.assert_frame_equal(by_run, theirs, check_exact=True)
    for mine, theirs in zip(found.params, expected.params, strict=True):
        check_params(mine, theirs)


def check_params(found: Any, expected: Any) -> None:
    """Assert that parameters are the expected ones bit by bit."""
    for name in pytrees.names(expected):
        np.testing.assert_array_equal(pytrees.get(found, name), pytrees.get(expected, name))


def check_tables(folder: Path, expected: Content) -> None:
    """Assert that every row of the tables of a folder is a row of the expected ones."""
    loaded = ja.load(folder)
    for found, whole in zip((loaded.records, loaded.tokens), expected.tables, strict=True):
        keys = [key for key in _KEYS if key in found]
        assert not found.duplicated(keys).any(), "a row is there twice"
        if len(found):
            both = found.merge(whole, on=keys, suffixes=("", "_right"))
            assert len(both) == len(found), "rows that the study does not have"
            for name in found.columns.difference(keys):
                np.testing.assert_array_equal(both[name], both[f"{name}_right"])


def refusal(function: Callable[[], Any]) -> str:
    """Call a function. Return the one line of an InputError or a RunError, or "" if it raises none."""
    try:
        function()
    except (ja.InputError, ja.RunError) as error:
        line = str(error)
    else:
        return ""
    assert line
    return line


def bytes_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the time of the last change and the checksum of every regular file in a folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, files.digest(path.read_bytes()))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def batches(folder: Path) -> dict[str, dict[str, tuple[int, str]]]:
    """Return `bytes_of` for each finished batch, by name."""
    found = (path for path in (folder / "runs").glob("*") if memo.KEY.fullmatch(path.name))
    return {path.name: bytes_of(path) for path in found if path.is_dir() and not path.is_symlink()}


def check_leftovers(folder: Path) -> None:
    """Assert that a folder contains only finished batches."""
    names = sorted(path.name for path in (folder / "runs").iterdir())
    assert all(memo.KEY.fullmatch(name) for name in names), names
    for name in names:
        inside = {path.name for path in (folder / "runs" / name).iterdir()}
        assert inside <= COMPLETE, f"{name}: {inside - COMPLETE}"


@contextmanager
def listening() -> Iterator[list[str]]:
    """Capture the output to stderr, also that of libraries outside of Python."""
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
