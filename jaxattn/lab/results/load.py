"""Results of a run as an object: tables, statistics, figures and trained parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from jaxattn.lab.results import combine, figures, statistics, tokens
from jaxattn.lab.results.drawn import Drawn
from jaxattn.lab.results.read import read
from jaxattn.lab.results.run import Run
from jaxattn.lab.storage.bucket import fetched, naming

SHOWN_ROWS = 24


@dataclass(frozen=True, repr=False)
class Results(Run):
    """One run, finished or not, with what can be asked of it; the tables are attributes of `run.Run`."""

    def choose(
        self,
        *,
        where: Mapping[str, Any] | None = None,
        metrics: Sequence[str] = (),
        phases: Sequence[str] = (),
    ) -> "Results":
        """Keep some cells, metrics and phases; see `combine.choose`."""
        return combine.choose(self, where=where, metrics=metrics, phases=phases)

    def aggregate(
        self,
        *,
        metrics: Sequence[str] = (),
        phases: Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
        by: Sequence[str] = (),
        seed: int = 0,
        resamples: int = 2000,
        confidence: float = 0.95,
    ) -> pd.DataFrame:
        """Summarise every (cell, phase, step, metric) over seeds, with 95 % intervals.

        Args:
            metrics: names; all if empty.
            phases: names; all if empty.
            where: values that keys of a cell's config must have.
            by: average, seed by seed, over the cells that agree in these keys of the config; see
                `combine.group`.
            seed: seed of the bootstrap, which interquartile means have.
            resamples: number of resamples.
            confidence: coverage of the intervals.

        Returns:
            The columns of `statistics.aggregate`.

        Raises:
            InputError: a key, metric or phase that does not exist, or nothing left.
        """
        chosen = self.choose(where=where, metrics=metrics, phases=phases)
        pooled = combine.group(chosen, by) if by else chosen
        return statistics.aggregate(pooled, seed=seed, resamples=resamples, confidence=confidence)

    def summary(self, *, metrics: Sequence[str] = (), statistic: str = "mean") -> pd.DataFrame:
        """Lay out the last step of each phase for reading; see `statistics.summary_table`."""
        return statistics.summary_table(self, metrics=metrics or None, statistic=statistic)

    def pair(
        self,
        key: str,
        first: Any,
        second: Any,
        *,
        metrics: Sequence[str] = (),
        phases: Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
        seed: int = 0,
        resamples: int = 2000,
        confidence: float = 0.95,
    ) -> pd.DataFrame:
        """Summarise the differences second - first between two values of a swept key, seed by seed.

        Args:
            key: a swept key.
            first: the value that is subtracted.
            second: the value it is subtracted from.
            metrics: as `aggregate`.
            phases: as `aggregate`.
            where: as `aggregate`.
            seed: as `aggregate`.
            resamples: as `aggregate`.
            confidence: as `aggregate`.

        Returns:
            The columns of `statistics.aggregate`, one row per (setting of the other axes, phase, step,
            metric).

        Raises:
            InputError: a key that is not swept, or no pair of cells.
        """
        chosen = self.choose(where=where, metrics=metrics, phases=phases)
        differences = combine.paired(chosen, key, first, second)
        return statistics.aggregate(differences, seed=seed, resamples=resamples, confidence=confidence)

    def top_tokens(
        self, *, phase: str | None = None, cell: int = 0, number: int = 20, min_count: int = 1
    ) -> pd.DataFrame:
        """List the tokens with the largest E·p after a phase, the last one if None; see `tokens.top`."""
        ends = tokens.at_end(self, phase=phase, cell=cell)
        return tokens.with_classes(tokens.top(ends, count=number, min_count=min_count), ends.names)

    def figure(self, kind: str | Callable[..., Any], **options: Any) -> Drawn:
        """Draw a figure.

        Args:
            kind: a short name, one of `figures.KINDS`, or a function (results, **options) that returns a
                `Drawn` or a matplotlib figure.
            options: those of the kind.

        Returns:
            The figure with its words; a notebook shows it.

        Raises:
            InputError: an unknown kind or option, or one that this run cannot show.
        """
        if callable(kind):
            return figures.draw_own(self, kind, options)
        return figures.draw(self, {"kind": kind, **options})

    def params(
        self, *, cell: int = 0, seed: int | None = None, phase: str | None = None, model: Any = None
    ) -> Any:
        """Read the parameters that one seed of one cell had after a phase.

        Args:
            cell: which cell.
            seed: which seed; the first one by default.
            phase: which phase; the last one by default.
            model: gives the result the type of its own parameters: an object with
                init(key, like, *, dtype). By default that of the run, if it is built in
                or was run in this session, else they are a `params.Parameters`.

        Returns:
            A frozen pytree of JAX arrays, with the parameters as attributes. Those of a run in float64 are
            in float64: compute with them under jax.enable_x64(True).

        Raises:
            InputError: an unknown cell, seed or phase, no checkpoint, a damaged one, another model.
        """
        from jaxattn.lab.results.params import trained  # imports JAX, which tables and figures do not need

        return trained(self, cell=cell, seed=seed, phase=phase, model=model)

    def dataset(self, seed: int = 0, cell: int = 0) -> Any:
        """Return the data of one seed of one cell, as the run had them; see `params.dataset`.

        Args:
            seed: which seed of the run.
            cell: which cell.

        Returns:
            A `jaxattn.data.Splits`: train, test and validation corpus, and statistics of the training tokens.

        Raises:
            InputError: an unknown cell or seed; of a folder that was loaded, data that are read from files or
                drawn by code of somebody's own.
        """
        from jaxattn.lab.results.params import dataset  # imports JAX, which tables and figures do not need

        return dataset(self, seed=seed, cell=cell)

    def _repr_html_(self) -> str:
        failed = len(self.manifest.get("failures", []))
        facts = {
            "": str(self.directory),
            "status": self.manifest.get("status", "unknown"),
            "cells × seeds": f"{len(self.manifest['cells'])} × {len(self.manifest['seeds'])}",
            "phases": ", ".join(self.phases),
            "swept": ", ".join(self.axes),
            "failed seeds": str(failed) if failed else "",
            "source": self.made_by,
        }
        words = "; ".join(f"{name}: {fact}".removeprefix(": ") for name, fact in facts.items() if fact)
        table = self.summary().to_html(index=False, border=0, max_rows=SHOWN_ROWS)
        title = escape(statistics.summary_title(self))
        return f"<b>{escape(self.manifest['name'])}</b> ({escape(words)})<br>{title}{table}"


def load(directory: str | Path) -> Results:
    """Read a results folder; nothing that it names is imported or executed.

    Args:
        directory: a folder that a run has written, or is writing, or its address in a bucket; what was
            measured so far is read, and `finished` tells which.

    Returns:
        The results, with all records and tokens in memory.

    Raises:
        InputError: no such folder, not a results folder, one in which nothing was measured yet, a damaged
            file.
    """
    with naming():
        directory = fetched(directory)
        return Results(directory, *read(directory))
