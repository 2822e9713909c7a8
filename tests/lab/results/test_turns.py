"""Sentences on accuracies and losses that have their extremum between the first and the last step."""

import numpy as np
import pandas as pd
import pytest

from jaxattn.lab.results import load
from jaxattn.lab.results.curves import curves
from jaxattn.lab.results.turns import sentences, turn

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
        # Intervals that overlap, and a turn that is small against the range.
        ([0.8, 0.75, 0.7, 0.8], 0.06, None),
        ([0.50, 0.48, 0.7, 0.9], 0.001, None),
        # One seed has no interval, and needs a larger turn.
        ([0.8, 0.5, 0.6, 0.9], float("nan"), ("min", 10)),
        ([0.6, 0.5, 0.8, 0.9], float("nan"), None),
    ],
)
def test_a_turn_lies_beyond_both_ends_with_its_interval(values, half, expected):
    found = turn(curve(values, half=half))
    assert (found and ("min" if found.minimum else "max", found.steps[1])) == expected


def test_a_sentence_has_the_numbers_and_their_steps_and_the_loss_over_the_same_steps():
    table = pd.concat([curve([0.839, 0.583, 0.7, 0.862]), curve([0.63, 0.61, 0.5, 0.4], metric="test_loss")])
    panels = {"loss": ["test_loss"], "accuracy": ["test_accuracy"]}
    (found,) = sentences(table, panels, [0])
    assert found.startswith(
        "The test accuracy falls from 0.839 at step 0 to its minimum of 0.583 at step 10, and then rises to "
        "0.862 at step 30. The test loss falls over the same steps, from 0.630 to 0.610."
    )
    rising = pd.concat(
        [table[table["metric"] != "test_loss"], curve([0.6, 0.61, 0.5, 0.4], metric="test_loss")]
    )
    assert "test loss" not in sentences(rising, panels, [0])[0]


def test_several_cells_are_counted_and_other_metrics_are_left_out():
    table = pd.concat([
        curve([0.8, 0.5, 0.6, 0.9]), curve([0.5, 0.6, 0.7, 0.9], cell=1), curve([9, 1, 2, 9], metric="p_norm")
    ])  # fmt: skip
    assert sentences(table, {"accuracy": ["test_accuracy"], "p_norm": ["p_norm"]}, [0, 1]) == [
        "The test accuracy has its minimum between the first and the last step in 1 of 2 cells."
    ]


def test_the_caption_of_curves_says_it_where_the_data_show_it(write, rewrite, tmp_path):
    folder = write(tmp_path / "run", vocab_size=20)
    records = load(folder).records
    assert "its minimum" not in curves(load(folder)).caption
    inside = (records["metric"] == "test_accuracy") & records["step"].between(5, 20)
    rewrite(folder, "records", records.assign(value=records["value"].mask(inside, 0.1)))
    assert "The test accuracy falls from" in curves(load(folder)).caption
