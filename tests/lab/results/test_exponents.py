"""Local exponents against closed forms, a loop with NumPy's polyfit, and records of a run."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.lab.results.exponents import power_laws, windows
from jaxattn.lab.results.run import Run


def test_a_power_law_has_its_exponent_in_every_decade():
    x = np.geomspace(2, 2e5, 61)
    found = windows(x, np.stack([3 * x**-0.25, 0.1 * x**-0.5]))
    assert [row["to"] / row["from"] for row in found] == pytest.approx([10] * 5)
    assert [row["exponent"] for row in found] == pytest.approx([-0.375] * 5)
    assert {row["n"] for row in found} == {2}
    assert found[-1]["to"] == pytest.approx(2e5)


def test_exponents_and_intervals_match_a_loop():
    rng = np.random.default_rng(0)
    x = np.geomspace(1, 1000, 40)
    y = x**-0.4 * np.exp(0.1 * rng.normal(size=(7, 40))) + 0.01
    (half,) = (row for row in windows(x, y, 0.5) if row["to"] == pytest.approx(1000))
    inside = x >= 1000 / 10**0.5
    slopes = [np.polyfit(np.log(x[inside]), np.log(own[inside]), 1)[0] for own in y]
    error = stats.t.ppf(0.975, 6) * np.std(slopes, ddof=1) / 7**0.5
    assert half["exponent"] == pytest.approx(np.mean(slopes))
    assert half["high"] - half["exponent"] == pytest.approx(error)
    assert half["points"] == inside.sum()


def test_a_saturating_curve_has_a_local_exponent_that_vanishes():
    x = np.geomspace(1, 1e8, 200)
    found = [row["exponent"] for row in windows(x, (x**-0.5 + 1e-2)[None])]
    assert found == sorted(found)
    assert found[0] == pytest.approx(-0.5, abs=0.02)
    assert abs(found[-1]) < 0.01


def test_windows_without_points_and_values_below_zero_are_left_out():
    x = np.array([1.0, 2.0, 3e3, 6e3])
    found = windows(x, np.array([[1.0, 0.5, 3e-4, -1.0], [1.0, 0.5, 3e-4, 1.5e-4]]))
    assert [row["n"] for row in found] == [2, 1]
    assert [row["exponent"] for row in found] == pytest.approx([-1, -1])
    assert np.isnan(found[1]["low"])
    assert windows(x, np.full((2, 4), np.nan)) == []


def run(tmp_path):
    rows = []
    for cell, power in ((0, 0.5), (1, 1.0)):
        for seed in (0, 1):
            for step in (0, 1, 2, 5, 10, 20, 50, 100):
                time = 3.0 * step**2
                values = {"time": time, "loss": (1 + seed) * max(step, 0.5) ** -power}
                rows += [(cell, seed, "flow", step, name, value) for name, value in values.items()]
    records = pd.DataFrame(rows, columns=["cell", "seed", "phase", "step", "metric", "value"])
    cells = [{"cell": 0, "settings": {"power": 0.5}}, {"cell": 1, "settings": {"power": 1.0}}]
    return Run(tmp_path, {"cells": cells, "seeds": [0, 1]}, records, pd.DataFrame())


def test_records_are_fitted_for_each_cell_against_steps_or_a_metric(tmp_path):
    by_step = power_laws(run(tmp_path), "loss")
    assert by_step["power"].tolist() == [0.5, 0.5, 1.0, 1.0]
    assert by_step["exponent"].tolist() == pytest.approx([-0.5, -0.5, -1, -1])
    by_time = power_laws(run(tmp_path), "loss", against="time", phase="flow")
    assert by_time["exponent"].tolist() == pytest.approx([-0.25] * 4 + [-0.5] * 4)
    assert by_time["to"].max() == 3e4


@pytest.mark.parametrize(
    "options",
    [{"metric": "lost"}, {"metric": "loss", "against": "tim"}, {"metric": "loss", "phase": "sgd"}],
)
def test_unknown_names_are_refused(tmp_path, options):
    with pytest.raises(ja.InputError):
        power_laws(run(tmp_path), **options)


def test_the_length_of_a_window_is_positive(tmp_path):
    with pytest.raises(ja.InputError, match="decades"):
        power_laws(run(tmp_path), "loss", decades=0.0)
