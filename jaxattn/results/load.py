"""A results folder, read back: what was run, what was measured, where every token ended."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from jaxattn.errors import InputError

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


@dataclass(frozen=True)
class Results:
    """One finished run.

    Attributes:
        directory: the folder it was read from.
        manifest: what was run: name, command, config, cells and their settings, seeds, versions, failures.
        records: long form, one row per (cell, seed, phase, step, metric), with its value; NaN from
            the step on at which a seed failed.
        tokens: one row per (cell, seed, phase, token), for K > 2 classes also per class; empty if none were
            recorded.
    """

    directory: Path
    manifest: Mapping[str, Any]
    records: pd.DataFrame
    tokens: pd.DataFrame

    @property
    def phases(self) -> list[str]:
        """The phases that were recorded, in the order they ran."""
        return [str(phase) for phase in self.records["phase"].unique()]

    @property
    def cells(self) -> pd.DataFrame:
        """One row per cell: its number and its value on every axis."""
        rows = [{"cell": cell["cell"], **cell["settings"]} for cell in self.manifest["cells"]]
        return pd.DataFrame(rows, columns=["cell", *self.axes])

    @property
    def axes(self) -> list[str]:
        """The swept keys, in the order the cells name them."""
        return list(dict.fromkeys(key for cell in self.manifest["cells"] for key in cell["settings"]))

    def settings(self, cell: int) -> dict[str, Any]:
        """The value of every axis in one cell."""
        found = [entry for entry in self.manifest["cells"] if entry["cell"] == cell]
        if not found:
            raise InputError(
                f"cell {cell}: {self.directory} holds cells 0 to {len(self.manifest['cells']) - 1}"
            )
        return dict(found[0]["settings"])

    def with_axes(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Put the axis values of every row right after its cell number."""
        if not self.axes:
            return frame
        joined = frame[["cell"]].merge(self.cells, on="cell", how="left").set_index(frame.index)
        rest = [column for column in frame.columns if column != "cell"]
        return pd.concat([joined, frame[rest]], axis=1)


def load(directory: str | Path) -> Results:
    """Read a results folder.

    Args:
        directory: a folder that a finished run has written.

    Returns:
        The results, with all records and tokens in memory.

    Raises:
        InputError: no such folder, not a results folder, a run that is not finished, a damaged file.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"{directory}: no such folder; give the folder that `jaxattn run` wrote")
    if not (directory / "manifest.json").is_file():
        raise InputError(
            f"{directory}: no manifest.json, so not a results folder; give one that `jaxattn run` wrote"
        )
    manifest = _manifest(directory / "manifest.json")
    if manifest.get("status") != "finished" or not (directory / "records.parquet").is_file():
        raise InputError(f"{directory}: the run is not finished; continue it with: {command(manifest)}")
    records = _without_failures(_table(directory / "records.parquet", RECORD_COLUMNS, manifest), manifest)
    if (directory / "tokens.parquet").is_file():
        tokens = _table(directory / "tokens.parquet", TOKEN_COLUMNS, manifest)
    else:
        tokens = pd.DataFrame(columns=list(TOKEN_COLUMNS))
    return Results(directory, manifest, records, tokens)


def command(manifest: Mapping[str, Any]) -> str:
    """Return the command that made, or continues, a run."""
    given = manifest["command"]
    return given if isinstance(given, str) else shlex.join(given)


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


def _table(path: Path, columns: tuple[str, ...], manifest: Mapping[str, Any]) -> pd.DataFrame:
    remedy = f"delete it and repeat: {command(manifest)}"
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path}: damaged ({_first_line(error)}); {remedy}") from None
    missing = [column for column in columns if column not in table]
    if missing:
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
