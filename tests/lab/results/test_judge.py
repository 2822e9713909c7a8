import math

import numpy as np
import pytest
from scipy import stats

from jaxattn.lab.results import judge
from jaxattn.lab.results.judge import Criterion, Estimate, around, at_least, verdict, within_factor

UNIT = Criterion(0.0, 1.0, "")


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [
        (0.2, 0.8, "agrees"),
        (0.0, 1.0, "agrees"),
        (0.0, 1.00001, "inconclusive"),
        (-1.0, 2.0, "inconclusive"),
        (1.0, 2.0, "inconclusive"),
        (1.00001, 2.0, "differs"),
        (-2.0, -1.0, "differs"),
        (math.nan, math.nan, "inconclusive"),
        (0.5, math.nan, "inconclusive"),
        (0.5, math.inf, "inconclusive"),
    ],
)
def test_verdict_depends_on_where_the_interval_lies_relative_to_the_criterion(low, high, where):
    assert verdict(Estimate((low + high) / 2, low, high, 8), UNIT) == where


@pytest.mark.parametrize(
    ("value", "seeds", "where"),
    [(0.5, 5, "inconclusive"), (0.5, 6, "agrees"), (1.5, 6, "differs"), (math.nan, 6, "inconclusive")],
)
def test_value_is_compared_with_the_criterion_if_enough_seeds_are_equal(value, seeds, where):
    assert verdict(Estimate(value, math.nan, math.nan, seeds), UNIT) == where


def test_fraction_in_float32_meets_its_decimal_criterion():
    value = float(np.float32(0.95))
    assert value < 0.95
    equal = Estimate(value, math.nan, math.nan, 6)
    assert verdict(equal, Criterion(0.95, math.inf, "")) == "agrees"
    assert verdict(equal, Criterion(-math.inf, 0.949, "")) == "differs"


@pytest.mark.parametrize(
    ("hits", "seeds", "expected"),
    [
        (36, 36, "agrees"),
        (35, 35, "inconclusive"),
        (63, 64, "agrees"),
        (62, 64, "inconclusive"),
        (40, 64, "differs"),
        (0, 64, "differs"),
        (0, 2, "differs"),
    ],
)
def test_fraction_has_a_clopper_pearson_interval(hits, seeds, expected):
    found = judge.share(np.arange(seeds) < hits)
    interval = stats.binomtest(hits, seeds).proportion_ci(method="exact")
    np.testing.assert_allclose(found[:3], [hits / seeds, interval.low, interval.high], rtol=1e-9)
    assert (found.seeds, found.missing, found.hits) == (seeds, 0, hits)
    assert verdict(found, at_least(0.9)) == expected


def test_mean_over_finite_seeds_has_a_t_interval():
    samples = np.array([1.0, 2.0, 4.0, 5.0])
    half = stats.t.ppf(0.975, 3) * samples.std(ddof=1) / 2
    for given, missing in ((samples, 0), ([1, math.nan, 2, 4, math.inf, 5], 2)):
        found = judge.mean(given)
        np.testing.assert_allclose(found[:3], (3, 3 - half, 3 + half))
        assert found[3:] == (4, missing, None)
    assert judge.mean(samples, between=(2.9, 3.1))[:3] == (3, 2.9, 3.1)
    assert np.isnan(judge.mean([math.nan] * 3)[:3]).all()
    assert judge.mean([math.nan] * 3)[3:] == (0, 3, None)
    assert judge.share([True, False, True], known=[True, True, False])[3:] == (2, 1, 1)
    assert judge.share([True], known=[False])[3:] == (0, 1, 0)


def test_jackknifed_mean_has_a_t_interval(rng):
    samples = rng.normal(size=20)
    rows = [samples.mean(), *((samples.sum() - x) / 19 for x in samples)]
    np.testing.assert_allclose(judge.jackknifed(rows)[:4], judge.mean(samples)[:4], rtol=1e-9)


def test_resolution_widens_the_compared_range():
    narrow = judge.jackknifed([0.5, 0.5, 0.5 + 1e-6])
    verdicts = [verdict(narrow, around(0.5, 0.15), resolution=width) for width in (0.0, 0.2, 0.4)]
    assert verdicts == ["agrees", "agrees", "inconclusive"]


def test_value_at_a_bound_of_its_range_has_no_interval_if_all_seeds_agree():
    same = judge.jackknifed(np.ones(7), (-1.0, 1.0))
    assert np.isnan([same.low, same.high]).all()
    assert verdict(same, at_least(0.9)) == "agrees"
    assert verdict(judge.jackknifed(np.ones(6), (-1.0, 1.0)), at_least(0.9)) == "inconclusive"
    near = judge.jackknifed([0.99, *[1.0] * 5, 0.94], (-1.0, 1.0))
    assert near.low < near.value < near.high == 1
    assert judge.jackknifed([0.95]).seeds == 1
    assert verdict(judge.jackknifed([0.95]), at_least(0.9)) == "inconclusive"


def test_criteria_and_numbers_are_formatted():
    assert around(-0.5, 0.05) == (-0.55, -0.45, "-0.5 ± 0.05")
    assert at_least(0.9) == (0.9, math.inf, "≥ 0.9")
    assert within_factor(8.0, 2.0) == (4.0, 16.0, "8 within a factor of 2")
    assert judge.mean(np.zeros(7)).text("in all 7") == "0 in all 7"
    assert judge.mean([1.0]).text("in all 1") == "1.00"
