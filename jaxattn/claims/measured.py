"""What a study measured in one cell, as arrays over seeds, and the cell's setting in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from jaxattn.results.run import Run

Floats = np.ndarray


@dataclass(frozen=True)
class Measured:
    """One cell of a run.

    Attributes:
        run: the run.
        cell: the cell's number.
        data: name and sizes of the data, where its settings do not tell them: those of texts.
    """

    run: Run
    cell: int
    data: str = ""
    _paths: Mapping[tuple[str, str], Floats] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Sort the records."""
        own = self.run.records[self.run.records["cell"] == self.cell].sort_values(
            ["seed", "step"], kind="stable"
        )
        seeds = own["seed"].nunique()
        grouped = own.groupby(["phase", "metric"], observed=True, sort=False)["value"]
        paths = {name: values.to_numpy().reshape(seeds, -1) for name, values in grouped}
        object.__setattr__(self, "_paths", paths)

    def __getitem__(self, key: str) -> Any:
        """Look up a key of the cell's config."""
        return self.run.lookup(self.cell, key)

    def path(self, phase: str, metric: str) -> Floats:
        """Look up a metric at every step it was measured at, (S, k) float64."""
        return self._paths[phase, metric]

    def last(self, phase: str, metric: str) -> Floats:
        """Look up a metric at the end of a phase, (S,) float64."""
        return self.path(phase, metric)[:, -1]

    @property
    def classes(self) -> int:
        """K."""
        return 2 if self.data else self["data.num_classes"]

    @property
    def data_words(self) -> str:
        """The data and their sizes."""
        if self.data:
            return self.data
        kind = self["data.kind"]
        if kind == "multi_relevant":
            kind = f"{self['data.relevant_per_sequence']} relevant tokens per sequence"
        classes = f", K = {self.classes}" if self.classes > 2 else ""
        sizes = (f"{letter} = {self[f'data.{key}']}" for letter, key in _LETTERS)
        return f"{kind}, {', '.join(sizes)}{classes}"

    @property
    def words(self) -> str:
        """The setting for reading."""
        return f"{self.data_words}, d = {self['model.dim']}, η0 = {self['phases.step.step_size']:g}"


_LETTERS = (("V", "vocab_size"), ("n", "sequences"), ("T", "length"))


def of_seeds(run: Any, seeds: int) -> Any:
    """Keep the first seeds of a run, which may hold more."""
    records: pd.DataFrame = run.records
    return (
        run
        if records["seed"].max() < seeds
        else type(run)(run.directory, run.manifest, records[records["seed"] < seeds], run.tokens)
    )
