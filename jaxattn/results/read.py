"""The files of a results folder: the manifest, the tables of a finished run, the parts of one on its way."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from jaxattn.errors import InputError
from jaxattn.results.run import command

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
            file.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such folder; give the folder that `jaxattn run` wrote")
    if not (directory / "manifest.json").is_file():
        raise InputError(
            f"{directory}: no manifest.json, so not a results folder; give one that `jaxattn run` wrote"
        )
    manifest = _manifest(directory / "manifest.json")
    if manifest.get("status") == "finished" and (directory / "records.parquet").is_file():
        tables = {name: [directory / f"{name}.parquet"] for name in COLUMNS}
    else:
        tables = _parts(directory)
        if not tables["records"]:
            raise InputError(f"{directory}: the run is not finished; continue it with: {command(manifest)}")
        status = "stopped" if manifest.get("status") == "finished" else manifest.get("status", "stopped")
        manifest |= {"status": status, "failures": _failures(directory)}
    records, tokens = (
        _joined([path for path in paths if path.is_file()], COLUMNS[name], manifest)
        for name, paths in tables.items()
    )
    if records.empty:
        raise InputError(f"{directory}: the run is not finished; continue it with: {command(manifest)}")
    return Folder(manifest, _without_failures(records, manifest), tokens)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read ({_first_line(error)}); run the sweep again to rewrite it"
        ) from None
    needed = ("name", "command", "config", "cells", "seeds")
    missing = [key for key in needed if key not in manifest] if isinstance(manifest, dict) else list(needed)
    if missing:
        raise InputError(f"{path}: no {missing[0]!r}, so not the manifest of a run; give another folder")
    return manifest


def _parts(directory: Path) -> dict[str, list[Path]]:
    """The tables of every batch: whole if it has its mark, else as they were last saved."""
    parts = directory / "parts"
    whole = {path.stem for path in parts.glob("cells-*.json")}
    partial = {path.name.partition(".")[0] for path in parts.glob("cells-*.records.partial.parquet")} - whole
    return {
        table: [
            parts / f"{batch}.{table}{'' if batch in whole else '.partial'}.parquet"
            for batch in sorted(whole | partial)
        ]
        for table in COLUMNS
    }


def _failures(directory: Path) -> list[dict[str, Any]]:
    """The failures of every batch: by its mark, else by its last line in metrics.jsonl."""
    found: dict[str, list[dict[str, Any]]] = {}
    with suppress(OSError):
        for line in (directory / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
            # The last line may be half written.
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                found[entry["batch"]] = list(entry["failures"])
    for path in (directory / "parts").glob("cells-*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found[path.stem] = list(json.loads(path.read_text(encoding="utf-8"))["failures"])
    return [failure for batch in sorted(found) for failure in found[batch]]


def _joined(paths: list[Path], columns: tuple[str, ...], manifest: Mapping[str, Any]) -> pd.DataFrame:
    tables = [table for table in (_table(path, columns, manifest) for path in paths) if len(table)]
    if not tables:
        return pd.DataFrame(columns=list(columns))
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _table(path: Path, columns: tuple[str, ...], manifest: Mapping[str, Any]) -> pd.DataFrame:
    remedy = f"delete it and repeat: {command(manifest)}"
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged ({_first_line(error)}); {remedy}") from None
    missing = [column for column in columns if column not in table]
    # A batch that was saved before its first measurement has tables without columns.
    if missing and len(table.columns):
        raise InputError(f"{path}: no column {missing[0]!r}; {remedy}")
    return table


def _without_failures(records: pd.DataFrame, manifest: Mapping[str, Any]) -> pd.DataFrame:
    # NaN logits still have an accuracy, that of guessing one class: it must not enter a mean.
    phases = list(records["phase"].unique())
    for failure in manifest.get("failures", []):
        if failure["phase"] not in phases:
            continue
        failed = phases.index(failure["phase"])
        after = (records["phase"] == phases[failed]) & (records["step"] >= failure["step"])
        after |= records["phase"].isin(phases[failed + 1 :])
        seed = (records["cell"] == failure["cell"]) & (records["seed"] == failure["seed"])
        records = records.assign(value=records["value"].mask(seed & after))
    return records


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
