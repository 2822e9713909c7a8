"""Overview of a run: at most six metrics, and notes."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab import kinds
from jaxattn.lab.pages import overview
from jaxattn.lab.pages.overview import caveats
from jaxattn.lab.results.run import Run


def run_of(values, *, cells=({},), phases=("embed", "query"), figures=None):
    """Build a run with values by metric, of every cell and seed or of every seed of the only cell."""
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
    manifest = {"name": "x", "config": {"figures": figures}, "cells": named, "seeds": seeds}
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


def test_overview_lists_accuracy_then_loss_then_requested_metrics():
    mine = {f"mine_{k}": [1.0, 2.0, 3.0, 4.0] for k in range(4)}
    assert overview.metrics(run_of(LEARNED | mine)) == [
        "test_accuracy",
        "loss",
        "mine_0",
        "mine_1",
        "mine_2",
        "mine_3",
    ]
    assert overview.metrics(run_of({"mine": [1.0, 2.0]})) == ["mine"]
    assert overview.metrics(run_of({"train_accuracy": [1.0], "mine": [1.0]})) == ["train_accuracy", "mine"]


def test_custom_metrics_in_figures_come_first():
    mine = {f"mine_{k}": [1.0, 2.0] for k in range(4)}
    figures = [{"kind": "curves", "metrics": ["mine_3", "loss"]}, {"kind": "scaling", "metric": "mine_1"}]
    run = run_of(LEARNED | mine, figures=[*figures, {"kind": "curves", "metrics": None}])
    assert overview.metrics(run)[2:4] == ["mine_3", "mine_1"]


def test_standard_contains_all_default_metrics():
    unasked = {
        name
        for probe in (
            ja.probes.Fit,
            ja.probes.Accuracy,
            ja.probes.Importance,
            ja.probes.Selected,
            ja.probes.OneStepError,
        )
        for name in probe.labels
    }
    assert unasked <= set(overview.STANDARD)
    known = {name for probe in kinds.classes(kinds.PROBES).values() for name in probe.labels}
    assert not known & set(overview.STANDARD)


@pytest.fixture
def planted(results, configured):
    """Add metrics with the same value for every seed, and probe settings, to a run."""
    run = results["text"]

    def make(least, **metrics):
        rows = [(0, seed, "joint", 5, name, x) for name, x in metrics.items() for seed in range(4)]
        records = pd.concat([run.records, pd.DataFrame(rows, columns=list(run.records.columns))])
        probes = {"min_count": least}
        return dataclasses.replace(configured(run, probes=probes), records=records)

    return make


def test_caveat_reports_a_min_count_that_excludes_all_tokens(planted):
    empty = {"spearman_Ev_tokens": np.nan, "spearman_Ep_signed_tokens": np.nan, "loss_of_mine": np.nan}
    (line,) = caveats(planted(10**7, **empty))
    assert line == (
        "spearman_Ep_signed_tokens, spearman_Ev_tokens: no value, because fewer than two tokens occur "
        "probes.min_count = 10000000 times; lower it"
    )
    # There are enough tokens, so the reason is different.
    assert caveats(planted(45, **empty)) == []
    assert caveats(planted(45, spearman_Ev_tokens=0.3)) == []


@pytest.mark.parametrize("key", ["min_count", "important"])
@pytest.mark.parametrize("strange", ["many", float("inf"), [3]])
def test_caveats_ignore_nonnumeric_probe_settings(planted, key, strange):
    """A folder may contain any value of a cell on an axis."""
    run = planted(30, important_selected=0.5, spearman_Ev_tokens=0.3)
    run.manifest["config"]["probes"]["important"] = 0.5
    whole = caveats(run)
    cells = [{"cell": 0, "settings": {f"probes.{key}": strange}}]
    left = caveats(dataclasses.replace(run, manifest=run.manifest | {"cells": cells}))
    assert set(left) <= set(whole)
    assert not any("probes.important" in line for line in left)


def test_caveat_explains_the_logarithm_of_zero(planted):
    (line,) = caveats(planted(45, log_gradient_norm_of_mine=-np.inf))
    assert line == "log_gradient_norm_of_mine: the value is minus infinity, the logarithm of exactly zero"


def test_caveat_reports_a_small_number_of_tokens(planted):
    run = planted(1)
    ranked = np.sort(run.tokens[run.tokens["cell"] == 0].drop_duplicates("id")["count"])[::-1]
    least = int(ranked[4])
    (line,) = caveats(planted(least, spearman_Ev_tokens=0.9))
    number = int((ranked >= least).sum())
    assert line == (
        f"spearman_Ev_tokens: based on only {number} tokens per seed that occur probes.min_count = {least} "
        "times; lower it"
    )


def test_caveat_that_applies_to_some_cells_names_them(planted):
    run = planted(45, log_of_mine=-np.inf)
    own = run.records["metric"] == "log_of_mine"
    other = run.records[own].assign(cell=2)
    cells = [{"cell": k, "settings": {}} for k in range(4)]
    two = dataclasses.replace(
        run, manifest=run.manifest | {"cells": cells}, records=pd.concat([run.records, other])
    )
    text = "log_of_mine: the value is minus infinity, the logarithm of exactly zero"
    assert text + " (cells 0, 2)" in caveats(two)
    assert caveats(dataclasses.replace(two, manifest=run.manifest | {"cells": cells[::2]})) == [text]
    many = [{"cell": k, "settings": {}} for k in range(50)]
    records = pd.concat([run.records, *(run.records[own].assign(cell=k) for k in range(1, 30, 2))])
    several = dataclasses.replace(run, manifest=run.manifest | {"cells": many}, records=records)
    assert f"{text} (16 of 50 cells)" in caveats(several)


@pytest.mark.parametrize(("relevant", "nats"), [(4, 10.0), ("many", 10.0), (4, [3])])
def test_caveat_states_the_threshold_of_relevant_tokens(planted, relevant, nats):
    run = planted(45, only_relevant_selected=0.5, relevant_selected=0.7)
    own = [{"kind": "relevant_tokens", "relevant": relevant, "nats": nats}]
    run.manifest["config"]["probes"]["own"] = own
    words = (
        "only_relevant_selected, relevant_selected: tokens 0 to 3 are relevant (relevant), and scores within "
        "10 nats of the highest one in a sequence count as highest (nats)"
    )
    assert caveats(run) == ([words] if (relevant, nats) == (4, 10.0) else [])


def test_caveat_defines_important_tokens(planted):
    for least in (1, 30):
        run = planted(least, important_selected=0.5, important_tied=0.0)
        run.manifest["config"]["probes"]["important"] = 0.5
        (line,) = caveats(run)
        tokens = run.tokens[run.tokens["cell"] == 0].drop_duplicates(["seed", "id"])
        large = tokens["posterior_difference"].abs() >= 0.5
        assert (tokens["seed"].nunique(), large.any()) == (4, True)
        counts = (large & (tokens["count"] >= least)).groupby(tokens["seed"]).sum()
        low, high = counts.min(), counts.max()
        number = str(low) if low == high else f"{low} to {high}"
        assert line.startswith(
            "important_mass, important_selected, important_tied: tokens are important if |"
        )
        often = "once" if least == 1 else f"{least} times"
        occur = f"they occur at least {often} (probes.min_count): {number} tokens per seed"
        assert f"≥ 0.5 (probes.important) and {occur}" in line
    run = planted(1, important_selected=0.5)
    run.manifest["config"]["probes"]["important"] = 0.5
    # Tables may be limited to some metrics.
    assert caveats(run)[0].startswith(
        "important_mass, important_selected: tokens are important if |posterior"
    )
