"""Measures of whole runs, recomputed from the tokens with NumPy and SciPy."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.lab.books import read_book
from jaxattn.lab.books.shapes import (
    binned,
    directions,
    longest_rise,
    lowest,
    shapes,
    sign_change,
    u_shape,
)
from jaxattn.lab.results.judge import at_least, jackknifed, mean, verdict

X = np.linspace(-0.95, 0.95, 20)
EDGES = np.linspace(-1, 1, 21)


def planted(rng, shape, seeds=1, noise=0.1, tokens=2000):
    """Build tokens whose E·p has a given shape over the posterior difference."""
    frames = []
    for seed in range(seeds):
        x = rng.uniform(-1, 1, tokens)
        frames.append(
            {"seed": seed, "posterior_difference": x, "Ep": shape(x) + noise * rng.normal(size=tokens)}
        )
    return pd.concat([pd.DataFrame(frame) for frame in frames], ignore_index=True)


def test_u_shape_is_detected_but_a_line_is_not(rng):
    u = binned(planted(rng, np.square, 6), "Ep", edges=EDGES)
    line = binned(planted(rng, lambda x: x, 6), "Ep", edges=EDGES)
    of_u, of_line = (jackknifed(u_shape(x.mean, x.centres)) for x in (u, line))
    assert verdict(of_u, at_least(0.9), "published") == "agrees"
    assert verdict(of_line, at_least(-0.9), "published") == "differs"
    value, low, high, seeds, *_ = jackknifed(lowest(u.mean, u.centres), width=0.1)
    assert -0.4 < low < value < high < 0.4
    assert high - low >= 0.1 - 1e-12
    assert seeds == 6
    assert jackknifed(lowest(line.mean, line.centres)).value == pytest.approx(-0.95)


def test_noise_matches_no_shape(rng):
    flat = binned(planted(rng, np.zeros_like, 6, noise=1.0), "Ep", edges=EDGES)
    found = jackknifed(u_shape(flat.mean, flat.centres))
    assert verdict(found, at_least(0.8), "published") in ("differs", "cannot tell")
    assert found.high - found.low > 0.3


def test_a_single_seed_is_inconclusive(rng):
    lone = binned(planted(rng, np.square), "Ep", edges=EDGES)
    found = jackknifed(u_shape(lone.mean, lone.centres))
    assert found.value > 0.8
    assert (verdict(found, at_least(0.8), "published"), lone.over) == ("cannot tell", "one seed")
    width = jackknifed(lowest(lone.mean, lone.centres), width=0.1)
    assert np.isnan([width.low, width.high]).all()


def test_bin_means_and_spread_match_a_loop(rng):
    tokens = planted(rng, np.square, seeds=3)
    tokens.loc[5, "posterior_difference"] = 1.7
    own = binned(tokens, "Ep", edges=EDGES)
    for b in range(20):
        inside = tokens["posterior_difference"].between(EDGES[b], EDGES[b + 1])
        y = tokens["Ep"][inside]
        assert own.tokens[b] == len(y) / 3
        np.testing.assert_allclose([own.mean[0, b], own.sd[0, b]], [y.mean(), y.std(ddof=0)], rtol=1e-12)


def test_interval_width_matches_the_spread_over_seeds(rng):
    tokens = planted(rng, np.zeros_like, seeds=20, noise=0.0)
    tokens["Ep"] += tokens["seed"].map(dict(enumerate(rng.normal(size=20))))
    own = binned(tokens, "Ep", edges=[-1, 1])
    found = jackknifed(own.mean[:, 0])
    # All seeds have the same number of tokens, so the mean over tokens is the mean over seeds.
    expected = mean(tokens.groupby("seed")["Ep"].mean())
    np.testing.assert_allclose(found[:4], expected[:4], rtol=1e-9)


def test_longest_rise_skips_empty_bins():
    row = np.array([3.0, 1.0, np.nan, 2.0, 4.0, 3.0, 3.5])
    length, first, last = longest_rise(row[None])
    assert (length[0], first[0], last[0]) == (3, 1, 4)


def test_sign_change_is_zero_if_all_signs_are_wrong():
    assert sign_change(np.sign(X)[None], X)[0] == 1
    assert sign_change(-np.sign(X)[None], X)[0] == 0


ITEM = read_book("paper").item("mlp_imdb_varied")
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


@pytest.mark.more
def test_shares_of_rising_and_falling_seeds_match_an_independent_calculation(results):
    found = {finding.measured: finding.estimate for finding in directions(results, ITEM).findings}
    assert len(found) == 4
    for cell, block in enumerate(STUDY["blocks"]):
        own = results.tokens[results.tokens["cell"] == cell]
        every = np.array([spearman_by_hand(tokens) for _, tokens in own.groupby("seed")])
        for way, hits in (("rises", (every >= 0.9).sum()), ("falls", (every <= -0.9).sum())):
            estimate = found[f"{block}: share of seeds in which E·v {way}"]
            assert estimate.value == hits / 5
            assert estimate[1:3] == pytest.approx(stats.binomtest(int(hits), 5).proportion_ci(0.95))
    # With random weights E·v may rise or fall; with weights of 1 it rises as for one layer.
    assert found["one: share of seeds in which E·v rises"].value == 1
    assert found["drawn: share of seeds in which E·v rises"].value < 1


@pytest.mark.more
@pytest.mark.parametrize("high", [1.0, 0.5])
def test_bin_table_counts_tokens_per_seed(results, high):
    """Seeds have different corpora: counts are means over seeds, and the bins cover all tokens."""
    config = results.manifest["config"]
    config = config | {"probes": config["probes"] | {"high": high}}
    table = shapes(dataclasses.replace(results, manifest=results.manifest | {"config": config}), ITEM).tables[
        "Bin means"
    ]
    own = results.tokens[results.tokens["cell"] == 0]
    x = own["posterior_difference"].to_numpy()
    # Ratios of counts lie on edges, and belong to the upper bin.
    counts, edges = np.histogram(np.minimum(x[x <= high] + 1e-6, high), 20, range=(-1, high))
    np.testing.assert_allclose(table["tokens per seed"], counts / 5)
    assert table["posterior difference"].astype(float).to_numpy() == pytest.approx(
        (edges[1:] + edges[:-1]) / 2, abs=0.006
    )
    if high == 1:
        assert (x == 1).any()
        assert table["tokens per seed"].sum() == len(own) / 5
