"""Shares over random choices, recomputed from the tokens with NumPy and SciPy."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from jaxattn.lab.books.choices import _dependence
from scipy import stats

import jaxattn as ja
from jaxattn.lab.books import findings
from jaxattn.lab.books.book import read_book
from jaxattn.lab.results.load import load

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

PROSE = 'reports = "a figure"\nchosen = "all"\ncompared = "by shape"\n'
SHOWN = """
[[measures]]
kind = "shapes"

[measures.criteria]
"Spearman of E·v and the bin centres" = { at_least = 0.9 }
"U-shape of E·p about 0 (1 for a U)" = { at_least = 0.8 }
"where E·p is lowest" = { around = 0.0, within = 0.3 }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    ja.Study.of_tables(DRAWN).run(folder / "run", quiet=True)
    for name, tables in (("shown", BASE | {"name": "shown"}), ("drawn", DRAWN)):
        (folder / "book" / name).mkdir(parents=True)
        ja.Study.of_tables(tables).write(folder / "book" / name / "study.toml")
    (folder / "book" / "book.toml").write_text('title = "A book"\nintroduction = ""\nsource = "a paper"\n')
    (folder / "book" / "shown" / "item.toml").write_text(PROSE + SHOWN)
    (folder / "book" / "drawn" / "item.toml").write_text(
        PROSE + '[[measures]]\nkind = "choices"\nshown = "shown"\ncriteria = {}\n'
    )
    return load(folder / "run"), read_book(folder / "book").item("drawn")


@pytest.fixture(scope="module")
def measured(run):
    results, item = run
    return findings.measure_item([results], item.measured[0], item)


def shapes_by_hand(results, cell):
    """Compute the Spearman correlation of E·v, the U-shape score of E·p, and the location of its minimum."""
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
def test_share_of_settings_that_produce_each_shape_matches_a_loop(run, measured):
    results, _ = run
    by_hand = np.array([shapes_by_hand(results, cell) for cell in range(8)])
    shares = {f.measured: f.estimate for f in measured.findings}
    for column, name in enumerate(("E·v rises", "E·p is lowest near 0")):
        assert 0 < by_hand[:, column].sum() < 8, "a count that tells"
        found = shares[f"share of 8 choices in which {name}"]
        assert found.value == by_hand[:, column].mean()
        interval = stats.binomtest(int(by_hand[:, column].sum()), 8).proportion_ci(method="exact")
        np.testing.assert_allclose([found.low, found.high], [interval.low, interval.high], rtol=1e-9)


@pytest.mark.more
def test_settings_of_the_shown_run_are_ranked_among_random_settings(run, measured):
    results, _ = run
    table = measured.tables["What it depends on"]
    assert set(table["optimizer"]) == {"Adam", "SGD"}
    adam = table[table["optimizer"] == "Adam"].iloc[0]
    rates = [entry["settings"]["phases.joint.step_size"] for entry in results.manifest["cells"][:5]]
    assert adam["shown run"] == "0.0300"
    assert adam["draws below it"] == f"{np.mean(np.array(rates) < 3e-2):.0%}"
    drawn = measured.tables["Every draw"]
    expected = stats.spearmanr(drawn["step_size"][:5], drawn["test accuracy"][:5]).statistic
    np.testing.assert_allclose(adam["Spearman with test accuracy"], expected, rtol=1e-12)


def test_settings_are_sorted_by_correlation_with_the_u_shape():
    rates, noise = np.geomspace(1e-3, 1, 8), np.array([3, 1, 4, 2, 8, 6, 5, 7]) / 10
    draws = pd.DataFrame(
        {"optimizer": "Adam", "phases.joint.step_size": rates, "data.label_noise": noise}
        | {"rise of E·v": noise, "U of E·p": rates**2, "test accuracy": -rates}
    )
    axes = ["block", "data.label_noise", "phases.joint.step_size"]
    run = SimpleNamespace(axes=axes, lookup=lambda cell, key: "adam")
    table = _dependence(run, draws, BASE | {"data": BASE["data"] | {"label_noise": 0.35}})
    assert table["choice"].tolist() == ["step_size", "label_noise"]
    assert table["Spearman with U of E·p"].tolist() == pytest.approx([1, stats.spearmanr(noise, rates)[0]])
    assert table["Spearman with test accuracy"][0] == pytest.approx(-1)
    assert table["shown run"].tolist() == ["0.0300", "0.350"]
    assert table["draws below it"].tolist() == ["50%", "38%"]
