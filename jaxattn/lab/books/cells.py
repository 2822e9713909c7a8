"""Cells of a finished run, as input for checks: settings, metrics for all seeds, and certificates."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from jaxattn.base import SharedData
from jaxattn.core.errors import InputError, nearest
from jaxattn.lab.books.finding import Finding, mean, slug
from jaxattn.lab.kinds import READERS
from jaxattn.lab.results.judge import ANYTHING
from jaxattn.lab.results.labels import brief, setting
from jaxattn.lab.results.run import Run
from jaxattn.lab.study import concepts, registry
from jaxattn.lab.study.import_paths import ImportPaths


@dataclass(frozen=True)
class Cell:
    """Cell of a finished run.

    Attributes:
        run: the run.
        cell: index of the cell.
    """

    run: Run
    cell: int

    def __getitem__(self, key: str) -> Any:
        """Return the value of a config key in this cell."""
        return self.run.lookup(self.cell, key)

    @property
    def name(self) -> str:
        """Return the name of the cell, built from its block and its other swept settings."""
        settings = self.run.settings(self.cell)
        block = settings.pop("block", None)
        return ", ".join(
            [*([str(block)] if block else []), *(f"{k} = {setting(x)}" for k, x in settings.items())]
        )

    @property
    def id(self) -> str:
        """Return the name of the cell as a part of an id; see `slug`."""
        return slug(self.name)

    @property
    def records(self) -> pd.DataFrame:
        """Return the records of the cell; see `Results.records`."""
        return self.run.records[self.run.records["cell"] == self.cell]

    @property
    def last_phase(self) -> str:
        """Return the name of the last phase."""
        return str(self.records["phase"].iloc[-1])

    def wide(self, *metrics: str) -> list[pd.DataFrame]:
        """Return a table for each seed: one row per step, one column per metric; all metrics by default."""
        records = self.records
        records = records[records["metric"].isin(metrics)] if metrics else records
        table = records.pivot_table(index=["seed", "step"], columns="metric", values="value")
        return [own.droplevel("seed") for _, own in table.groupby("seed")]

    def path(self, metric: str, phase: str = "") -> np.ndarray:
        """Return a metric at all k steps of a phase (default: the last) for all S seeds, (S, k) float64.

        Raises:
            InputError: the phase did not record the metric.
        """
        found = self._paths.get((phase or self.last_phase, metric))
        if found is None:
            known = sorted({name for _, name in self._paths})
            raise InputError(
                f"{metric}: not recorded in phase {phase or self.last_phase}{nearest(metric, known)}"
            )
        return found

    def last(self, metric: str, phase: str = "") -> np.ndarray:
        """Return a metric at the end of a phase, by default the last one, for all S seeds, (S,) float64."""
        return self.path(metric, phase)[:, -1]

    def final(self, metric: str, text: str = "", id: str = "", **about: Any) -> Finding:
        """Build a finding for the mean over seeds of a metric at the end of the last phase.

        Args:
            metric: name of the metric. The value is NaN if the last phase did not record it.
            text: description; by default made of the cell's name and the metric's.
            id: id of the finding; by default that of the cell and the metric, such as "d=64.loss".
            about: further fields of `Finding`.
        """
        between = (0.0, 1.0) if metric.endswith(("accuracy", "mass")) else ANYTHING
        samples: Any = self.last(metric) if (self.last_phase, metric) in self._paths else []
        words = ": ".join(part for part in (self.name, metric.replace("_", " ")) if part)
        name = id or ".".join(part for part in (self.id, metric) if part)
        return mean(name, text or words, samples, between=between, **about)

    @cached_property
    def _paths(self) -> dict[tuple[str, str], np.ndarray]:
        own = self.records
        grouped = own.sort_values(["seed", "step"], kind="stable").groupby(["phase", "metric"], sort=False)
        return {name: x.to_numpy().reshape(own["seed"].nunique(), -1) for name, x in grouped["value"]}

    @property
    def of_texts(self) -> bool:
        """Return True if the data set consists of texts."""
        return self["data.kind"] in READERS

    @cached_property
    def data(self) -> str:
        """Return a description of the data and their sizes. Text data are read to determine the sizes."""
        kind = self["data.kind"]
        if self.of_texts:
            return _texts(self["data"])
        # If the data come from a function, the config contains only settings that were set explicitly.
        classes = 2 if ":" in kind else self["data.num_classes"]
        kind = kind.rpartition(":")[2]
        if kind == "multi_relevant":
            kind = f"{self['data.relevant_per_sequence']} relevant tokens per sequence"
        letters = {"V": "vocab_size", "n": "sequences", "T": "length"}
        sizes = [f"{letter} = {self[f'data.{key}']}" for letter, key in letters.items()]
        return ", ".join([kind, *sizes, *([f"K = {classes}"] if classes > 2 else [])])

    @property
    def setting(self) -> str:
        """Return a description of the data, the dimension d and the step size η0."""
        return f"{self.data}, d = {setting(self['model.dim'])}, η0 = {self['phases.step.step_size']:g}"

    @property
    def until_norm(self) -> float:
        """Return the norm ‖p‖ at which the flow stops."""
        return self["phases.limit.until_norm"]

    @property
    def reached(self) -> np.ndarray:
        """Return, for each of the S seeds, whether its flow reached `until_norm`, (S,) bool."""
        return self.last("p_norm") >= self.until_norm

    @property
    def ends(self) -> str:
        """Return a description of the norms ‖p‖ at which the flows ended."""
        there, norm = self.reached, self.last("p_norm")
        before, total = norm[~there & np.isfinite(norm)], len(norm)
        texts = []
        if there.any():
            texts.append(f"‖p‖ = {brief(float(f'{norm[there].min():.2e}'))} in {there.sum()} of {total}")
        if before.size:
            low, high = (f"{end(before):.0f}" for end in (np.min, np.max))
            span = low if low == high else f"{low} to {high}"
            texts.append(f"{before.size} of {total} end at ‖p‖ = {span}")
        if lost := int(np.isnan(norm).sum()):
            texts.append(f"{lost} of {total} have no end: {self.failure_reason}")
        return ", ".join(texts)

    @property
    def failure_reason(self) -> str:
        """Return the reasons for which seeds failed, or "" if none failed."""
        failed = self.run.failures
        return " or ".join(failed["reason"][failed["cell"] == self.cell].unique())

    def certificate(self, prefix: str = "", phase: str = "") -> str:
        """Format the worst certificate over all seeds: gap, primal residual and number of certified seeds."""
        names = ("feasible", "duality_gap", "primal_residual")
        feasible, *bounds = (self.last(prefix + name, phase) for name in names)
        certified = feasible == 1
        total = f"{certified.sum()} of {len(certified)} certified"
        if not certified.any():
            return total
        gap, primal = (round_up(np.nanmax(x[certified])) for x in bounds)
        return f"gap ≤ {gap}, primal ≤ {primal}, {total}"


def cells(run: Run) -> list[Cell]:
    """Return all cells of a run."""
    return [Cell(run, int(entry["cell"])) for entry in run.manifest["cells"]]


def _texts(table: Mapping[str, Any]) -> str:
    source, _ = registry.make(concepts.DATA, dict(table), "data", ImportPaths())
    assert isinstance(source, SharedData)
    corpus = source.load().splits.train
    if corpus.num_classes != 2:
        raise InputError(f"data: expected texts with two classes, got {corpus.num_classes} classes")
    return f"{table.get('dataset', 'texts')}, V = {corpus.vocab_size}, n = {corpus.num_examples}"


def worst(away: np.ndarray) -> str:
    """Return "1 - cos ≤ X, ", where X is the largest finite entry, rounded up; "" if no entry is finite.

    `away`, (S,), contains 1 - cos for each seed.

    Example:
        >>> from jaxattn.lab import books
        >>> books.worst(np.array([1.2e-7, 3e-8, np.nan]))
        '1 - cos ≤ 2e-7, '
    """
    found = away[np.isfinite(away)]
    return f"1 - cos ≤ {round_up(found.max())}, " if found.size else ""


def round_up(x: float) -> str:
    """Format an upper bound with one significant digit, rounded up.

    Example:
        >>> from jaxattn.lab import books
        >>> books.round_up(1.2e-7)
        '2e-7'
    """
    if x == 0 or not np.isfinite(x):
        return f"{x:g}"
    digit, _, exponent = f"{x:.0e}".partition("e")
    if float(f"{digit}e{exponent}") < x:
        digit, _, exponent = f"{(int(digit) + 1) * 10.0 ** int(exponent):.0e}".partition("e")
    return f"{digit}e{int(exponent)}"
