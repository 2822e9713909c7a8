"""Statistics over seeds, compared with the textbook on random values: intervals.md, formula by formula."""

import numpy as np
import pandas as pd
import pytest
from textbook import reading

from jaxattn.lab.results import statistics

METRICS = ("loss", "test_accuracy", "one_step_error", "feasible", "spearman_Ev_tokens")


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
    table = statistics.aggregate(records)
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
