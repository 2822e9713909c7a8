import math

import numpy as np
import pytest
from scipy import stats

from jaxattn.claims import rows
from jaxattn.claims.rows import Claim, Row, Tolerance, around, at_least

PROMISED = Claim("T4.3", "it converges", "somewhere")
BEYOND = Claim("T4.3", "it converges", "elsewhere", promised=False)


def test_t_interval_is_the_textbook_one():
    samples = np.array([1.0, 2.0, 4.0, 5.0])
    half = stats.t.ppf(0.975, 3) * samples.std(ddof=1) / 2
    row = rows.mean(PROMISED, "x", samples)
    np.testing.assert_allclose((row.value, row.low, row.high), (3, 3 - half, 3 + half))
    cut = rows.mean(PROMISED, "x", samples, between=(2.9, 3.1))
    assert (cut.low, cut.high) == (2.9, 3.1)


def verdict(claim, low, high, tolerance=Tolerance(0.0, 1.0, "")):  # noqa: B008
    return Row(claim, "x", (low + high) / 2, low, high, 8, tolerance=tolerance).verdict


@pytest.mark.parametrize(
    ("low", "high", "promised", "beyond"),
    [
        (0.2, 0.8, "holds", "holds there too"),
        (0.0, 1.0, "holds", "holds there too"),
        (0.0, np.nextafter(1, 2), "undecided", "undecided"),
        (-1.0, 2.0, "undecided", "undecided"),
        (1.0, 2.0, "undecided", "undecided"),
        (np.nextafter(1, 2), 2.0, "fails", "does not hold"),
        (-2.0, -1.0, "fails", "does not hold"),
        (math.nan, math.nan, "undecided", "undecided"),
        (0.5, math.nan, "undecided", "undecided"),
        (0.5, math.inf, "undecided", "undecided"),
    ],
)
def test_verdicts_at_their_borders(low, high, promised, beyond):
    assert verdict(PROMISED, low, high) == promised
    assert verdict(BEYOND, low, high) == beyond


def test_a_promised_row_without_tolerance_is_never_said_to_hold():
    assert verdict(PROMISED, 0.2, 0.8, None) == "undecided"
    assert verdict(BEYOND, 0.2, 0.8, None) == "measured"
    assert verdict(PROMISED, math.nan, math.nan, None) == "undecided"


@pytest.mark.parametrize(
    ("hits", "seeds", "promised", "beyond"),
    [
        (36, 36, "holds", "holds there too"),
        (35, 35, "undecided", "undecided"),
        (63, 64, "holds", "holds there too"),
        (62, 64, "undecided", "undecided"),
        (40, 64, "fails", "holds for some"),
        (0, 64, "fails", "does not hold"),
        (0, 2, "fails", "does not hold"),
    ],
)
def test_shares_of_seeds(hits, seeds, promised, beyond):
    satisfied = np.arange(seeds) < hits
    assert rows.share(PROMISED, "x", satisfied).verdict == promised
    assert rows.share(BEYOND, "x", satisfied).verdict == beyond


def test_a_single_seed_decides_nothing():
    assert rows.mean(PROMISED, "x", [1.0], around(1.0, 1.0)).verdict == "undecided"


@pytest.mark.parametrize(("claim", "expected"), [(PROMISED, "holds"), (BEYOND, "holds there too")])
def test_a_row_is_over_the_seeds_that_have_a_value(claim, expected):
    samples = np.array([*np.linspace(0.9, 1.1, 9), math.nan])
    row = rows.mean(claim, "x", samples, around(1.0, 0.5), why="the flow met NaN")
    np.testing.assert_allclose(
        [row.value, row.low], [1.0, stats.t.interval(0.95, 8, 1, stats.sem(samples[:9]))[0]]
    )
    assert (row.verdict, row.seeds, row.missing) == (expected, 9, 1)
    assert row.counted == "9 of 10: in 1 the flow met NaN"
    known = np.arange(40) < 39
    found = rows.share(claim, "x", known, known=known, why="the flow met NaN")
    assert (found.verdict, found.text[:8]) == (expected, "39 of 39")
    none = rows.mean(claim, "x", [math.nan, math.nan], around(1.0, 0.5))
    assert (none.verdict, none.text, none.counted) == ("undecided", "no value", "0 of 2: in 2 it is NaN")


def test_seeds_that_are_equal_have_no_interval():
    row = rows.mean(PROMISED, "x", np.zeros(7), around(0.0, 0.1))
    assert math.isnan(row.low)
    assert (row.verdict, row.text) == ("holds", "0 in all 7")
    assert rows.mean(PROMISED, "x", np.zeros(5), around(0.0, 0.1)).verdict == "undecided"
    assert rows.mean(BEYOND, "x", np.zeros(5)).verdict == "measured"


def test_so_many_seeds_decide_a_yes_or_no():
    holds = [rows.share(PROMISED, "x", np.ones(n, bool)).verdict == "holds" for n in range(1, 60)]
    assert holds.index(True) + 1 == rows.DECIDING_SEEDS == 36


def test_how_numbers_are_written():
    assert rows.share(PROMISED, "x", np.ones(64, bool)).text == "64 of 64 [0.944, 1.00]"
    assert around(-0.5, 0.05).text == "-0.5 ± 0.05"
    assert at_least(0.9).text == "≥ 0.9"
