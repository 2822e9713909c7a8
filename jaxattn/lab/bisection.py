"""Phase diagrams by bisection: for each x, find the median over seeds of the threshold in y.

A seed uses the same random numbers at every y. It has crossed at y if a metric reaches a given level. This
is assumed to happen exactly for y ≥ T, where T is the threshold of the seed. At a given y, k(y) of the n
independent seeds have crossed. The confidence interval for the median of T consists of all y for which

    the Clopper-Pearson interval for k(y) out of n contains 1/2.

The interval inverts the sign test, so its coverage is at least that of the Clopper-Pearson interval,
whatever the distribution of T. Because k(y) is known only at the values of y that were run, the ends of the
interval are rounded outwards to the nearest of these values.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxattn.core.errors import InputError, RunError
from jaxattn.core.fractions import reaches
from jaxattn.lab.api import Study
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.monitor import ending_as_asked
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.run_study import run_study as execute
from jaxattn.lab.figures.diagram import PhaseDiagram
from jaxattn.lab.loaded import load
from jaxattn.lab.results.intervals import clopper_pearson
from jaxattn.lab.results.labels import grow_by_factors
from jaxattn.lab.results.statistics import metric_at_end
from jaxattn.lab.study.grid import GRID

Values = Mapping[str, Sequence[float | str] | np.ndarray]


def phase_diagram(
    study: Study,
    *,
    x: Values,
    y: Values,
    metric: str,
    level: float = 0.5,
    falls: bool = False,
    parts: int = 4,
    phase: str | None = None,
    folder: str | Path | None = None,
    quiet: bool = False,
) -> PhaseDiagram:
    """Find, for each x, the y at which half of the seeds reach a given level of a metric, by bisection.

    A seed has crossed if its metric is at least `level` at the end of a phase (with `falls`: if it is below
    `level` or not finite). A value that differs from the level only by rounding errors reaches it; see
    `jaxattn.core.fractions.reaches`. The method assumes that a seed that has crossed at y also crosses at
    every larger y; `thresholds["turned_back"]` counts the seeds that violate this. All seeds are first run at
    both ends of the y range and at points in between. Further points are added near the median threshold and
    near both ends of its confidence interval, until neighbouring values of y bracket all three points. The
    module docstring of `jaxattn.lab.bisection` defines the interval, which requires at least six seeds.

    All rounds use the same folder. Points and seeds from earlier rounds with the same settings and code are
    not run again. A call with more seeds, or with a different x, y, level or metric,
    therefore runs only the missing points. To resume a call that was killed, repeat it.

    Args:
        study: the study, without the x and y keys and without a grid. Its seeds are run at each point.
        x: key of the horizontal axis and its values.
        y: key to bisect and its values in ascending order, for example from `numpy.geomspace`. The
            threshold is located between neighbouring values.
        metric: name of the metric.
        level: value of the metric at which a seed crosses.
        falls: True if the metric falls below the level as y grows, as at the upper end of a window.
        parts: number of parts into which each round divides an interval. 2 requires the fewest points. Larger
            numbers require fewer rounds, each of which is compiled separately.
        phase: name of the phase; defaults to the last one that records the metric.
        folder: folder for the rounds; defaults to results/NAME_phase_diagram.
        quiet: True to hide the progress display.

    Returns:
        The thresholds, and the outcomes at all points.

    Raises:
        InputError: the study has a grid, x or y has several keys, values are not ascending, or the metric
            is unknown.
        RunError: a round could not be run.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM was received; repeat the call to resume.
    """
    (x_key, columns), (y_key, values) = _axis("x", x), _axis("y", y)
    _check(study, y_key, values, parts)
    default = study.folder().with_name(f"{study.name}_phase_diagram")
    measured = _Measured(study, Path(folder or default), metric, phase)
    seeds = len(study.seeds)
    index_of = {value: index for index, value in enumerate(values)}
    points = [(c, values[k]) for c in columns for k in sorted(wanted({}, seeds, len(values), parts))]
    outcomes = pd.DataFrame()
    with ending_as_asked(), Reporter(quiet) as reporter:
        while points:
            cells = [{x_key: column, y_key: value} for column, value in points]
            more = measured.outcomes(cells, reporter).rename(columns={x_key: "x", y_key: "y"})
            reached = reaches(more["value"], level, dtype=study.dtype)
            more["crossed"] = ~reached if falls else reached
            outcomes = pd.concat([outcomes, more], ignore_index=True)
            known = {column: outcomes[outcomes["x"] == column] for column in columns}
            crossed = {column: counts(own, index_of) for column, own in known.items()}
            points = [
                (column, values[index])
                for column in columns
                for index in sorted(wanted(crossed[column], seeds, len(values), parts))
            ]
    rows = [
        {"x": column, **threshold(crossed[column], seeds, values)}
        | {"seeds": seeds, "missing": int((~np.isfinite(known[column]["value"])).sum())}
        | {"turned_back": turned_back(known[column])}
        for column in columns
    ]
    condition = f"{metric} {'<' if falls else '≥'} {level:g}"
    return PhaseDiagram(x_key, y_key, condition, outcomes, pd.DataFrame(rows))


class Ranks(NamedTuple):
    """Numbers k of crossed seeds at which y reaches the median threshold and the ends of its 95 % interval.

    Attributes:
        low: k at the lower end; 0 if there are too few seeds for an interval.
        middle: k at the median.
        high: k at the upper end; n + 1 if there are too few of the n seeds for an interval.
    """

    low: int
    middle: int
    high: int


class Bracket(NamedTuple):
    """Neighbouring values of y, among those run, between which the number of crossed seeds reaches k.

    Attributes:
        below: index of the largest value at which fewer than k seeds have crossed; -1 if there is none.
        above: index of the smallest value at which at least k seeds have crossed; the number of values if
            there is none.
    """

    below: int
    above: int


@lru_cache(maxsize=64)
def ranks(seeds: int) -> Ranks:
    """Return the numbers of crossed seeds at the median threshold and at the ends of its 95 % interval.

    Args:
        seeds: number of seeds n.

    Returns:
        The smallest k such that the 95 % Clopper-Pearson interval for k out of n contains 1/2, the smallest
        k ≥ n/2, and the smallest k such that the interval lies above 1/2.
    """
    low, high = clopper_pearson(np.arange(seeds + 1), seeds)
    below, above = np.flatnonzero(high < 0.5), np.flatnonzero(low > 0.5)
    first, last = (int(below[-1]) + 1, int(above[0])) if len(below) else (0, seeds + 1)
    return Ranks(first, -(-seeds // 2), last)


def bracket(crossed: Mapping[int, int], rank: int, number: int) -> Bracket:
    """Find the neighbouring values of y between which the number of crossed seeds reaches `rank`.

    Args:
        crossed: number of crossed seeds for each value that was run, keyed by the index of the value.
        rank: the number of crossed seeds to reach.
        number: number of values of y, including those not yet run.
    """
    above = min((index for index, count in crossed.items() if count >= rank), default=number)
    below = max((index for index, count in crossed.items() if index < above and count < rank), default=-1)
    return Bracket(below, above)


def wanted(crossed: Mapping[int, int], seeds: int, number: int, parts: int = 2) -> set[int]:
    """Return the indices of the values to run next: missing ends, and points that divide each bracket evenly.

    The result is empty once neighbouring values bracket all thresholds. `crossed` is as in `bracket`, and
    `parts` is the number of parts into which a bracket is divided.
    """

    def cuts(low: int, high: int) -> set[int]:
        return {low + (high - low) * k // parts for k in range(1, parts)} - {low}

    if {0, number - 1} - crossed.keys():
        return ({0, number - 1} | cuts(0, number - 1)) - crossed.keys()
    found = (bracket(crossed, rank, number) for rank in ranks(seeds) if 0 < rank <= seeds)
    inside = [(low, high) for low, high in found if low >= 0 and high < number]
    return {index for low, high in inside for index in cuts(low, high)}


def threshold(crossed: Mapping[int, int], seeds: int, values: Sequence[int | float]) -> dict[str, Any]:
    """Return the median threshold, its bracket and its 95 % confidence interval.

    Args:
        crossed: as in `bracket`, after all points in `wanted` have been run.
        seeds: number of seeds n.
        values: ascending values, linearly or geometrically spaced.

    Returns:
        A dictionary. `threshold` is the midpoint of the bracket, or the geometric midpoint if the values are
        geometrically spaced; it is NaN if the threshold is outside the range of the values. `above` and
        `at_most` are the ends of the bracket. `low` and `high` are the ends of the interval: infinite if they
        are outside the range of the values, and NaN if there are too few seeds.
    """
    ends = [-np.inf, *map(float, values), np.inf]
    low, middle, high = (bracket(crossed, rank, len(values)) for rank in ranks(seeds))
    above, at_most = ends[middle.below + 1], ends[middle.above + 1]
    inside = np.isfinite([above, at_most]).all()
    mean = np.sqrt(above * at_most) if inside and grow_by_factors(values) else (above + at_most) / 2
    enough = ranks(seeds).low > 0
    return {
        "threshold": float(mean) if inside else np.nan,
        "low": ends[low.below + 1] if enough else np.nan,
        "high": ends[high.above + 1] if enough else np.nan,
        "above": above,
        "at_most": at_most,
    }


def counts(outcomes: pd.DataFrame, index_of: Mapping[Any, int]) -> dict[int, int]:
    """Count the crossed seeds at each value of y.

    Args:
        outcomes: table with columns y and crossed, and one row per seed and value of y.
        index_of: index of each value of y.

    Returns:
        The number of crossed seeds, keyed by the index of the value.
    """
    return {index_of[y]: int(own["crossed"].sum()) for y, own in outcomes.groupby("y", sort=False)}


def turned_back(outcomes: pd.DataFrame) -> int:
    """Count the seeds that crossed at some y but not at a larger y.

    The columns of `outcomes` include y, seed and crossed.
    """
    falls = outcomes.sort_values("y").groupby("seed")["crossed"].agg(lambda x: (np.diff(1 * x) < 0).any())
    return int(falls.sum())


def _check(study: Study, y_key: str, values: list[Any], parts: int) -> None:
    if len(values) < 2 or any(later <= sooner for sooner, later in itertools.pairwise(values)):
        raise InputError(f"y: expected at least two values of {y_key} in ascending order")
    if parts < 2:
        raise InputError(f"parts: must be at least 2, got {parts}")
    if grid := [key for key in (*GRID, "blocks") if study.tree.get(key)]:
        raise InputError(f"study: {grid[0]} cannot be combined with x and y; remove {grid[0]}")


def _axis(name: str, given: Values) -> tuple[str, list[Any]]:
    if len(given) != 1:
        raise InputError(f"{name}: expected one key with its values, got {len(given)} keys")
    ((key, values),) = given.items()
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    if repeated := [value for k, value in enumerate(values) if value in values[:k]]:
        raise InputError(f"{name}: {key} = {repeated[0]!r} is listed twice; list every value once")
    return key, values


class _Measured:
    """Metric values of all rounds, keyed by the hash of a cell's settings and by seed."""

    def __init__(self, study: Study, folder: Path, metric: str, phase: str | None) -> None:
        self._study, self._folder = study, folder
        self._metric, self._phase = metric, phase
        self._values: dict[tuple[str, int], float] = {}

    def outcomes(self, cells: list[dict[str, Any]], reporter: Reporter) -> pd.DataFrame:
        """Run the seeds whose value is missing; return one row per cell and seed, with settings and value."""
        made = self._with(cells, self._study.seeds).cells
        missing: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for cell in made:
            hash, seeds = cell.config_hash, self._study.seeds
            if left := tuple(seed for seed in seeds if (hash, seed) not in self._values):
                missing.setdefault(left, []).append(cell.settings)
        for seeds, settings in missing.items():
            self._run(self._with(settings, seeds), reporter)
        rows = [
            {**cell.settings, "seed": seed, "value": self._values[cell.config_hash, seed]}
            for cell in made
            for seed in self._study.seeds
        ]
        return pd.DataFrame(rows)

    def _with(self, cells: list[dict[str, Any]], seeds: Sequence[int]) -> Study:
        tables = {key: table for key, table in self._study.tree.items() if key != "figures"}
        return Study.from_tables(tables | {"cells": cells, "seeds": list(seeds)}, self._study.names)

    def _run(self, study: Study, reporter: Reporter) -> None:
        devices.use_all_cores()
        # The folder keeps the runs of all rounds, so a second call finds them again.
        outcome = execute(study, self._folder, command="jaxattn.phase_diagram", reporter=reporter)
        if outcome.errors:
            raise RunError(f"{self._folder}: {outcome.errors[0]['reason']}")
        results = load(self._folder)
        hashes = {cell["cell"]: cell["config_hash"] for cell in results.manifest["cells"]}
        last, _ = metric_at_end(results.records, self._metric, self._phase)
        # Seeds that failed in an earlier phase have no table row.
        seeds = results.manifest["seeds"]
        self._values |= dict.fromkeys(itertools.product(hashes.values(), seeds), math.nan)
        self._values |= {
            (hashes[cell], int(seed)): float(value)
            for cell, seed, value in last[["cell", "seed", "value"]].itertuples(index=False)
        }
