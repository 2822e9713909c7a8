import numpy as np
import pandas as pd
import pytest

from jaxattn.claims.rows import around, at_least
from jaxattn.paper import compare
from jaxattn.paper.compare import AGREES, CANNOT_TELL, DIFFERS, MEASURED, Estimate, Finding

X = np.linspace(-0.95, 0.95, 20)
EDGES = np.linspace(-1, 1, 21)


def planted(rng, shape, seeds=1, noise=0.1, tokens=2000):
    """Tokens whose E·p follows a shape of the posterior difference."""
    frames = []
    for seed in range(seeds):
        x = rng.uniform(-1, 1, tokens)
        frames.append(
            {"seed": seed, "posterior_difference": x, "Ep": shape(x) + noise * rng.normal(size=tokens)}
        )
    return pd.concat([pd.DataFrame(frame) for frame in frames], ignore_index=True)


@pytest.mark.parametrize("seeds", [1, 6])
def test_a_planted_u_is_found_with_its_minimum_and_a_line_is_none(rng, seeds):
    u = compare.binned(planted(rng, np.square, seeds), "Ep", edges=EDGES)
    line = compare.binned(planted(rng, lambda x: x, seeds), "Ep", edges=EDGES)
    assert compare.estimate(compare.u_shape(u.mean, u.centres)).low > 0.9
    assert compare.estimate(compare.u_shape(line.mean, line.centres)).high < -0.9
    value, low, high = compare.estimate(compare.lowest(u.mean, u.centres))
    assert -0.2 < low <= value <= high < 0.2
    assert compare.estimate(compare.lowest(line.mean, line.centres)).value == pytest.approx(-0.95)


def test_noise_without_a_shape_has_an_interval_that_cannot_agree(rng):
    flat = compare.binned(planted(rng, np.zeros_like, noise=1.0), "Ep", edges=EDGES)
    found = Finding("", compare.estimate(compare.u_shape(flat.mean, flat.centres)), "", at_least(0.8))
    assert found.verdict in (DIFFERS, CANNOT_TELL)
    assert found.estimate.high - found.estimate.low > 0.3


def test_means_and_spread_are_those_of_a_loop(rng):
    tokens = planted(rng, np.square, seeds=3)
    tokens.loc[5, "posterior_difference"] = 1.7
    own = compare.binned(tokens, "Ep", edges=EDGES)
    for b in range(20):
        inside = tokens["posterior_difference"].between(EDGES[b], EDGES[b + 1])
        y = tokens["Ep"][inside]
        assert own.tokens[b] == len(y)
        np.testing.assert_allclose([own.mean[0, b], own.sd[0, b]], [y.mean(), y.std(ddof=0)], rtol=1e-12)


def test_the_interval_over_seeds_is_as_wide_as_the_seeds_differ(rng):
    tokens = planted(rng, np.zeros_like, seeds=20, noise=0.0)
    tokens["Ep"] += tokens["seed"].map(dict(enumerate(rng.normal(size=20))))
    own = compare.binned(tokens, "Ep", edges=[-1, 1])
    by_seed = tokens.groupby("seed")["Ep"].mean()
    assert own.mean[1:, 0].std() == pytest.approx(by_seed.std(ddof=0) / np.sqrt(20), rel=0.1)


def test_the_longest_rise_is_found_across_an_empty_bin():
    row = np.array([3.0, 1.0, np.nan, 2.0, 4.0, 3.0, 3.5])
    bins, first, last = compare.longest_rise(row[None])
    assert (bins[0], first[0], last[0]) == (3, 1, 4)


def test_signs_that_are_all_wrong_count_zero():
    assert compare.sign_change(np.sign(X)[None], X)[0] == 1
    assert compare.sign_change(-np.sign(X)[None], X)[0] == 0


@pytest.mark.parametrize(
    ("estimate", "criterion", "expected"),
    [
        (Estimate(0.95, 0.91, 0.99), at_least(0.9), AGREES),
        (Estimate(0.95, 0.85, 0.99), at_least(0.9), CANNOT_TELL),
        (Estimate(0.5, 0.4, 0.6), at_least(0.9), DIFFERS),
        (Estimate(0.5, 0.4, 0.6), around(0.0, 0.3), DIFFERS),
        (Estimate(0.95, np.nan, np.nan), at_least(0.9), CANNOT_TELL),
        (Estimate(0.95, 0.91, 0.99), None, MEASURED),
    ],
)
def test_one_rule_gives_the_verdict(estimate, criterion, expected):
    assert Finding("", estimate, "", criterion).verdict == expected


def test_an_item_agrees_only_if_all_its_findings_do():
    good = Finding("", Estimate(1.0, 1.0, 1.0), "", at_least(0.9))
    bad = Finding("", Estimate(0.0, 0.0, 0.0), "", at_least(0.9))
    lone = Finding("", Estimate(0.0, 0.0, 0.0), "")
    assert compare.verdict([good, lone]) == AGREES
    assert compare.verdict([good, bad, good]) == "agrees in 2, differs in 1"
    assert compare.verdict([lone]) == MEASURED
