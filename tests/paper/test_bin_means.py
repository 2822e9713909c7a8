"""Bin means of the paper's figures, recomputed from the tokens with NumPy and SciPy."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import jaxattn as ja
from jaxattn.lab.books import at_least, cells, leave_one_out, lowest, u_shape
from jaxattn.lab.results.judge import mean
from jaxattn.lab.study.import_paths import ImportPaths

PAPER = Path(__file__).parents[2] / "sweeps" / "paper"
CODE = ImportPaths(PAPER).load
binned = CODE("bin_means.py:binned")
EDGES = np.linspace(-1, 1, 21)


def planted(rng, shape, seeds=1, noise=0.1, tokens=2000):
    """Build tokens whose E·p has a given shape over the posterior difference."""
    frames = []
    for seed in range(seeds):
        x = rng.uniform(-1, 1, tokens)
        y = shape(x) + noise * rng.normal(size=tokens)
        frames.append(pd.DataFrame({"seed": seed, "posterior_difference": x, "Ep": y}))
    return pd.concat(frames, ignore_index=True)


def score(bins, least):
    """Compare the U-shape score of bin means with a criterion."""
    return leave_one_out("u", "U-shape", u_shape(bins.mean, bins.centres), expected=at_least(least))


def test_u_shape_agrees_and_a_line_differs(rng):
    u = binned(planted(rng, np.square, 6), "Ep", edges=EDGES)
    line = binned(planted(rng, lambda x: x, 6), "Ep", edges=EDGES)
    assert (score(u, 0.9).verdict, score(line, -0.9).verdict) == ("agrees", "differs")
    place = leave_one_out("x", "minimum", lowest(u.mean, u.centres), resolution=u.width)
    assert abs(place.value) < 0.3
    assert (place.seeds, place.resolution) == (6, pytest.approx(0.1))
    assert lowest(line.mean, line.centres)[0] == pytest.approx(-0.95)


def test_noise_and_a_single_seed_do_not_agree(rng):
    flat = score(binned(planted(rng, np.zeros_like, 6, noise=1.0), "Ep", edges=EDGES), 0.8)
    assert flat.verdict in ("differs", "inconclusive")
    assert flat.interval[1] - flat.interval[0] > 0.3
    lone = score(binned(planted(rng, np.square), "Ep", edges=EDGES), 0.8)
    assert lone.value > 0.8
    assert (lone.verdict, lone.counted, lone.interval) == ("inconclusive", "1 seed", None)


def test_bin_means_and_spread_match_a_loop(rng):
    tokens = planted(rng, np.square, seeds=3)
    tokens.loc[5, "posterior_difference"] = 1.7
    own = binned(tokens, "Ep", edges=EDGES)
    for b in range(20):
        y = tokens["Ep"][tokens["posterior_difference"].between(EDGES[b], EDGES[b + 1])]
        assert own.tokens[b] == len(y) / 3
        np.testing.assert_allclose([own.mean[0, b], own.sd[0, b]], [y.mean(), y.std(ddof=0)], rtol=1e-12)


def test_interval_width_matches_the_spread_over_seeds(rng):
    tokens = planted(rng, np.zeros_like, seeds=20, noise=0.0)
    tokens["Ep"] += tokens["seed"].map(dict(enumerate(rng.normal(size=20))))
    own = binned(tokens, "Ep", edges=[-1, 1])
    found = leave_one_out("mean", "mean", own.mean[:, 0])
    # All seeds have the same number of tokens, so the mean over tokens is the mean over seeds.
    expected = mean(tokens.groupby("seed")["Ep"].mean())
    np.testing.assert_allclose([found.value, *found.interval], expected[:3], rtol=1e-9)


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
    "blocks": {"as mlp_imdb": {}, "W starts at 1": {"model": {"weights": "identity"}}},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return ja.Study.from_tables(STUDY).run(tmp_path_factory.mktemp("measures") / "run", quiet=True)


def spearman_by_hand(tokens):
    x, y = tokens["posterior_difference"].to_numpy(), tokens["Ev"].to_numpy()
    place = np.minimum(np.searchsorted(np.linspace(-1, 1, 21), x, side="right") - 1, 19)
    held = np.unique(place)
    return stats.spearmanr(held, [y[place == k].mean() for k in held]).statistic


@pytest.mark.more
def test_shares_of_rising_and_falling_seeds_match_an_independent_calculation(results):
    check = ImportPaths(PAPER / "mlp_imdb_varied").load("check.py:check")
    found = {finding.id: finding for finding in check({"study": results})}
    assert len(found) == 4
    for cell in cells(results):
        own = results.tokens[results.tokens["cell"] == cell.cell]
        every = np.array([spearman_by_hand(tokens) for _, tokens in own.groupby("seed")])
        for way, hits in (("rises", (every >= 0.9).sum()), ("falls", (every <= -0.9).sum())):
            finding = found[f"{cell.id}.{way}"]
            assert finding.counts == (hits, 5)
            assert finding.interval == pytest.approx(stats.binomtest(int(hits), 5).proportion_ci(0.95))
    # With random weights E·v may rise or fall; with weights of 1 it rises as for one layer.
    assert found["w-starts-at-1.rises"].value == 1
    assert found["as-mlp-imdb.rises"].value < 1


@pytest.mark.more
@pytest.mark.parametrize("high", [1.0, 0.5])
def test_bin_table_counts_tokens_per_seed(results, high):
    """Seeds have different corpora: counts are means over seeds, and the bins cover all tokens."""
    config = results.manifest["config"]
    config = config | {"probes": config["probes"] | {"high": high}}
    changed = dataclasses.replace(results, manifest=results.manifest | {"config": config})
    table = CODE("figure_shapes.py:bin_table")(cells(changed)[0])["Bin means"]
    own = results.tokens[results.tokens["cell"] == 0]
    x = own["posterior_difference"].to_numpy()
    # Ratios of counts lie on edges, and belong to the upper bin.
    counts, edges = np.histogram(np.minimum(x[x <= high] + 1e-6, high), 20, range=(-1, high))
    np.testing.assert_allclose(table["tokens per seed"], counts / 5)
    centres = table["posterior difference"].astype(float).to_numpy()
    assert centres == pytest.approx((edges[1:] + edges[:-1]) / 2, abs=0.006)
    if high == 1:
        assert (x == 1).any()
        assert table["tokens per seed"].sum() == len(own) / 5


@pytest.mark.parametrize(("name", "low", "high"), [("MLP", -0.95167, 0.885), ("TWO_LAYERS", -0.95167, 0.885)])
def test_published_curves_have_twenty_evenly_spaced_points(name, low, high):
    for curve in CODE(f"published_curves.py:{name}"):
        assert len(curve.values) == len(curve.centres) == 20
        np.testing.assert_allclose(np.diff(curve.centres, 2), 0, atol=1e-12)
        np.testing.assert_allclose(curve.centres[[0, -1]], [low, high], atol=1e-4)


def test_longest_rise_skips_empty_bins():
    row = np.array([3.0, 1.0, np.nan, 2.0, 4.0, 3.0, 3.5])
    length, first, last = CODE("figure_shapes.py:longest_rise")(row[None])
    assert (length[0], first[0], last[0]) == (3, 1, 4)
