import math

import numpy as np
import pytest

from jaxattn.lab.books import rows
from jaxattn.lab.books.rows import Claim
from jaxattn.lab.results.judge import around

PROMISED = Claim("T4.3", "it converges", "somewhere")
BEYOND = Claim("T4.3", "it converges", "elsewhere", promised=False)


@pytest.mark.parametrize(("claim", "expected"), [(PROMISED, "holds"), (BEYOND, "holds there too")])
def test_a_row_says_how_many_seeds_have_no_value_and_why(claim, expected):
    samples = np.array([*np.linspace(0.9, 1.1, 9), math.nan])
    row = rows.mean(claim, "x", samples, around(1.0, 0.5), why="the flow met NaN")
    assert (row.verdict, row.counted) == (expected, "9 of 10: in 1 the flow met NaN")
    known = np.arange(40) < 39
    found = rows.share(claim, "x", known, known=known, why="the flow met NaN")
    assert (found.verdict, found.text[:8]) == (expected, "39 of 39")
    none = rows.mean(claim, "x", [math.nan, math.nan], around(1.0, 0.5))
    assert (none.verdict, none.text, none.counted) == ("undecided", "no value", "0 of 2: in 2 it is NaN")


def test_seeds_that_are_equal_have_no_interval():
    row = rows.mean(PROMISED, "x", np.zeros(7), around(0.0, 0.1))
    assert (row.verdict, row.text) == ("holds", "0 in all 7")
    assert rows.mean(PROMISED, "x", np.zeros(5), around(0.0, 0.1)).verdict == "undecided"
    assert rows.mean(BEYOND, "x", np.zeros(5)).verdict == "measured"
    assert rows.mean(PROMISED, "x", [1.0], around(1.0, 1.0)).verdict == "undecided"


def test_so_many_seeds_decide_a_yes_or_no():
    holds = [rows.share(PROMISED, "x", np.ones(n, bool)).verdict == "holds" for n in range(1, 60)]
    assert holds.index(True) + 1 == rows.DECIDING_SEEDS == 36
    assert rows.share(PROMISED, "x", np.ones(64, bool)).text == "64 of 64 [0.944, 1.00]"
