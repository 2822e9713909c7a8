"""Cells of runs as inputs of measures, and the format of bounds."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxattn.lab.books import Cell, cells, round_up, worst
from jaxattn.lab.results.run import Run


@pytest.fixture
def run():
    """Two cells of three seeds, with rows in random order."""
    rows = [
        {"cell": cell, "seed": seed, "phase": phase, "step": step, "metric": metric, "value": value}
        for cell in (0, 1)
        for seed in range(3)
        for phase, metric, value in (("limit", "p_norm", 10.0), ("limit", "loss", 1.0), ("step", "loss", 2.0))
        for step, value in ((0, value), (4, value + cell + seed / 10))
    ]
    table = pd.DataFrame(rows).sample(frac=1, random_state=0)
    # Phases are in run order.
    table = table.sort_values("phase", ascending=False, kind="stable")
    settings = {"phases.limit.until_norm": 10.15, "data.kind": "independent"}
    entries = [{"cell": cell, "settings": settings | {"model.dim": 8 * 2**cell}} for cell in (0, 1)]
    return Run(Path(), {"cells": entries}, table, pd.DataFrame())


def test_cell_metrics_are_ordered_by_seed_and_step(run):
    first, second = cells(run)
    assert (first["model.dim"], second["model.dim"]) == (8, 16)
    np.testing.assert_allclose(second.path("loss", "limit"), [[1, 2], [1, 2.1], [1, 2.2]])
    np.testing.assert_allclose(second.last("loss", "step"), [3, 3.1, 3.2])
    np.testing.assert_allclose(first.last("loss", "step"), [2, 2.1, 2.2])
    np.testing.assert_array_equal(first.reached, [False, False, True])
    assert first.ends == "‖p‖ = 10.2 in 1 of 3, 2 of 3 end at ‖p‖ = 10"
    assert second.reached.all()


def test_failure_reasons_are_listed_for_each_cell_separately(run):
    run.manifest["failures"] = [
        {"cell": cell, "seed": seed, "phase": "limit", "step": 3, "reason": reason}
        for cell, seed, reason in (
            (0, 0, "it met NaN"),
            (0, 1, "no step"),
            (0, 2, "no step"),
            (1, 0, "other"),
        )
    ]
    assert Cell(run, 0).failure_reason == "it met NaN or no step"
    assert Cell(run, 1).failure_reason == "other"


def test_bounds_are_rounded_up_to_one_significant_digit():
    bounds = [round_up(x) for x in (0.0, 1e-9, 1.01e-9, 9.2e-5, 0.3, 0.31)]
    assert bounds == ["0", "1e-9", "2e-9", "1e-4", "3e-1", "4e-1"]


def test_bound_on_the_distance_ignores_seeds_without_a_value():
    assert worst(np.array([1e-9, np.nan, 1.5e-8])) == "1 - cos ≤ 2e-8, "
    assert worst(np.array([np.nan])) == ""
