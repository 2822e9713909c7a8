"""Sentences about accuracies and losses with an inner extremum."""

import numpy as np
import pandas as pd
import pytest

from jaxattn.lab.results import load
from jaxattn.lab.results.curves import curves
from jaxattn.lab.results.scaling import convergence
from jaxattn.lab.results.turns import rise, turn, turning_sentences

STEPS = [0, 10, 20, 30]


def curve(values, *, metric="test_accuracy", cell=0, half=0.01):
    values = np.array(values, float)
    bounds = {"mean_low": values - half, "mean_high": values + half}
    columns = {"step": STEPS, "mean": values, "n": 1 if np.isnan(half) else 5}
    return pd.DataFrame(columns | bounds | {"metric": metric, "cell": cell, "phase": "query"})


@pytest.mark.parametrize(
    ("values", "half", "expected"),
    [
        ([0.8, 0.5, 0.6, 0.9], 0.01, ("min", 10)),
        ([0.6, 0.5, 0.9, 0.7], 0.01, ("min", 10)),
        ([0.6, 0.7, 0.9, 0.7], 0.01, ("max", 20)),
        ([0.5, 0.6, 0.7, 0.8], 0.01, None),
        ([0.5, 0.5, 0.5, 0.5], 0.01, None),
        # Overlapping intervals, and a turn that is small relative to the range.
        ([0.8, 0.75, 0.7, 0.8], 0.06, None),
        ([0.50, 0.48, 0.7, 0.9], 0.001, None),
        # One seed has no interval, so a larger turn is required.
        ([0.8, 0.5, 0.6, 0.9], float("nan"), ("min", 10)),
        ([0.6, 0.55, 0.8, 0.9], float("nan"), None),
    ],
)
def test_extremum_is_reported_only_outside_the_intervals_of_both_ends(values, half, expected):
    found = turn(curve(values, half=half))
    assert (found and ("min" if found.minimum else "max", found.steps[1])) == expected


def test_sentence_about_an_extremum_gives_values_steps_and_loss():
    table = pd.concat([curve([0.839, 0.583, 0.7, 0.862]), curve([0.63, 0.61, 0.5, 0.4], metric="test_loss")])
    panels = {"loss": ["test_loss"], "accuracy": ["test_accuracy"]}
    (found,) = turning_sentences(table, panels, [0])
    assert found.startswith(
        "The test accuracy falls from 0.839 at step 0 to its minimum of 0.583 at step 10, and then rises to "
        "0.862 at step 30. The test loss falls over the same steps, from 0.630 to 0.610."
    )
    rising = pd.concat(
        [table[table["metric"] != "test_loss"], curve([0.6, 0.61, 0.5, 0.4], metric="test_loss")]
    )
    assert "test loss" not in turning_sentences(rising, panels, [0])[0]


def test_extrema_of_several_cells_are_counted():
    table = pd.concat([
        curve([0.8, 0.5, 0.6, 0.9]), curve([0.5, 0.6, 0.7, 0.9], cell=1), curve([9, 1, 2, 9], metric="p_norm")
    ])  # fmt: skip
    assert turning_sentences(table, {"accuracy": ["test_accuracy"], "p_norm": ["p_norm"]}, [0, 1]) == [
        "The test accuracy has its minimum between the first and the last step in 1 of 2 cells."
    ]


def test_caption_of_curves_describes_extrema(write, rewrite, tmp_path):
    folder = write(tmp_path / "run", vocab_size=20)
    records = load(folder).records
    assert "The test accuracy" not in curves(load(folder)).caption
    inside = (records["metric"] == "test_accuracy") & records["step"].between(5, 20)
    rewrite(folder, "records", records.assign(value=records["value"].mask(inside, 0.1)))
    assert "The test accuracy falls from" in curves(load(folder)).caption


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([1, 1e-4, 0.3], "y falls to 1.00e-4 at x = 10.0 and then rises to 0.300 at x = 100"),
        ([1, 0.1, 0.2], ""),
        ([1, 0.1, 0.01], ""),
        ([0.01, 0.1, 0.2], ""),
        ([1, 0.1], ""),
    ],
)
def test_rise_after_minimum_is_described(y, expected):
    x = np.array([1.0, 10.0, 100.0][: len(y)])
    assert rise(x, np.array(y, float), ("x", "y")) == expected


def test_caption_of_convergence_describes_a_rise(write, rewrite, tmp_path):
    folder = write(tmp_path / "run", vocab_size=20, axes={"model.dim": [64, 128]})
    records = load(folder).records
    options = {"x": "p_norm", "y": "loss"}
    assert "then rises" not in convergence(load(folder), **options).caption
    inside = (records["metric"] == "loss") & (records["cell"] == 1) & records["step"].between(5, 20)
    rewrite(folder, "records", records.assign(value=records["value"].mask(inside, 1e-6)))
    caption = convergence(load(folder), **options).caption
    assert "For model.dim = 128 the median of loss falls to 1.00e-6 at p_norm = " in caption
