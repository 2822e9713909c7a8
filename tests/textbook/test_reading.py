"""Statistics over seeds, compared with the textbook on random values: intervals.md, formula by formula."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from textbook import reading

from jaxattn.lab.results import statistics
from jaxattn.lab.results.run import Run

SCALES = {
    "loss": ("linear", 0, None),
    "test_accuracy": ("linear", 0, 1),
    "one_step_error": ("log", 0, None),
    "feasible": ("yes/no", 0, 1),
    "spearman_Ev_tokens": ("linear", -1, 1),
}
METRICS = tuple(SCALES)


@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 5, 9])
def test_statistics_match_formulas(rng, seeds):
    """Values of 0 and 1, missing values, equal values, and values near the bounds of a metric."""
    rows = []
    for cell in range(12):
        x = rng.uniform(size=seeds) ** (1 + cell % 4)
        x = np.round(x) if cell % 3 == 0 else x
        x = np.where(rng.uniform(size=seeds) < 0.1, np.nan, x)
        rows += [
            (
                cell,
                seed,
                "train",
                5,
                metric,
                round(value) if metric == "feasible" and value == value else value,
            )
            for metric in METRICS
            for seed, value in enumerate(x)
        ]
    records = pd.DataFrame(rows, columns=["cell", "seed", "phase", "step", "metric", "value"])
    cells = [{"cell": cell, "settings": {}} for cell in range(12)]
    run = Run(Path(), {"cells": cells, "scales": SCALES}, records, pd.DataFrame())
    table = statistics.aggregate(run)
    assert len(table) == 12 * len(METRICS)
    for row in table.to_dict("records"):
        own = records[(records["cell"] == row["cell"]) & (records["metric"] == row["metric"])]["value"]
        names = ("n", "mean", "mean_low", "mean_high")
        expected = reading.mean_and_interval(own, row["metric"])
        np.testing.assert_allclose([row[x] for x in names], expected, rtol=1e-9, atol=1e-12, err_msg=str(row))
        if row["n"]:
            iqm, low, high = reading.interquartile(own)
            bounds = reading.bounds_of(row["metric"])
            clipped = iqm, np.maximum(low, bounds[0]), np.minimum(high, bounds[1])
            found = [row[x] for x in ("iqm", "iqm_low", "iqm_high")]
            np.testing.assert_allclose(found, clipped, rtol=1e-9, atol=1e-12, err_msg=str(row))
