"""Shares over random choices, recomputed from the tokens with NumPy and SciPy."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.lab.books import around, at_least
from jaxattn.lab.study.import_paths import ImportPaths

CODE = ImportPaths(Path(__file__).parents[2] / "sweeps" / "paper").load
CRITERIA = {"rise": at_least(0.9), "u_shape": at_least(0.8), "lowest": around(0.0, 0.3)}
BASE = {
    "name": "drawn",
    "seeds": 2,
    "data": {"kind": "independent", "vocab_size": 60, "relevant": 50, "length": 8, "sequences": 300}
    | {"test_sequences": 50, "max_posterior_difference": 0.95},
    "model": {"kind": "one_layer", "dim": 16},
    "phases": [
        {"name": "joint", "kind": "descent", "train": ["E", "p", "v"], "optimizer": "adam"}
        | {"step_size": 3e-2, "steps": 30}
    ],
    "probes": {"per_decade": 0, "min_count": 1},
}
RATES = {"low": 1e-4, "high": 3e-1, "log": True}
DRAWN = BASE | {
    "blocks": {
        "Adam": {"halton": {"points": 5, "axes": {"phases.joint.step_size": RATES}}},
        "SGD": {
            "phases": {"joint": {"optimizer": "sgd"}},
            "halton": {"points": 3, "axes": {"phases.joint.step_size": RATES}},
        },
    }
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices") / "run"
    ja.Study.from_tables(DRAWN).run(folder, quiet=True)
    return ja.load(folder)


def shapes_by_hand(results, cell):
    """Return whether E·v rises, and whether E·p is lowest near 0."""
    tokens = results.tokens[results.tokens["cell"] == cell]
    edges = np.linspace(-1, 1, 21)
    centres, ev, ep = [], [], []
    x = tokens["posterior_difference"]
    for low, high in itertools.pairwise(edges):
        within = tokens[(x >= low) & ((x < high) | (high == edges[-1]))]
        if len(within):
            centres.append((low + high) / 2)
            ev.append(within["Ev"].mean())
            ep.append(within["Ep"].mean())
    centres, ev, ep = map(np.array, (centres, ev, ep))
    rises = stats.spearmanr(centres, ev).statistic >= 0.9
    return bool(rises), bool(abs(centres[np.argmin(ep)]) <= 0.3)


@pytest.mark.more
def test_share_of_settings_that_produce_each_shape_matches_a_loop(results):
    by_hand = np.array([shapes_by_hand(results, cell) for cell in range(8)])
    found = {x.id: x for x in CODE("random_choices.py:reproduced")(results, CRITERIA)}
    assert set(found) == {"rise", "u_shape", "lowest", "all", "all.adam", "all.sgd"}
    for column, id in enumerate(("rise", "lowest")):
        hits = int(by_hand[:, column].sum())
        assert 0 < hits < 8, "a count that can differ"
        assert found[id].counts == (hits, 8)
        interval = stats.binomtest(hits, 8).proportion_ci(method="exact")
        np.testing.assert_allclose(found[id].interval, [interval.low, interval.high], rtol=1e-9)


@pytest.mark.more
def test_settings_of_the_shown_run_are_ranked_among_random_settings(results):
    tables = CODE("random_choices.py:draw_tables")(results, CRITERIA, ja.Study.from_tables(BASE))
    table = tables["Dependence on the settings"]
    assert set(table["optimizer"]) == {"Adam", "SGD"}
    adam = table[table["optimizer"] == "Adam"].iloc[0]
    rates = [entry["settings"]["phases.joint.step_size"] for entry in results.manifest["cells"][:5]]
    assert adam["shown run"] == "0.0300"
    assert adam["draws below the shown run"] == f"{np.mean(np.array(rates) < 3e-2):.0%}"
    drawn = tables["Every draw"]
    expected = stats.spearmanr(drawn["step_size"][:5], drawn["test accuracy"][:5]).statistic
    np.testing.assert_allclose(adam["Spearman correlation with test accuracy"], expected, rtol=1e-12)


def test_settings_are_sorted_by_correlation_with_the_u_shape():
    rates, noise = np.geomspace(1e-3, 1, 8), np.array([3, 1, 4, 2, 8, 6, 5, 7]) / 10
    draws = pd.DataFrame(
        {"optimizer": "Adam", "phases.joint.step_size": rates, "data.label_noise": noise}
        | {"rise of E·v": noise, "U of E·p": rates**2, "test accuracy": -rates}
    )
    axes = ["block", "data.label_noise", "phases.joint.step_size"]
    run = SimpleNamespace(axes=axes, lookup=lambda cell, key: "adam")
    config = BASE | {"data": BASE["data"] | {"label_noise": 0.35}}
    table = CODE("random_choices.py:_dependence")(run, draws, config)
    assert table["setting"].tolist() == ["step_size", "label_noise"]
    expected = [1, stats.spearmanr(noise, rates)[0]]
    assert table["Spearman correlation with U of E·p"].tolist() == pytest.approx(expected)
    assert table["shown run"].tolist() == ["0.0300", "0.350"]
    assert table["draws below the shown run"].tolist() == ["50%", "38%"]
