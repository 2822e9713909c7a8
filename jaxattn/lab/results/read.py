"""Read the wanted runs of a results folder, and verify the checksums of its files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from jaxattn.core.errors import InputError, counted
from jaxattn.lab.storage import batch_record, files, memo, study_file
from jaxattn.lab.storage import tables as parquet
from jaxattn.lab.storage.batch_record import TABLES, BatchRecord
from jaxattn.lab.storage.captions import DRAWN, read_captions
from jaxattn.lab.storage.files import Damaged
from jaxattn.lab.storage.memo import RUNS, Partial
from jaxattn.lab.storage.study_file import damage_as_input_error, run_again
from jaxattn.lab.storage.tables import CELL_AND_SEED

# Columns of the tables, and what they contain.
_INTEGERS, _NUMBERS, _TEXTS = "integers", "numbers", "texts"
_RUN = {"cell": _INTEGERS, "seed": _INTEGERS, "phase": _TEXTS}
_COLUMNS = {
    "records": _RUN | {"step": _INTEGERS, "metric": _TEXTS, "value": _NUMBERS},
    "tokens": _RUN
    | {"id": _INTEGERS, "token": _TEXTS, "count": _INTEGERS, "class": _INTEGERS}
    | dict.fromkeys(("alpha", "posterior_difference", "Ep", "Ev"), _NUMBERS),
}
TOKEN_COLUMNS = tuple(_COLUMNS["tokens"])


class _Part:
    """The wanted runs of one batch, finished or not.

    Attributes:
        folder: folder of the batch.
        record: its record.
        runs: for each of its runs that is read from here, the cells of the study to which it belongs. The
            runs are given by their cell index and seed in the tables.
    """

    def __init__(
        self, folder: Path, record: BatchRecord, runs: Mapping[tuple[int, int], Sequence[int]]
    ) -> None:
        self.folder, self.record, self.runs = folder, record, runs

    @property
    def order(self) -> tuple[int, int]:
        return min((cells[0], seed) for (_, seed), cells in self.runs.items())

    @property
    def identities(self) -> list[tuple[str, int]]:
        keys = self.record.keys
        return [(keys[cell], seed) for cell, seed in self.runs]

    def failures(self) -> list[dict[str, Any]]:
        return [
            msgspec.to_builtins(failure) | {"cell": cell}
            for failure in self.record.failures
            for cell in self.runs.get((failure.cell, failure.seed), ())
        ]

    def table(self, name: str, directory: Path, total: "_Total") -> pd.DataFrame:
        """Return the wanted rows of a table, with the cell indices of the study."""
        path = self.folder / self.record.table_name(name)
        table = batch_record.read_table(self.folder, self.record, directory, name)
        if not len(table):
            return table
        _check(table, name, path)
        total.add_file(path)
        same = all(list(cells) == [cell] for (cell, _), cells in self.runs.items())
        if same and len(self.runs) == len(self.record.runs):
            total.add(table)
            return table
        # Repeat each row for every cell of its run. Rows of other runs have the place -1.
        runs = pd.MultiIndex.from_tuples(list(self.runs), names=list(CELL_AND_SEED))
        place = runs.get_indexer(pd.MultiIndex.from_frame(table[list(CELL_AND_SEED)]))
        lengths = [len(cells) for cells in self.runs.values()]
        copies = np.array([*lengths, 0])[place]
        total.add(table, copies.sum() / len(table))
        rows = np.repeat(np.arange(len(table)), copies)
        copy = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
        cells = np.array([cell for cells in self.runs.values() for cell in cells], np.int32)
        chosen = cells[(np.cumsum(lengths) - lengths)[place[rows]] + copy]
        return table.iloc[rows].assign(cell=chosen).reset_index(drop=True)


class _Total:
    """Memory used by tables.

    Many small files, or many cells with the same runs, could stand for any number of rows.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._files, self._used = directory, 0, 0.0

    def add_file(self, path: Path) -> None:
        with files.open_file(path, self._directory) as file:
            self._files += os.fstat(file.fileno()).st_size

    def add(self, table: pd.DataFrame, copies: float = 1.0) -> None:
        """Raise Damaged if copies of tables use too much memory for the sizes of their files."""
        self._used += copies * float(table.memory_usage(index=False).sum())
        if self._used > parquet.max_memory(self._files):
            raise Damaged(f"{self._directory}: damaged (too many rows for tables of these sizes)")


def read_results(directory: Path) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    """Read the runs that study.json of a results folder asks for, without executing anything from the folder.

    Returns:
        Manifest, records and tokens; see `run.Run`. If some runs are not finished, these contain the
        measurements up to their last checkpoint, and all failures so far.

    Raises:
        InputError: the folder does not exist, is not a results folder, or contains no measurements yet; or a
            batch with wanted runs is damaged.
    """
    with damage_as_input_error(directory):
        study = study_file.read_study(directory)
        while True:
            partials = memo.partials(directory)
            try:
                finished, others = _parts(directory, study, partials)
                parts = sorted([*finished, *others], key=lambda part: part.order)
                total = _Total(directory)
                found = [[part.table(name, directory, total) for part in parts] for name in TABLES]
                break
            except Damaged:
                # A process may have saved or finished a batch in the meantime.
                if _states(memo.partials(directory)) == _states(partials):
                    raise
        tables = {name: _joined(each, name) for name, each in zip(TABLES, found, strict=True)}
    if tables["records"].empty:
        raise InputError(f"{directory}: has no measurements yet; {run_again(directory)}")
    left = dict(study_file.wanted_runs(study))
    for part in finished:
        for run in part.identities:
            del left[run]
    started = [one for one in partials if _cells(one, left)]
    errors = [
        {"batch": one.path.name, "cells": sorted(_cells(one, left)), "reason": one.error}
        for one in started
        if one.error
    ]
    running = any(one.is_running and not one.error for one in started)
    known = study | _summary([part.record for part in parts]) | {"errors": errors}
    known["status"] = status(bool(left), running, bool(errors))
    known["failures"] = [failure for part in parts for failure in part.failures()]
    known["batches"] = [part.folder.name for part in finished]
    return known, _without_failures(tables["records"], known), tables["tokens"]


def _states(partials: Sequence[Partial]) -> list[tuple[str, int]]:
    return [(one.path.name, one.record.saved) for one in partials]


def _parts(
    directory: Path, study: Mapping[str, Any], partials: Sequence[Partial]
) -> tuple[list[_Part], list[_Part]]:
    """Return the finished batches with wanted runs, and the unfinished ones.

    Each run is in the first finished batch that contains it, or else in the unfinished one with most steps.
    `partials` was read before this call, so that a batch that is finished in the meantime is not missed.
    """
    left = dict(study_file.wanted_runs(study))
    damaged: list[Damaged] = []

    def part(folder: Path, record: BatchRecord) -> _Part | None:
        keys = record.keys
        own = {
            (cell, seed): left.pop((keys[cell], seed))
            for cell, seed in record.runs
            if (keys[cell], seed) in left
        }
        return _Part(folder, record, own) if own else None

    records = memo.finished(directory, damaged.append, left).items()
    finished = [part(directory / RUNS / name, record) for name, record in records]
    if left and damaged:
        # The runs that are missing may be in a batch whose record is damaged.
        raise damaged[0]
    saved = [one for one in partials if one.record.tables]
    saved.sort(key=lambda one: (-one.record.phase, -one.record.step))
    unfinished = [part(one.path, one.record) for one in saved]
    return [one for one in finished if one], [one for one in unfinished if one]


def _cells(one: Partial, wanted: Mapping[tuple[str, int], Sequence[int]]) -> set[int]:
    return {cell for run in one.record.identities for cell in wanted.get(run, ())}


def status(missing: bool, running: bool, failed: bool) -> str:
    """Return the status of a study: "finished", "running", "failed" or "stopped".

    Args:
        missing: some wanted runs are not finished.
        running: a process computes one of them.
        failed: a batch raised an error.
    """
    if not missing:
        return "finished"
    return "running" if running else "failed" if failed else "stopped"


def _summary(records: Sequence[BatchRecord]) -> dict[str, Any]:
    """Return how batches were computed: versions and devices of the first one, and total resources."""
    origins = [record.origin for record in records]
    first = origins[0]
    packages = [origin.package for origin in origins]
    peaks = [record.peak_memory_mib for record in records if record.peak_memory_mib is not None]
    return {
        "versions": first.versions,
        "git_commit": first.package.get("commit"),
        "made_by": [each for k, each in enumerate(packages) if each not in packages[:k]],
        "device": msgspec.to_builtins(first.device),
        "mixed": mixed(records),
        "started": min(origin.started for origin in origins),
        "wall_time_s": sum(record.wall_time_s for record in records),
        "peak_memory_mib": max(peaks, default=None),
    }


def mixed(records: Sequence[BatchRecord]) -> str:
    """Return one line if batches were computed by several versions of JAX or on several kinds of devices."""
    versions = {f"jax {record.origin.versions.get('jax')}" for record in records}
    kinds = {f"{record.origin.device.count} × {record.origin.device.kind}" for record in records}
    parts = [", ".join(sorted(each)) for each in (versions, kinds) if len(each) > 1]
    return f"computed with {'; '.join(parts)}: last digits may differ" if parts else ""


def _check(table: pd.DataFrame, name: str, path: Path) -> None:
    """Raise Damaged if no run could have written a table."""
    columns = _COLUMNS[name]
    if missing := [column for column in columns if column not in table]:
        raise Damaged(f"{path}: damaged (no column {missing[0]!r})")
    if strange := [column for column, kind in columns.items() if not _holds(table[column], kind)]:
        raise Damaged(
            f"{path}: damaged (column {strange[0]!r} contains values other than {columns[strange[0]]})"
        )
    if parquet.repeats(table, name):
        keys = ", ".join(parquet.TABLE_KEYS[name])
        raise Damaged(f"{path}: damaged (it contains two rows with the same {keys})")


def _joined(tables: list[pd.DataFrame], name: str) -> pd.DataFrame:
    # A batch saved before its first measurement has tables without columns.
    tables = [table for table in tables if len(table)]
    if not tables:
        return pd.DataFrame(columns=list(_COLUMNS[name]))
    joined = tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)
    in_order = joined["cell"].is_monotonic_increasing
    return joined if in_order else joined.sort_values("cell", kind="stable", ignore_index=True)


def _holds(values: pd.Series, kind: str) -> bool:
    of = values.dtype
    if kind == _INTEGERS:
        return bool(pd.api.types.is_integer_dtype(of))
    if kind == _NUMBERS:
        return bool(pd.api.types.is_numeric_dtype(of) and not pd.api.types.is_complex_dtype(of))
    found = values.cat.categories if isinstance(of, pd.CategoricalDtype) else values
    return pd.api.types.infer_dtype(found, skipna=False) in ("string", "empty") and bool(values.notna().all())


def _without_failures(records: pd.DataFrame, manifest: Mapping[str, Any]) -> pd.DataFrame:
    # A run with NaN logits still has an accuracy, because it predicts a single class; exclude these
    # accuracies from means.
    phase, phases = pd.factorize(records["phase"])
    order = {name: number for number, name in enumerate(phases)}
    seeds = set(manifest["seeds"])
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for failure in manifest["failures"]:
        lane = failure["cell"], failure["seed"]
        if failure["phase"] in order and failure["seed"] in seeds:
            location = order[failure["phase"]], failure["step"]
            first[lane] = min(location, first.get(lane, location))
    if not first:
        return records
    rows = [(*lane, after, float(step)) for lane, (after, step) in first.items()]
    table = pd.DataFrame(rows, columns=[*CELL_AND_SEED, "after", "from"])
    found = records[list(CELL_AND_SEED)].merge(table, how="left", on=list(CELL_AND_SEED))
    after, start = found["after"].to_numpy(float), found["from"].to_numpy(float)
    failed = (phase > after) | ((phase == after) & (records["step"].to_numpy() >= start))
    return records.assign(value=records["value"].mask(failed))


def verify(directory: Path, progress: Callable[[str, float], None] = lambda name, share: None) -> list[str]:
    """Verify the checksums of all files of a results folder, without parsing the tables.

    Args:
        directory: the folder of a finished or unfinished study.
        progress: progress callback (batch, fraction completed).

    Returns:
        One line per damaged or missing file, with a remedy.

    Raises:
        InputError: the folder is not a results folder, or a file cannot be read.
    """
    study = study_file.read_study(directory)
    damaged: list[Damaged] = []
    partials = memo.partials(directory)
    every = memo.finished(directory, damaged.append)
    for number, (name, record) in enumerate(every.items()):
        progress(name, number / len(every))
        damaged += _of_batch(directory, directory / RUNS / name, record)
    unfinished = [list(_of_batch(directory, one.path, one.record)) for one in partials]
    # A process may have saved or finished a batch in the meantime.
    now = set(_states(memo.partials(directory)))
    for state, found in zip(_states(partials), unfinished, strict=True):
        damaged += found if state in now else []
    lines = [f"{error}; {run_again(directory)}, which computes its runs again" for error in damaged]
    have = {run for record in every.values() for run in record.identities}
    missing = [run for run in study_file.wanted_runs(study) if run not in have]
    started = {run for one in partials for run in one.record.identities}
    if missing and not started.issuperset(missing):
        lines.append(f"{directory}: {counted(len(missing), 'run')} missing; {run_again(directory)}")
    return lines + [f"{error}; draw it again with: jaxattn report {directory}" for error in _drawn(directory)]


def _of_batch(directory: Path, folder: Path, record: BatchRecord) -> Iterator[Damaged]:
    from jaxattn.lab.storage import checkpoints  # imports JAX, which tables do not need

    yield from _damaged(
        directory, {folder / record.table_name(table): sha256 for table, sha256 in record.tables.items()}
    )
    if record.checkpoint is None:
        return
    location = folder / record.checkpoint_name
    try:
        checkpoints.restore(location, record.checkpoint, directory)
    except Damaged as error:
        # A run does not read large arrays of finished batches.
        yield Damaged(f"{error}; delete {location}")


def _drawn(directory: Path) -> Iterator[Damaged]:
    if not (directory / DRAWN).exists():
        return
    try:
        drawn = read_captions(directory)
    except Damaged as error:
        yield error
        return
    yield from _damaged(directory, {directory / name: sha256 for name, sha256 in drawn.sha256.items()})


def _damaged(directory: Path, sums: Mapping[Path, str]) -> Iterator[Damaged]:
    for path, sha256 in sums.items():
        try:
            files.check_file(path, directory, sha256)
        except Damaged as error:
            yield error
