"""Measures of whole runs, counted again from the tokens by numpy and scipy."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.reproduction import read
from jaxattn.reproduction.shapes import directions, shapes

ITEM = read("paper").item("mlp_imdb_varied")
STUDY = {
    "name": "directions",
    "seeds": 5,
    "data": {"kind": "independent", "vocab_size": 60, "relevant": 50, "length": 8, "sequences": 1000}
    | {"test_sequences": 50, "max_posterior_difference": 0.95},
    "model": {"kind": "mlp", "dim": 16},
    "phases": [
        {"name": "joint", "kind": "descent", "train": ["E", "p", "v", "W", "b"], "optimizer": "adam"}
        | {"step_size": 3e-2, "steps": 40}
    ],
    "probes": {"per_decade": 0, "min_count": 1},
    "blocks": {"drawn": {}, "one": {"model": {"weights": "identity"}}},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return ja.Study.of_tables(STUDY).run(tmp_path_factory.mktemp("measures") / "run", quiet=True)


def spearman_by_hand(tokens):
    x, y = tokens["posterior_difference"].to_numpy(), tokens["Ev"].to_numpy()
    place = np.minimum(np.searchsorted(np.linspace(-1, 1, 21), x, side="right") - 1, 19)
    held = np.unique(place)
    return stats.spearmanr(held, [y[place == k].mean() for k in held]).statistic


def test_directions_are_those_of_a_count(results):
    found = {finding.measured: finding.estimate for finding in directions(results, ITEM).findings}
    assert len(found) == 4
    for cell, block in enumerate(STUDY["blocks"]):
        own = results.tokens[results.tokens["cell"] == cell]
        every = np.array([spearman_by_hand(tokens) for _, tokens in own.groupby("seed")])
        for way, hits in (("rises", (every >= 0.9).sum()), ("falls", (every <= -0.9).sum())):
            estimate = found[f"{block}: share of seeds in which E·v {way}"]
            assert estimate.value == hits / 5
            assert estimate[1:3] == pytest.approx(stats.binomtest(int(hits), 5).proportion_ci(0.95))
    # With drawn weights the head says nothing of the direction; where they are 1 it is that of one layer.
    assert found["one: share of seeds in which E·v rises"].value == 1
    assert found["drawn: share of seeds in which E·v rises"].value < 1


@pytest.mark.parametrize("high", [1.0, 0.5])
def test_the_table_of_bins_counts_tokens_of_a_seed_in_the_bins_of_the_run(results, high):
    """Seeds have corpora of their own: the number in a bin is their mean, and all bins hold every token."""
    config = results.manifest["config"]
    config = config | {"probes": config["probes"] | {"high": high}}
    table = shapes(dataclasses.replace(results, manifest=results.manifest | {"config": config}), ITEM).tables[
        "Bin means"
    ]
    own = results.tokens[results.tokens["cell"] == 0]
    x = own["posterior_difference"].to_numpy()
    # Ratios of counts lie on edges, and begin the next bin.
    counts, edges = np.histogram(np.minimum(x[x <= high] + 1e-6, high), 20, range=(-1, high))
    np.testing.assert_allclose(table["tokens per seed"], counts / 5)
    assert table["posterior difference"].astype(float).to_numpy() == pytest.approx(
        (edges[1:] + edges[:-1]) / 2, abs=0.006
    )
    if high == 1:
        assert (x == 1).any()
        assert table["tokens per seed"].sum() == len(own) / 5
