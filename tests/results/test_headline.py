"""What a run says at first sight: at most six metrics, and two sentences, whatever was recorded."""

from pathlib import Path

import pandas as pd
import pytest

from jaxattn.probes import PROBES, Accuracy, Fit, Importance, OneStepError, Selected
from jaxattn.results import headline, summary_table
from jaxattn.results.run import Run


def run_of(values, *, cells=({},), phases=("embed", "query")):
    """Make a run: values by metric, of every cell and seed or of every seed of the only cell."""
    rows = [
        (cell, seed, phase, 3, metric, value)
        for metric, of_cells in values.items()
        for cell, of_seeds in enumerate(of_cells if isinstance(of_cells[0], list) else [of_cells])
        for phase in phases
        for seed, value in enumerate(of_seeds)
    ]
    records = pd.DataFrame(rows, columns=["cell", "seed", "phase", "step", "metric", "value"])
    named = [{"cell": k, "settings": settings} for k, settings in enumerate(cells)]
    seeds = sorted(records["seed"].unique())
    manifest = {"name": "x", "config": {}, "cells": named, "seeds": seeds}
    return Run(Path("nowhere"), manifest, records, records.iloc[:0])


LEARNED = {
    "loss": [0.3, 0.31, 0.32, 0.33],
    "p_norm": [1.0, 2.0, 3.0, 4.0],
    "test_accuracy": [0.84, 0.85, 0.86, 0.87],
    "train_accuracy": [0.9, 0.9, 0.9, 0.9],
    "spearman_Ev_bins": [1.0, 1.0, 1.0, 1.0],
    "spearman_Ev_tokens": [0.96, 0.97, 0.98, 0.99],
    "important_selected": [0.7, 0.72, 0.73, 0.74],
    "loss_bin_3": [0.1, 0.1, 0.1, 0.1],
}


def test_accuracy_and_loss_come_first_and_then_what_was_asked_for():
    mine = {f"mine_{k}": [1.0, 2.0, 3.0, 4.0] for k in range(4)}
    assert headline.metrics(run_of(LEARNED | mine)) == [
        "test_accuracy",
        "loss",
        "mine_0",
        "mine_1",
        "important_selected",
        "spearman_Ev_tokens",
    ]
    assert headline.metrics(run_of({"mine": [1.0, 2.0]})) == ["mine"]
    assert headline.metrics(run_of({"train_accuracy": [1.0], "mine": [1.0]})) == ["train_accuracy", "mine"]


def test_the_sentences_say_what_the_table_says():
    run = run_of(LEARNED)
    table = summary_table(run).set_index("metric")["query"]
    first, second = headline.sentences(run)
    assert first == (
        f"After phase query, the test accuracy is {table['test_accuracy']} and the loss is {table['loss']}."
    )
    assert second == (
        f"E·v follows importance, Spearman over tokens {table['spearman_Ev_tokens']}; attention selects an "
        f"important token in {table['important_selected']} of the sequences."
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.2, 0.21, 0.22, 0.23], "E·v follows importance weakly, "),
        ([-0.2, -0.21, -0.22, -0.23], "E·v runs against importance, "),
        ([-0.5, 0.4, 0.3, -0.2], "No sign that E·v follows importance, "),
        ([0.9], "Of E·v and importance the Spearman over tokens is 0.900"),
    ],
)
def test_what_is_said_of_values_is_what_their_interval_bears(values, words):
    assert headline.sentences(run_of({"loss": values, "spearman_Ev_tokens": values}))[1].startswith(words)


def test_of_several_cells_the_lowest_and_the_highest_are_named():
    run = run_of(
        {"loss": [[0.3], [0.1], [0.2]], "mine": [[1.0], [2.0], [3.0]]},
        cells=[{"model.dim": d} for d in (16, 64, 256)],
        phases=("walk",),
    )
    assert headline.sentences(run) == (
        "After phase walk, the loss is 0.100 at dim = 64 to 0.300 at dim = 16.",
        "mine is 1.00 at dim = 16 to 3.00 at dim = 256.",
    )


def test_cells_in_which_values_follow_importance_are_counted():
    run = run_of(
        {"spearman_Ev_tokens": [[0.9, 0.91, 0.92], [-0.3, 0.2, 0.1]]}, cells=[{"data.n": 9}, {"data.n": 1}]
    )
    assert "E·v follows importance in 1 of 2 cells" in headline.sentences(run)[1]


def test_directions_and_own_metrics_have_a_clause():
    second = headline.sentences(run_of({"one_minus_cosine": [0.25], "margin_ratio": [0.5], "mine": [2.0]}))[1]
    assert second == "p is 1 - cos = 0.250 from its max-margin direction; margin_ratio is 0.500."


def test_there_are_two_sentences_whatever_was_recorded():
    nan = float("nan")
    assert headline.sentences(run_of({"loss": [nan, nan], "spearman_Ev_tokens": [nan, nan]})) == (
        "No accuracy and no loss has a finite value.",
        "No other metric has a finite value.",
    )
    # Tokens that are too rare for a correlation leave the one over bins.
    found = headline.sentences(run_of(LEARNED | {"spearman_Ev_tokens": [nan] * 4}))[1]
    assert "Spearman over bins is 1.00 (all equal)" in found


def test_every_metric_that_is_recorded_unasked_has_its_place():
    unasked = {name for probe in (Fit, Accuracy, Importance, Selected, OneStepError) for name in probe.labels}
    assert unasked <= set(headline.STANDARD)
    known = {name for probe in PROBES.values() for name in probe.labels}
    assert set(headline.DIRECTIONS) <= known
    assert not known & set(headline.STANDARD)
