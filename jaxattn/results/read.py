"""The tables of a results folder: merged ones of a finished run, the parts of one on its way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.storage import manifest, marks
from jaxattn.storage.manifest import command, mending
from jaxattn.storage.marks import Mark

RECORD_COLUMNS = ("cell", "seed", "phase", "step", "metric", "value")
TOKEN_COLUMNS = (
    "cell",
    "seed",
    "phase",
    "id",
    "token",
    "count",
    "class",
    "alpha",
    "posterior_difference",
    "Ep",
    "Ev",
)
COLUMNS = {"records": RECORD_COLUMNS, "tokens": TOKEN_COLUMNS}


class Folder(NamedTuple):
    """What a results folder holds; see `run.Run`."""

    manifest: dict[str, Any]
    records: pd.DataFrame
    tokens: pd.DataFrame


def read(directory: Path) -> Folder:
    """Read a results folder; nothing that it names is imported or executed.

    Args:
        directory: a folder that a run has written, or is writing.

    Returns:
        Manifest and tables. Of a run that is not finished: what its finished batches measured, and what the
        others had measured when they were last saved; its failures are those of the batches too.

    Raises:
        InputError: no such folder, not a results folder, one in which nothing was measured yet, a damaged
            file, with the command that mends it.
    """
    known = manifest.read(directory)
    with mending(known):
        tables = _merged(directory, known)
        if tables is None:
            found = _parts(directory, known)
            tables = {name: [read[name] for _, read in found] for name in COLUMNS}
            failures = [failure for mark, _ in found for failure in mark.failures]
            status = "stopped" if known["status"] == "finished" else known["status"]
            known |= {"status": status, "failures": failures}
    records, tokens = (_joined(tables[name], name, known) for name in COLUMNS)
    if records.empty:
        raise InputError(f"{directory}: the run is not finished; continue it with: {command(known)}")
    return Folder(known, _without_failures(records, known), tokens)


def _merged(directory: Path, known: Mapping[str, Any]) -> dict[str, list[pd.DataFrame]] | None:
    """Read the tables of a finished run; None if they are not there."""
    if known["status"] != "finished":
        return None
    paths = {name: directory / f"{name}.parquet" for name in known["sha256"]}
    if not paths or not all(path.exists() for path in paths.values()):
        return None
    return {
        name: [marks.read_table(paths[name], directory, known["sha256"][name])] if name in paths else []
        for name in COLUMNS
    }


def _parts(directory: Path, known: Mapping[str, Any]) -> list[tuple[Mark, dict[str, pd.DataFrame]]]:
    """Read the tables of every batch, as they were last saved."""
    found = []
    for batch in marks.batches(directory):
        if read := marks.read_with_tables(directory, batch):
            if marks.foreign(read[0], known["cells"]):
                raise InputError(
                    f"{marks.path(directory, batch)}: of another config than the manifest says; "
                    f"delete it and repeat: {command(known)}"
                )
            found.append(read)
    return found


def _joined(tables: list[pd.DataFrame], name: str, known: Mapping[str, Any]) -> pd.DataFrame:
    columns = COLUMNS[name]
    # A batch that was saved before its first measurement has tables without columns.
    tables = [table for table in tables if len(table)]
    cells = {entry["cell"] for entry in known["cells"]}
    for table in tables:
        if missing := [column for column in columns if column not in table]:
            raise InputError(f"{name}.parquet: no column {missing[0]!r}; repeat: {command(known)}")
        if strange := [column for column in columns if not _holds(table[column], column)]:
            what = f"column {strange[0]!r} holds something else than {_kind(strange[0])}"
            raise InputError(f"{name}.parquet: {what}; repeat: {command(known)}")
        if not cells.issuperset(table["cell"].unique()):
            raise InputError(f"{name}.parquet: cells that the manifest lacks; repeat: {command(known)}")
    if not tables:
        return pd.DataFrame(columns=list(columns))
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _kind(column: str) -> str:
    if column in ("phase", "metric", "token"):
        return "texts"
    return "integers" if column in ("cell", "seed", "step", "id", "count", "class") else "numbers"


def _holds(values: pd.Series, column: str) -> bool:
    """Tell whether a column holds what its name says; what is computed from it counts on that."""
    kind, of = _kind(column), values.dtype
    if kind == "integers":
        return bool(pd.api.types.is_integer_dtype(of))
    if kind == "numbers":
        return bool(pd.api.types.is_numeric_dtype(of) and not pd.api.types.is_complex_dtype(of))
    found = values.cat.categories if isinstance(of, pd.CategoricalDtype) else values
    return pd.api.types.infer_dtype(found, skipna=False) in ("string", "empty") and bool(values.notna().all())


def _without_failures(records: pd.DataFrame, manifest: Mapping[str, Any]) -> pd.DataFrame:
    # NaN logits still have an accuracy, that of guessing one class: it must not enter a mean.
    phases = list(records["phase"].unique())
    for failure in manifest["failures"]:
        if failure["phase"] not in phases:
            continue
        failed = phases.index(failure["phase"])
        after = (records["phase"] == phases[failed]) & (records["step"] >= failure["step"])
        after |= records["phase"].isin(phases[failed + 1 :])
        seed = (records["cell"] == failure["cell"]) & (records["seed"] == failure["seed"])
        records = records.assign(value=records["value"].mask(seed & after))
    return records
