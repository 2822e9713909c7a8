"""Run a study with the package, and compare every record with the textbook."""

import math

import numpy as np

from . import grid, package
from .study import simulate

RTOL = 1e-9
# Metrics of order 1 may be differences of terms of order 1, so their errors are absolute.
ATOL = 1e-12
# Adam divides by the root of a mean of squared gradients plus 1e-8, which magnifies rounding errors of
# gradients that nearly vanish. The textbook measures this: it runs again with gradients at parameters that
# differ by one rounding error. A gradient sums up to two thousand terms, so this many changes are allowed.
ROUNDINGS, AT_MOST = 1000, 1e-6


def expected_records(results, tables):
    """Return the cells of a study, and {(cell, seed, phase, step, metric): (value, error)}, by the textbook.

    Cells with the same data, or with the same model and vocabulary, start from the same arrays, since seed k
    uses the same random numbers in every cell.
    """
    cells, recorded, expected, known = grid.cells(tables), package.records_of(results), {}, {}

    def arrays(read, seed, cell, table):
        settings = cells[cell][1]
        key = read, seed, repr(settings[table]), settings["data"].get("vocab_size")
        if key not in known:
            known[key] = read(results, seed, cell)
        return known[key]

    for cell, (_, settings) in enumerate(cells):
        for seed in range(settings.get("seeds", 1)):
            for key, value in one_seed(results.study, arrays, cell, seed, settings, recorded).items():
                expected[cell, seed, *key] = value
    return cells, expected


def differences(found, expected):
    """Return the records that differ from the textbook, as {key: (found, (value, error))}."""
    return {
        key: (found.get(key), expected.get(key))
        for key in found.keys() | expected.keys()
        if key not in found or key not in expected or not close(found[key], *expected[key])
    }


def one_seed(study, arrays, cell, seed, settings, recorded):
    """Return {(phase, step, metric): (value, error)} of the textbook; the error is by rounding in Adam."""
    of = {part: 0 if part in settings.get("hold", ()) else seed for part in ("data", "start")}
    splits = arrays(package.splits_of, of["data"], cell, "data")
    names = [phase["name"] for phase in settings["phases"]]
    steps = [{key[3] for key in recorded if key[:3] == (cell, seed, name)} for name in names]

    def batch(index, step):
        return package.batches_of(study, seed, cell, names[index])[step]

    start = arrays(package.start_of, of["start"], cell, "model")
    found = simulate(settings, start, splits, batch, steps.__getitem__)
    if not any(phase.get("optimizer", "").startswith("adam") for phase in settings["phases"]):
        return {key: (value, 0.0) for key, value in found.items()}
    again = simulate(settings, start, splits, batch, steps.__getitem__, rounded)
    return {
        key: (value, min(ROUNDINGS * abs(again[key] - value), AT_MOST * (1 + abs(value))))
        for key, value in found.items()
    }


def rounded(params):
    """Return parameters changed by one rounding error, in alternating directions."""
    return {
        name: np.nextafter(x, np.where(np.arange(x.size).reshape(x.shape) % 2, -np.inf, np.inf))
        for name, x in params.items()
    }


def close(ours, expected, error):
    """Return whether a value equals that of the textbook up to rounding, or up to an error of Adam."""
    if math.isnan(ours) or math.isnan(expected):
        return math.isnan(ours) and math.isnan(expected)
    allowed = 0.0 if math.isnan(error) else error
    return math.isclose(ours, expected, rel_tol=RTOL, abs_tol=ATOL + allowed)
