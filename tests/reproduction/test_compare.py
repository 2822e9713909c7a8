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


def test_a_planted_u_is_found_with_its_minimum_and_a_line_is_none(rng):
    u = compare.binned(planted(rng, np.square, 6), "Ep", edges=EDGES)
    line = compare.binned(planted(rng, lambda x: x, 6), "Ep", edges=EDGES)
    of_u, of_line = (compare.estimate(compare.u_shape(x.mean, x.centres)) for x in (u, line))
    assert Finding("", of_u, "", at_least(0.9)).verdict == AGREES
    assert Finding("", of_line, "", at_least(-0.9)).verdict == DIFFERS
    value, low, high, seeds = compare.estimate(compare.lowest(u.mean, u.centres), width=0.1)
    assert -0.4 < low < value < high < 0.4
    assert high - low >= 0.1 - 1e-12
    assert seeds == 6
    assert compare.estimate(compare.lowest(line.mean, line.centres)).value == pytest.approx(-0.95)


def test_noise_without_a_shape_has_an_interval_that_cannot_agree(rng):
    flat = compare.binned(planted(rng, np.zeros_like, 6, noise=1.0), "Ep", edges=EDGES)
    found = Finding("", compare.estimate(compare.u_shape(flat.mean, flat.centres)), "", at_least(0.8))
    assert found.verdict in (DIFFERS, CANNOT_TELL)
    assert found.estimate.high - found.estimate.low > 0.3


def test_one_seed_decides_nothing(rng):
    lone = compare.binned(planted(rng, np.square), "Ep", edges=EDGES)
    found = Finding("", compare.estimate(compare.u_shape(lone.mean, lone.centres)), lone.over, at_least(0.8))
    assert found.estimate.value > 0.8
    assert (found.verdict, found.over) == (CANNOT_TELL, "one seed")
    width = compare.estimate(compare.lowest(lone.mean, lone.centres), width=0.1)
    assert np.isnan([width.low, width.high]).all()


def test_a_number_at_the_end_of_its_range_has_no_interval():
    same = compare.estimate(np.ones(7), between=(-1.0, 1.0))
    assert np.isnan([same.low, same.high]).all()
    found = Finding("", same, "6 seeds", at_least(0.9))
    assert (found.verdict, found.text) == (AGREES, "1.00 whichever of 6 seeds is left out")
    few = compare.estimate(np.ones(6), between=(-1.0, 1.0))
    assert Finding("", few, "5 seeds", at_least(0.9)).verdict == CANNOT_TELL
    near = compare.estimate([0.99, *[1.0] * 5, 0.94], between=(-1.0, 1.0))
    assert near.low < near.value < near.high == 1


def test_a_mean_is_over_the_seeds_that_have_a_value():
    found = compare.over_seeds([1.0, np.nan, 2.0, 3.0])
    assert (found.value, found.seeds) == (2.0, 3)
    assert found.low < 2 < found.high
    assert compare.over_seeds([np.nan]).seeds == 0


def test_means_and_spread_are_those_of_a_loop(rng):
    tokens = planted(rng, np.square, seeds=3)
    tokens.loc[5, "posterior_difference"] = 1.7
    own = compare.binned(tokens, "Ep", edges=EDGES)
    for b in range(20):
        inside = tokens["posterior_difference"].between(EDGES[b], EDGES[b + 1])
        y = tokens["Ep"][inside]
        assert own.tokens[b] == len(y) / 3
        np.testing.assert_allclose([own.mean[0, b], own.sd[0, b]], [y.mean(), y.std(ddof=0)], rtol=1e-12)


def test_the_interval_over_seeds_is_as_wide_as_the_seeds_differ(rng):
    tokens = planted(rng, np.zeros_like, seeds=20, noise=0.0)
    tokens["Ep"] += tokens["seed"].map(dict(enumerate(rng.normal(size=20))))
    own = compare.binned(tokens, "Ep", edges=[-1, 1])
    found = compare.estimate(own.mean[:, 0])
    # Every seed has the same number of tokens: the mean over tokens is that over seeds.
    expected = compare.over_seeds(tokens.groupby("seed")["Ep"].mean())
    np.testing.assert_allclose(found, expected, rtol=1e-9)


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
