"""Where half of the seeds cross over as one key grows: by bisection, with an interval over seeds.

A seed has the same random numbers at all values y of the key, so that it has a threshold T of its own: it has
crossed where y ≥ T. With n independent seeds, k(y) of them have crossed at y, and the median of T lies where

    the interval of Clopper and Pearson for k(y) of n contains 1/2,

with at least the coverage of that interval, whatever the law of T: it is the sign test, turned round. As k(y)
is only known where seeds were run, the ends are those values that were run just outside of it. A logistic
curve would give a narrower interval only if T had that law.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxattn.results.intervals import clopper_pearson
from jaxattn.results.labels import by_factors


class Ranks(NamedTuple):
    """How many seeds have to have crossed.

    Attributes:
        low: at the lower end of the interval of the median; 0 if there are too few seeds for one.
        middle: at the median.
        high: at the upper end of the interval; n + 1 if there are too few seeds for one.
    """

    low: int
    middle: int
    high: int


class Bracket(NamedTuple):
    """Two neighbours among some values: fewer than k seeds have crossed at `below`, k or more at `above`.

    Attributes:
        below: place of the value; -1 if there is none so low.
        above: place of the value; the number of values if there is none so high.
    """

    below: int
    above: int


@lru_cache(maxsize=64)
def ranks(seeds: int) -> Ranks:
    """Count the seeds that have crossed at the median and at the ends of its 95 % interval.

    Args:
        seeds: n.

    Returns:
        The smallest k with k ≥ n/2, the smallest whose share may be 1/2, and the smallest that is above it.
    """
    low, high = clopper_pearson(np.arange(seeds + 1), seeds)
    below, above = np.flatnonzero(high < 0.5), np.flatnonzero(low > 0.5)
    first, last = (int(below[-1]) + 1, int(above[0])) if len(below) else (0, seeds + 1)
    return Ranks(first, -(-seeds // 2), last)


def bracket(crossed: Mapping[int, int], rank: int, number: int) -> Bracket:
    """Say between which values a number of seeds is reached, as far as is known.

    Args:
        crossed: how many seeds have crossed, by the places of values that were run.
        rank: k.
        number: how many values there are, ascending.

    Returns:
        The lowest value at which k seeds have crossed, and the highest below it at which fewer have.
    """
    above = min((place for place, count in crossed.items() if count >= rank), default=number)
    below = max((place for place, count in crossed.items() if place < above and count < rank), default=-1)
    return Bracket(below, above)


def wanted(crossed: Mapping[int, int], seeds: int, number: int, parts: int = 2) -> set[int]:
    """List the places of the values to run next: the ends, and what cuts brackets into equal parts.

    Args:
        crossed: as in `bracket`.
        seeds: n.
        number: how many values there are.
        parts: into how many parts.

    Returns:
        The places; none if all is known.
    """

    def cuts(low: int, high: int) -> set[int]:
        return {low + (high - low) * k // parts for k in range(1, parts)} - {low}

    if {0, number - 1} - crossed.keys():
        return ({0, number - 1} | cuts(0, number - 1)) - crossed.keys()
    found = (bracket(crossed, rank, number) for rank in ranks(seeds) if 0 < rank <= seeds)
    inside = [(low, high) for low, high in found if low >= 0 and high < number]
    return {place for low, high in inside for place in cuts(low, high)}


def threshold(crossed: Mapping[int, int], seeds: int, values: Sequence[int | float]) -> dict[str, Any]:
    """Look up the median threshold and its interval.

    Args:
        crossed: as in `bracket`, after all that is `wanted`.
        seeds: n.
        values: ascending; by factors if they grow like that.

    Returns:
        threshold, the middle of its bracket, NaN outside of the values; `above` and `at_most`, the bracket;
        low and high, the interval, ∞ on a side on which it goes beyond the values, NaN for too few seeds.
    """
    ends = [-np.inf, *map(float, values), np.inf]
    low, middle, high = (bracket(crossed, rank, len(values)) for rank in ranks(seeds))
    above, at_most = ends[middle.below + 1], ends[middle.above + 1]
    inside = np.isfinite([above, at_most]).all()
    mean = np.sqrt(above * at_most) if inside and by_factors(values) else (above + at_most) / 2
    enough = ranks(seeds).low > 0
    return {
        "threshold": float(mean) if inside else np.nan,
        "low": ends[low.below + 1] if enough else np.nan,
        "high": ends[high.above + 1] if enough else np.nan,
        "above": above,
        "at_most": at_most,
    }


def counts(outcomes: pd.DataFrame, places: Mapping[Any, int]) -> dict[int, int]:
    """Count the seeds that have crossed at each value: columns y and crossed, one row a seed."""
    return {places[y]: int(own["crossed"].sum()) for y, own in outcomes.groupby("y", sort=False)}


def turned_back(outcomes: pd.DataFrame) -> int:
    """Count the seeds that have crossed at some value and not at a larger one: columns y, seed, crossed."""
    falls = outcomes.sort_values("y").groupby("seed")["crossed"].agg(lambda x: (np.diff(1 * x) < 0).any())
    return int(falls.sum())
