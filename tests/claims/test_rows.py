import math

import numpy as np
import pytest
from scipy import stats

from jaxattn.claims import rows
from jaxattn.claims.rows import Claim, Row, Tolerance, around, at_least, clopper_pearson

PROMISED = Claim("T4.3", "it converges", "somewhere")
BEYOND = Claim("T4.3", "it converges", "elsewhere", promised=False)


@pytest.mark.parametrize("n", [1, 4, 64])
def test_clopper_pearson_for_none_and_for_all_in_closed_form(n):
    edge = 1 - 0.025 ** (1 / n)
    np.testing.assert_allclose(clopper_pearson(0, n), (0, edge), atol=1e-12)
    np.testing.assert_allclose(clopper_pearson(n, n), (1 - edge, 1), atol=1e-12)


@pytest.mark.parametrize(("k", "n"), [(1, 2), (3, 10), (63, 64)])
def test_clopper_pearson_is_made_of_beta_quantiles(k, n):
    expected = stats.beta.ppf(0.025, k, n - k + 1), stats.beta.ppf(0.975, k + 1, n - k)
    np.testing.assert_allclose(clopper_pearson(k, n), expected, rtol=1e-10)


def test_clopper_pearson_covers_whatever_the_probability():
    intervals = np.array([clopper_pearson(k, 20) for k in range(21)])
    for p in np.linspace(0.01, 0.99, 25):
        inside = (intervals[:, 0] <= p) & (p <= intervals[:, 1])
        assert stats.binom.pmf(np.arange(21), 20, p)[inside].sum() >= 0.95


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
        (math.nan, math.nan, "fails", "does not hold"),
        (0.5, math.nan, "fails", "does not hold"),
        (0.5, math.inf, "fails", "does not hold"),
    ],
)
def test_verdicts_at_their_borders(low, high, promised, beyond):
    assert verdict(PROMISED, low, high) == promised
    assert verdict(BEYOND, low, high) == beyond


def test_a_promised_row_without_tolerance_is_never_said_to_hold():
    assert verdict(PROMISED, 0.2, 0.8, None) == "undecided"
    assert verdict(BEYOND, 0.2, 0.8, None) == "measured"
    assert verdict(PROMISED, math.nan, math.nan, None) == "fails"


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


def test_a_single_seed_and_a_seed_that_is_not_finite_fail():
    assert rows.mean(PROMISED, "x", [1.0], around(1.0, 1.0)).verdict == "fails"
    assert rows.mean(PROMISED, "x", [1.0, 1.0, math.nan], around(1.0, 1.0)).verdict == "fails"


def test_how_numbers_are_written():
    assert rows.share(PROMISED, "x", np.ones(64, bool)).text == "64 of 64 [0.944, 1.00]"
    assert rows.with_interval(-0.4992, -0.5177, -0.4807) == "-0.499 [-0.518, -0.481]"
    assert rows.with_interval(2.0, 2.0, 2.0) == "2.00 [2.00, 2.00]"
    assert around(-0.5, 0.05).text == "-0.5 ± 0.05"
    assert at_least(0.9).text == "≥ 0.9"
    assert [rows.brief(x) for x in (1e-9, 1e6, 200.0)] == ["1e-9", "1e6", "200"]


def test_powers_of_exact_laws():
    x = np.array([[1.0, 10.0, 100.0], [2.0, 3.0, 5.0], [1.0, 2.0, 3.0]])
    y = 7 * x ** np.array([[-2.0], [0.5], [1.0]])
    y[0, 1] = np.nan
    y[2, 1:] = np.nan
    np.testing.assert_allclose(rows.powers(x, y), [-2.0, 0.5, np.nan], rtol=1e-12)
