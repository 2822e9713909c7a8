"""Runs read from a results folder: settings, records and token tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.core.settings import class_name
from jaxattn.lab.results.labels import (
    CUSTOM_SCORES,
    NOT_HELD,
    SCORES,
    VALUES,
    held_text,
    metric_label,
    ranges_text,
    setting,
)
from jaxattn.lab.storage import provenance
from jaxattn.lab.storage.study_file import run_command
from jaxattn.lab.study.effective import as_written, effective_tables, settings_table

# One object for all cells, so that cells with the same declarations are recognised.
NONE: Mapping[str, Any] = MappingProxyType({})
_FAILURES = ("cell", "seed", "phase", "step", "reason")


@dataclass(frozen=True, repr=False)
class Run:
    """A finished or unfinished run.

    Attributes:
        directory: folder from which the run was read.
        manifest: description of the run: name, command, config, cells and their settings, seeds, versions,
            failures.
        records: long-form table with one row per (cell, seed, phase, step, metric) and its value, which is
            NaN from the step at which the seed failed.
        tokens: one row per (cell, seed, phase, token), and per class for K > 2 classes; may be empty.
        study: the study, if it was run in this session, else None. A folder contains only the names of
            custom code.
    """

    directory: Path
    manifest: Mapping[str, Any]
    records: pd.DataFrame
    tokens: pd.DataFrame
    study: Any = None

    @property
    def finished(self) -> bool:
        """Return True if the run is complete."""
        return self.manifest.get("status") == "finished"

    @property
    def phases(self) -> list[str]:
        """Return the phases that have records, in run order."""
        return [str(phase) for phase in self.records["phase"].unique()]

    @property
    def cells(self) -> pd.DataFrame:
        """Return a table with one row per cell: its index and its axis values.

        If any cell holds randomness fixed, the column `hold` lists the sources that are shared by all seeds.
        """
        rows = [
            {"cell": cell["cell"], **cell["settings"], "hold": ", ".join(cell.get("hold", ()))}
            for cell in self.manifest["cells"]
        ]
        held = ["hold"] if any(row["hold"] for row in rows) else []
        return pd.DataFrame(rows, columns=["cell", *self.axes, *held])

    @property
    def axes(self) -> list[str]:
        """Return the swept keys in the order in which they appear in the cells."""
        return list(self._axes)

    @cached_property
    def _axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for cell in self.manifest["cells"] for key in cell["settings"]))

    @property
    def derived(self) -> list[str]:
        """Return descriptions of the operations applied to the recorded values; empty if there were none."""
        return list(self.manifest.get("derived", []))

    @property
    def failures(self) -> pd.DataFrame:
        """Return a table with one row per failed seed: cell, seed, phase, step and reason."""
        return pd.DataFrame(self.manifest.get("failures", []), columns=list(_FAILURES))

    def settings(self, cell: int) -> dict[str, int | float | str | bool]:
        """Return the axis values of a cell."""
        return dict(self.entry(cell)["settings"])

    def lookup(self, cell: int, key: str) -> Any:
        """Return the value of a config key in a cell. List entries are addressed by name or index.

        The value is None for a key that is swept, but not set in this cell.

        Raises:
            InputError: the cell or key does not exist.
        """
        entry = self.entry(cell)
        if key in entry["settings"]:
            return entry["settings"][key]
        if (value := find_cell(self.tables(cell), key)) is None and key not in self.axes:
            swept = ", ".join(self.axes) or "none"
            raise InputError(f"{key}: no such key in the config of {self.directory}; swept keys: {swept}")
        return value

    def tables(self, cell: int) -> Mapping[str, Any]:
        """Return the tables of all settings with which a cell ran, including the defaults of its kinds."""
        if cell not in self._known:
            self._known[cell] = as_written(effective_tables(self.config(cell), self.entry(cell)))
        return self._known[cell]

    def effective_settings(self) -> pd.DataFrame:
        """Return the settings with which each cell ran, as a table with one row per cell.

        Columns are dotted keys of data, model, loss, phases and probes, after blocks, axes and defaults, such
        as `model.dim` or `phases.query.step_size`. A key that a cell does not have is None there.
        """
        return settings_table({cell: self.tables(cell) for cell in self._entries})

    @cached_property
    def _known(self) -> dict[int, Any]:
        return {}

    def class_names(self, cell: int) -> tuple[str, ...]:
        """Return the class names of a cell's corpus, with the negative class first; empty if unknown."""
        tables = self.tables(cell)
        names = find_cell(tables, "data.class_names") or find_cell(tables, "data.labels")
        return tuple(map(class_name, names)) if isinstance(names, list | tuple) else ()

    def hold(self, cell: int) -> Sequence[str]:
        """Return the sources of randomness that all seeds of a cell share."""
        found: Sequence[str] = self.entry(cell).get("hold", ())
        return found

    def labels(self, cell: int) -> Mapping[str, str]:
        """Return the labels of metrics that the study of a cell declares, keyed by metric."""
        found: Mapping[str, str] = self.entry(cell).get("labels", self.manifest.get("labels", NONE))
        return found

    def scales(self, cell: int) -> Mapping[str, Sequence[str | float | None]]:
        """Return the scales (kind, low, high) that the study of a cell declares, keyed by metric."""
        shared = self.manifest.get("scales", NONE)
        found: Mapping[str, Sequence[str | float | None]] = self.entry(cell).get("scales", shared)
        return found

    def label(self, metric: str) -> str:
        """Return the figure label for a metric; see `labels.metric_label`.

        A metric for which merged studies declare different labels is labelled by its name.
        """
        return metric_label(metric, self.declared_labels).replace(VALUES["Ep"], self._scores)

    @cached_property
    def declared_labels(self) -> Mapping[str, str]:
        """Labels of metrics on which all studies that declare one agree, keyed by metric."""
        every = {id(found): found for found in map(self.labels, self._entries)}.values()
        known: dict[str, set[str]] = {}
        for name, label in (pair for found in every for pair in found.items()):
            known.setdefault(name, set()).add(label)
        return {name: labels.pop() for name, labels in known.items() if len(labels) == 1}

    @cached_property
    def _scores(self) -> str:
        found = {self.score_names(entry["cell"])[1] for entry in self.manifest["cells"]}
        return found.pop() if len(found) == 1 else CUSTOM_SCORES[1]

    def cell_words(self, cell: int) -> str:
        """Return a caption phrase that identifies a cell, or "" if there is only one cell."""
        if len(self.manifest["cells"]) == 1:
            return ""
        settings = ", ".join(f"{axis} = {setting(value)}" for axis, value in self.settings(cell).items())
        return f", cell {cell} of {len(self.manifest['cells'])} ({settings})"

    @property
    def older(self) -> str:
        """Return a phrase that lists the runs of older code, or "" if there are none."""
        cells = {cell["cell"]: cell["older"] for cell in self.manifest["cells"] if cell.get("older")}
        parts = [
            f"cell {number}: seeds {ranges_text(sorted(seed for seeds in own.values() for seed in seeds))}"
            for number, own in cells.items()
        ]
        return f"computed by older code: {'; '.join(parts)}" if parts else ""

    @property
    def held(self) -> str:
        """Return a phrase that lists the sources of randomness that all seeds share and those that vary.

        Return "" if none is shared.
        """
        cells: dict[str, list[int]] = {}
        for cell in self.manifest["cells"]:
            words = held_text(cell.get("hold", ()), cell.get("varies", ()))
            cells.setdefault(words, []).append(cell["cell"])
        if len(cells) == 1:
            return next(iter(cells))
        return "; ".join(f"cell {ranges_text(own)}: {words or NOT_HELD}" for words, own in cells.items())

    def score_names(self, cell: int) -> tuple[str, str]:
        """Return two names for the token scores of a cell's model: one for captions and one for figures."""
        try:
            kind = str(self.lookup(cell, "model.kind"))
        except InputError:
            kind = ""
        return CUSTOM_SCORES if ":" in kind else SCORES.get(kind, ("E·p", VALUES["Ep"]))

    def __repr__(self) -> str:
        sizes = f"{len(self.manifest['cells'])} × {len(self.manifest['seeds'])} cells × seeds"
        words = sizes, f"{len(self.records):,} records", self.manifest.get("status", "unknown")
        return f"{type(self).__name__}({str(self.directory)!r}, {', '.join(words)})"

    def with_axes(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Insert the columns of `cells` into a table: for each row, the axis values and `hold` of its cell.

        The columns are inserted after the cell index.
        """
        if len((cells := self.cells).columns) == 1:
            return frame
        joined = frame[["cell"]].merge(cells, on="cell", how="left").set_index(frame.index)
        rest = frame.columns.difference(joined.columns, sort=False)
        return pd.concat([joined, frame[rest]], axis=1)

    @property
    def command(self) -> str:
        """Return the command that was recorded for the run."""
        return run_command(self.manifest)

    @property
    def made_by(self) -> str:
        """Return a note if the run was produced by code other than the installed version, else ""."""
        return provenance.version_warning(provenance.package_versions(self.manifest))

    def config(self, cell: int) -> Mapping[str, Any]:
        """Return the config of a cell's study, without the settings of its block and axes."""
        config: Mapping[str, Any] = self.entry(cell).get("config", self.manifest["config"])
        return config

    def config_hash(self, cell: int) -> str | None:
        """Return the hash of the settings that determine a cell's results, or None if it was not recorded."""
        found: str | None = self.entry(cell).get("config_hash")
        return found

    def entry(self, cell: int) -> Mapping[str, Any]:
        """Return the entry of a cell in the manifest; raise InputError if the cell does not exist."""
        if cell not in self._entries:
            raise InputError(
                f"cell {cell}: {self.directory} has only cells {ranges_text(list(self._entries))}"
            )
        return self._entries[cell]

    @cached_property
    def _entries(self) -> Mapping[int, Mapping[str, Any]]:
        return {entry["cell"]: entry for entry in self.manifest["cells"]}


def _places(entries: Sequence[Any]) -> dict[str, int]:
    """Return the positions of list entries, keyed by index and by name; a name takes precedence."""
    names = {
        str(entry["name"]): k
        for k, entry in enumerate(entries)
        if isinstance(entry, Mapping) and "name" in entry
    }
    return {str(k): k for k in range(len(entries))} | names


def find_cell(tree: Any, key: str) -> Any:
    """Return the value at a dotted key, or None if the key does not exist.

    List entries are addressed by index or name.
    """
    for part in key.split("."):
        if isinstance(tree, list | tuple):
            place = _places(tree).get(part)
            tree = None if place is None else tree[place]
        else:
            tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree
