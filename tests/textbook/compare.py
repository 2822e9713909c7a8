"""Run a study with the package, and compare every record with the textbook."""

import math

from . import grid, package
from .study import simulate

RTOL = 1e-9
# Metrics of order 1 may be differences of terms of order 1, so their errors are absolute.
ATOL = 1e-12


def expected_records(results, tables):
    """Return the cells of a study, and {(cell, seed, phase, step, metric): value}, by the textbook.

    Cells with the same data or model start from the same arrays, since seed k uses the same random numbers in
    every cell.
    """
    cells, recorded, expected, known = grid.cells(tables), package.records_of(results), {}, {}

    def arrays(read, seed, cell, table):
        key = read, seed, repr(cells[cell][1][table])
        if key not in known:
            known[key] = read(results, seed, cell)
        return known[key]

    for cell, (_, settings) in enumerate(cells):
        for seed in range(settings.get("seeds", 1)):
            for key, value in one_seed(results.study, arrays, cell, seed, settings, recorded).items():
                expected[cell, seed, *key] = value
    return cells, expected


def differences(found, expected):
    """Return the entries of two dictionaries that differ, as {key: (found, expected)}."""
    return {
        key: (found.get(key), expected.get(key))
        for key in found | expected
        if key not in found or key not in expected or not close(found[key], expected[key])
    }


def one_seed(study, arrays, cell, seed, settings, recorded):
    """Return {(phase, step, metric): value} of the textbook."""
    of = {part: 0 if part in settings.get("hold", ()) else seed for part in ("data", "start")}
    splits = arrays(package.splits_of, of["data"], cell, "data")
    names = [phase["name"] for phase in settings["phases"]]
    steps = [{key[3] for key in recorded if key[:3] == (cell, seed, name)} for name in names]

    def batch(index, step):
        return package.batches_of(study, seed, cell, names[index])[step]

    start = arrays(package.start_of, of["start"], cell, "model")
    return simulate(settings, start, splits, batch, steps.__getitem__)


def close(ours, expected):
    """Return whether a value equals that of the textbook up to rounding."""
    if math.isnan(ours) or math.isnan(expected):
        return math.isnan(ours) and math.isnan(expected)
    return math.isclose(ours, expected, rel_tol=RTOL, abs_tol=ATOL)
