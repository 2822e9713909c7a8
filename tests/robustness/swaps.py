"""Batches in place of others, between seeds, cells and configs: rejected, recomputed, or identical.

Commit records, tables and checkpoints are copied, swapped or renamed, together or separately. Folders are
finished or unfinished, of this version or of 0.2, whose commit records lack the name of their batch.
"""

import json
import random
import re
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
from damages import SAVING, SMALL, Words, _listening

import jaxattn as ja
from jaxattn.core import pytrees
from jaxattn.core.errors import InputError
from jaxattn.lab.engine import run as engine
from jaxattn.lab.engine.monitor import Interrupted
from jaxattn.lab.results.read import verify
from jaxattn.lab.storage import batch_state, files

TRIAL_RUNS = [(cell, seed) for cell in (0, 1) for seed in (0, 1)]
# Name of a batch that no run here has.
BESIDE = ("cells-00000-00000-seeds-00002-00002", "cells-00001-00001-seeds-00005-00005")
WHAT = (("mark", "tables", "checkpoint"), ("mark", "tables"), ("mark",), ("tables",), ("checkpoint",))
HOW = ("copied", "copied", "swapped", "renamed")


class Found(NamedTuple):
    """Tables sorted by their keys, and the parameters of every seed of every cell."""

    records: pd.DataFrame
    tokens: pd.DataFrame
    params: tuple[Any, ...]


def attack(count: int, seed: int) -> dict[str, int]:
    """Replace batches by others `count` times; read, verify and run the folder each time.

    Returns:
        Number of times of each outcome.

    Raises:
        AssertionError: different numbers, an exception, or a traceback.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        _make(root, stack)
        expected = _found(root / "finished")
        for number in range(count):
            drawn = random.Random(f"swap {seed} {number}")
            state, old = drawn.choice(["finished", "half"]), drawn.random() < 0.5
            folder = shutil.copytree(root / state, root / "damaged")
            source = root / drawn.choice(["finished", "finished", "config", "wide"])
            words = _swap(folder, source, drawn)
            if old:
                _as_of_version_02(folder)
            case = f"seed {seed}, swap {number}: {words}, {state}{', 0.2' if old else ''}"
            try:
                with _listening() as heard:
                    outcome = _suffer(folder, expected)
                assert "Traceback" not in heard[0], heard[0]
            except Exception as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            outcomes[outcome] += 1
            shutil.rmtree(folder)
            print(f"{number + 1} of {count}: {case}: {outcome}", file=sys.stderr, flush=True)
    return dict(sorted(outcomes.items()))


@cache
def _study(steps: int = 3, seeds: int = 2, chunk: int = 1) -> ja.Study:
    tree = tomllib.loads(SMALL.read_text(encoding="utf-8"))
    tree["phases"][1]["steps"] = steps
    return ja.Study.of_tables(tree | {"seeds": seeds, "chunk": chunk, "axes": {"model.dim": [8, 16]}})


def _make(root: Path, stack: ExitStack) -> None:
    """Make the folders to damage, and the folders from which batches are taken."""
    other = {"config": _study(steps=4), "wide": _study(seeds=4, chunk=2)}
    for name, study in other.items():
        with Words() as words:
            engine.run_study(study, root / name, command="x", reporter=words, intervals=SAVING)
    groups, programs = engine.compile_groups(_study().cells), engine.ProgramCache()
    stack.enter_context(mock.patch.object(engine, "compile_groups", return_value=groups))
    stack.enter_context(mock.patch.object(engine, "ProgramCache", return_value=programs))
    _run(root / "finished")
    try:
        _run(root / "half", steps=12)
    except Interrupted:
        return
    raise AssertionError("the run was not stopped")


def _run(folder: Path, steps: int = -1) -> None:
    with Words(steps) as words:
        engine.run_study(_study(), folder, command="the same command", reporter=words, intervals=SAVING)


def _swap(folder: Path, source: Path, drawn: random.Random) -> str:
    """Put a batch, or parts of it, under the name of another batch."""
    batches = batch_state.batches(source)
    taken, victims = drawn.choice(batches), [*batch_state.batches(folder), *BESIDE, *batches]
    target = drawn.choice([name for name in victims if source.name != "finished" or name != taken])
    what, how = drawn.choice(WHAT), drawn.choice(HOW)
    if not (folder / "parts" / f"{taken}.json").exists() or source.name != "finished":
        how = "copied"
    origin = source if how == "copied" else folder
    kept = folder / "kept"
    pieces = [(piece, _paths(origin, taken, piece), _paths(folder, target, piece)) for piece in what]
    for _, mine, theirs in pieces:
        for path in theirs:
            _move(path, kept / path.relative_to(folder))
        for path in mine:
            place = folder / re.sub(taken, target, str(path.relative_to(origin)))
            (shutil.copytree if path.is_dir() else shutil.copy)(path, _made(place))
            if how != "copied":
                _move(path, kept / "mine" / path.name)
        if how == "swapped":
            for path in theirs:
                place = re.sub(target, taken, str(path.relative_to(folder)))
                _move(kept / path.relative_to(folder), folder / place)
    shutil.rmtree(kept, ignore_errors=True)
    return f"{'+'.join(what)} of {taken} of {source.name} {how} to {target}"


def _paths(folder: Path, batch: str, piece: str) -> list[Path]:
    if piece == "checkpoint":
        place = folder / "checkpoints" / batch
        return [place] if place.exists() else []
    ending = "json" if piece == "mark" else "*.parquet"
    return sorted((folder / "parts").glob(f"{batch}.{ending}"))


def _made(place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _move(path: Path, place: Path) -> None:
    path.replace(_made(place))


def _as_of_version_02(folder: Path) -> None:
    for path in (folder / "parts").glob("*.json"):
        content = files.unsealed(json.loads(path.read_bytes()))
        content.pop("batch", None)
        path.write_bytes(files.sealed(content))


def _suffer(folder: Path, expected: Found) -> str:
    """Read, verify and run a folder; return the outcome."""
    named = bool(verify(folder)) + sum(_refused(read, folder, expected) for read in (_tables, _params))
    if reason := _refused_run(folder):
        assert "different config" in reason, reason
        assert named, "refused by the run alone"
        return "refused as another config"
    _compare(_tables(folder), expected, whole=True)
    if lines := verify(folder):
        # A run does not read the checkpoints of finished batches.
        for line in lines:
            Path(line.partition("; delete ")[2].partition(";")[0]).unlink()
        _run(folder)
    assert verify(folder) == []
    _compare(_found(folder), expected, whole=True)
    return "reported, recomputed" if named else "of no consequence"


def _refused(read: Callable[[Path], Found], folder: Path, expected: Found) -> bool:
    """Read a folder: the result is correct, or an error in one line, for which True is returned."""
    try:
        found = read(folder)
    except InputError as error:
        return _is_one_line(str(error))
    _compare(found, expected, whole=False)
    return False


def _is_one_line(text: str) -> bool:
    assert "\n" not in text, text
    return True


def _refused_run(folder: Path) -> str:
    try:
        _run(folder)
    except InputError as error:
        return str(error)
    return ""


def _found(folder: Path) -> Found:
    return Found(*_tables(folder)[:2], _params(folder).params)


def _tables(folder: Path) -> Found:
    results = ja.load(folder)
    return Found(_sorted(results.records), _sorted(results.tokens), ())


def _params(folder: Path) -> Found:
    results = ja.load(folder)
    every = tuple(results.params(cell=cell, seed=seed) for cell, seed in TRIAL_RUNS)
    return Found(results.records[:0], results.tokens[:0], every)


def _sorted(table: pd.DataFrame) -> pd.DataFrame:
    keys = [key for key in ("cell", "seed", "phase", "step", "metric", "id", "class") if key in table]
    return table.sort_values(keys, ignore_index=True)


def _compare(found: Found, expected: Found, *, whole: bool) -> None:
    """Assert that the numbers agree; an unfinished run has some of them."""
    for mine, theirs in zip(found[:2], expected[:2], strict=True):
        if whole:
            pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
        elif len(mine):
            keys = [
                key
                for key in mine.columns
                if key in ("cell", "seed", "phase", "step", "metric", "id", "class")
            ]
            assert not mine.duplicated(keys).any(), "a row is there twice"
            both = mine.merge(theirs, on=keys, suffixes=("", "_right"))
            assert len(both) == len(mine), "rows that the run does not have"
            for name in mine.columns.difference(keys):
                np.testing.assert_array_equal(both[name], both[f"{name}_right"])
    for one, other in zip(found.params, expected.params, strict=False):
        for name in pytrees.names(other):
            np.testing.assert_array_equal(pytrees.get(one, name), pytrees.get(other, name))
