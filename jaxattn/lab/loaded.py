"""Results of a run as an object with methods for tables, statistics, figures and trained parameters."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from jaxattn.core.errors import InputError
from jaxattn.lab.figures import draw as figures
from jaxattn.lab.figures.rendered import RenderedFigure
from jaxattn.lab.results import combine, statistics, tokens
from jaxattn.lab.results.labels import setting_columns
from jaxattn.lab.results.read import read_results
from jaxattn.lab.results.run import Run
from jaxattn.lab.storage.copies import naming
from jaxattn.lab.storage.folder import results_folder
from jaxattn.lab.storage.objects import is_address

if TYPE_CHECKING:  # these modules import JAX, which tables and figures do not need
    from jaxtyping import PyTree

    from jaxattn.data.splits import Splits

SHOWN_ROWS = 24


@dataclass(frozen=True, repr=False)
class Results(Run):
    """Results of a finished or unfinished run, with methods for analysis.

    The tables are attributes; see `run.Run`.
    """

    def choose(
        self,
        *,
        where: Mapping[str, object] | None = None,
        metrics: Sequence[str] = (),
        phases: Sequence[str] = (),
    ) -> "Results":
        """Return the results for the selected cells, metrics and phases; see `combine.choose`."""
        return combine.choose(self, where=where, metrics=metrics, phases=phases)

    def aggregate(
        self,
        *,
        metrics: Sequence[str] = (),
        phases: Sequence[str] = (),
        where: Mapping[str, object] | None = None,
        by: Sequence[str] = (),
        confidence: float = 0.95,
    ) -> pd.DataFrame:
        """Summarise each (cell, phase, step, metric) over seeds, with 95 % intervals.

        Args:
            metrics: names of the metrics; all if empty.
            phases: names of the phases; all if empty.
            where: required value of each config key.
            by: config keys. Cells with the same values for these keys are averaged seed by seed; see
                `combine.group`.
            confidence: coverage of the intervals.

        Returns:
            A table with the columns of `statistics.aggregate`.

        Raises:
            InputError: a key, metric or phase does not exist, or nothing matches.
        """
        chosen = self.choose(where=where, metrics=metrics, phases=phases)
        pooled = combine.group(chosen, by) if by else chosen
        return statistics.aggregate(pooled, confidence=confidence)

    def table(self, phase: str | None = None) -> pd.DataFrame:
        """Return a table with one row per run, with its settings and the metrics at the end of a phase.

        Args:
            phase: name of the phase; defaults to the last one.

        Returns:
            One row per cell and seed, with the columns cell and seed, a column for each setting, such as
            `model.dim` or `block`, and a column for each metric. If several folders are loaded, the column
            `sweep` is the name of the study. A metric that a run did not record is NaN. A setting with the
            name of a metric has the column "NAME (setting)". If runs of older code are used, the column
            `older_code` tells them apart.

        Raises:
            InputError: the phase is unknown.
        """
        chosen = self.choose(phases=[phase or self.phases[-1]])
        ends = statistics.last_steps(chosen.records)
        values = ends.pivot(index=["cell", "seed"], columns="metric", values="value")
        values = values[list(dict.fromkeys(ends["metric"]))].rename_axis(columns=None).reset_index()
        older = {cell["cell"]: cell.get("older", {}) for cell in self.manifest["cells"]}
        if any(older.values()):
            runs = zip(values["cell"], values["seed"], strict=True)
            old = [any(seed in seeds for seeds in older[cell].values()) for cell, seed in runs]
            values.insert(2, "older_code", old)
        own = self.effective_settings()
        cells = self.cells.set_index("cell")
        if any("sweep" in cell for cell in self.manifest["cells"]):
            cells["sweep"] = [cell["sweep"] for cell in self.manifest["cells"]]
        own = cells[cells.columns.difference(own.columns, sort=False)].join(own).reset_index()
        own = own.rename(columns=setting_columns(own, set(ends["metric"])))
        return values[["cell", "seed"]].merge(own, on="cell").join(values.drop(columns=["cell", "seed"]))

    def summary(self, *, metrics: Sequence[str] = (), statistic: str = "mean") -> pd.DataFrame:
        """Return the statistics at the last step of each phase as a table; see `statistics.summary_table`."""
        return statistics.summary_table(self, metrics=metrics or None, statistic=statistic)

    def pair(
        self,
        key: str,
        first: object,
        second: object,
        *,
        metrics: Sequence[str] = (),
        phases: Sequence[str] = (),
        where: Mapping[str, object] | None = None,
        confidence: float = 0.95,
    ) -> pd.DataFrame:
        """Compare two values of a swept key: summarise the differences second - first, seed by seed.

        The keyword arguments are those of `aggregate`.

        Returns:
            A table with the columns of `statistics.aggregate`, and one row per (setting of the other axes,
            phase, step, metric).

        Raises:
            InputError: the key is not swept, or no cells can be paired.
        """
        chosen = self.choose(where=where, metrics=metrics, phases=phases)
        differences = combine.paired(chosen, key, first, second)
        return statistics.aggregate(differences, confidence=confidence)

    def top_tokens(
        self, *, phase: str | None = None, cell: int = 0, number: int = 20, min_count: int = 1
    ) -> pd.DataFrame:
        """Return the tokens with the largest E·p after a phase, by default the last; see `tokens.top`."""
        ends = tokens.final_tokens(self, phase=phase, cell=cell)
        return tokens.with_classes(tokens.top(ends, count=number, min_count=min_count), ends.names)

    def figure(self, kind: str | Callable[..., object], **options: object) -> RenderedFigure:
        """Draw a figure with its caption, for display in a notebook.

        Args:
            kind: a short name from `kinds.FIGURES`, or a function (results, **options) that returns a
                `RenderedFigure` or a matplotlib figure.
            options: options of the figure.

        Raises:
            InputError: a kind or option is unknown, or the run lacks the required data.
        """
        if callable(kind):
            return figures.draw_custom_figure(self, kind, options)
        return figures.draw_figure(self, {"kind": kind, **options})

    def params(
        self,
        *,
        cell: int = 0,
        seed: int | None = None,
        phase: str | None = None,
        step: Literal[0] | None = None,
        model: object = None,
    ) -> "PyTree":
        """Return the parameters of one seed of one cell, before or after a phase.

        Args:
            cell: index of the cell.
            seed: the seed; defaults to the first one.
            phase: name of the phase; defaults to the last one, or to the first one if `step` is given.
            step: 0 for the parameters at the start of the phase. Initial parameters are recomputed from the
                study and the seed; they are not stored.
            model: the class or function of the run's model, if it is custom and was not run in this session.
                It gets the settings of the run. An object is accepted if it has these settings. By default,
                the result is then a nested dictionary.

        Returns:
            A frozen pytree of JAX arrays, with the parameters as attributes. For adapters of
            `jaxattn.models`, what the library takes: the nested dictionary of
            `module.apply({"params": ...}, x)` for Linen, and a module for NNX and Equinox. For a float64 run
            the arrays are float64, so compute with them under jax.enable_x64(True).

        Raises:
            InputError: the cell, seed or phase is unknown; the checkpoint is missing or damaged; the
                settings or parameters of `model` differ from those of the run; or the initial parameters of a
                loaded folder depend on custom code or a data file.

        Warns:
            UserWarning: the code of `model` has another hash than the code of the run.
        """
        from jaxattn.lab.results.params import params_of  # imports JAX, which tables and figures do not need

        return params_of(self, cell=cell, seed=seed, phase=phase, step=step, model=model)

    def dataset(self, seed: int = 0, cell: int = 0) -> "Splits":
        """Return the data for one seed of one cell, exactly as used in the run.

        Returns:
            Training, test and validation data, and statistics of the training
            tokens.

        Raises:
            InputError: the cell or seed is unknown; or the results were loaded from a folder, and the data
                come from files or user-defined code.
        """
        # The module imports JAX, which tables and figures do not need.
        from jaxattn.lab.results.rebuilt import dataset_of_run

        return dataset_of_run(self, seed=seed, cell=cell)

    def _repr_html_(self) -> str:
        failed = len(self.manifest.get("failures", []))
        facts = {
            "": str(self.directory),
            "status": self.manifest.get("status", "unknown"),
            "cells × seeds": f"{len(self.manifest['cells'])} × {len(self.manifest['seeds'])}",
            "phases": ", ".join(self.phases),
            "swept": ", ".join(self.axes),
            "randomness": self.held,
            "failed seeds": str(failed) if failed else "",
            "source": self.made_by,
        }
        words = "; ".join(f"{name}: {fact}".removeprefix(": ") for name, fact in facts.items() if fact)
        table = self.summary().to_html(index=False, border=0, max_rows=SHOWN_ROWS)
        title = escape(statistics.summary_title(self))
        return f"<b>{escape(self.manifest['name'])}</b> ({escape(words)})<br>{title}{table}"


def load(directory: str | Path | Sequence[str | Path]) -> Results:
    """Load one or several results folders, without importing or executing code from them.

    Args:
        directory: folder or bucket URL of a finished or running study. If the study is still running, the
            measurements available so far are read, and `finished` is False. A path may contain wildcards, as
            in "results/night-*". Several folders are merged; see `combine.combine`.

    Returns:
        The results, with all records and tokens in memory.

    Raises:
        InputError: a folder does not exist, is not a results folder, contains no measurements yet, or
            contains a damaged file; or two folders contain the same seed of the same cell.
    """
    folders = list(_folders([directory] if isinstance(directory, str | Path) else directory))
    if not folders:
        raise InputError("expected at least one results folder, for example 'results/quickstart'")
    return combine.combine([_load(folder) for folder in folders])


def _folders(directories: Iterable[str | Path]) -> Iterator[str | Path]:
    for directory in directories:
        if not set(str(directory)) & set("*?[") or is_address(directory) or Path(directory).exists():
            yield directory
        elif found := sorted(glob(str(directory))):
            yield from map(Path, found)
        else:
            raise InputError(f"{directory}: no folder matches")


def _load(directory: str | Path) -> Results:
    with naming():
        directory = results_folder(directory).fetch("tables")
        return Results(directory, *read_results(directory))
