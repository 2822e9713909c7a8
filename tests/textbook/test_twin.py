"""Every number that a study records, compared with the textbook: NumPy loops written from the documents."""

import tomllib
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from textbook import compare, grid, package, reading
from textbook.steps import OPTIONS

import jaxattn as ja
from jaxattn.lab.results import statistics

METRICS = ("loss", "train_accuracy", "spearman_Ev_tokens", "important_mass", "one_step_error")
STUDIES = Path(__file__).parent / "studies"
DEFAULT = ("blocks",)
# Defaults of swept keys, for the cells that do not set them.
DEFAULTS = {"loss.smoothing": 0.0}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path.stem, marks=[pytest.mark.more] * (path.stem not in DEFAULT))
        for path in sorted(STUDIES.glob("*.toml"))
    ],
)
def twin(request, tmp_path_factory):
    """Return the tables and results of a study, and the cells and records of the textbook."""
    path = STUDIES / f"{request.param}.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    results = package.run(ja.Study.read(path), tmp_path_factory.mktemp(request.param) / "results")
    cells, records = compare.expected_records(results, tables)
    return SimpleNamespace(tables=tables, results=results, cells=cells, records=records)


def test_cells_have_the_settings_of_the_sweep_file(twin):
    assert [cell["settings"] for cell in twin.results.manifest["cells"]] == [swept for swept, _ in twin.cells]
    for cell, (_, tables) in enumerate(twin.cells):
        phases = {phase["name"]: phase for phase in tables["phases"]}
        named = {"data": tables["data"], "model": tables["model"], "phases": phases}
        for key, x in grid.flat(named).items():
            if key.split(".")[-1] not in OPTIONS:
                found = twin.results.lookup(cell, key)
                assert (found["kind"] if isinstance(found, dict) else found) == x


def test_every_record_matches_the_textbook(twin):
    assert len(twin.records) > 1000
    assert not compare.differences(package.records_of(twin.results), twin.records)


def test_last_steps_are_those_of_each_cell(twin):
    found = statistics.last_steps(twin.results.records)
    expected = reading.last_steps(twin.results.records)
    assert len(found) == sum(map(len, expected.values()))
    for row in found.itertuples():
        np.testing.assert_equal(row.value, expected[row.cell, row.phase, row.metric][row.seed])


def check(table, keys, expected, differences=False):
    """Compare a table of means and intervals with values over seeds."""
    assert len(table) == len(expected)
    for row in table.to_dict("records"):
        # A cell without a key has the value None, or NaN in a column of numbers.
        label = reading.label({key: row[key] for key in keys if pd.notna(row.get(key))})
        values = expected[label, row["phase"], row["step"], row["metric"]]
        numbers = reading.mean_and_interval(values, row["metric"], differences)
        found = [row[name] for name in ("n", "mean", "mean_low", "mean_high")]
        # Means that are equal up to rounding have no interval, or one of the width of a rounding error.
        found, numbers = (np.where(np.isnan(x), x[1], x) for x in (found, numbers))
        np.testing.assert_allclose(found, numbers, rtol=1e-9, atol=1e-14, err_msg=str(row))


def some_metrics(records):
    """Return some of the recorded metrics, of all scales, and their records."""
    metrics = [metric for metric in METRICS if (records["metric"] == metric).any()]
    return metrics, records[records["metric"].isin(metrics)]


def test_means_over_cells_match_pandas(twin):
    metrics, records = some_metrics(twin.results.records)
    # Some cells of blocks do not sweep the keys of others.
    for by in (["data.vocab_size"], ["model.kind"], *([key] for key in twin.results.axes)):
        labels = {}
        for cell, (own, tables) in enumerate(twin.cells):
            values = {key: own.get(key, reading.lookup(tables, key)) for key in by}
            labels[cell] = reading.label(
                {key: DEFAULTS.get(key) if x is None else x for key, x in values.items()}
            )
        check(twin.results.aggregate(by=by, metrics=metrics), by, reading.averaged(records, labels))


def test_paired_differences_match_pandas(twin):
    metrics, records = some_metrics(twin.results.records)
    for key in twin.results.axes:
        together = grid.zipped(twin.tables, key)
        values = dict.fromkeys(own[key] for own, _ in twin.cells if key in own)
        for pair in combinations(values, 2):
            sides = [
                {
                    cell: reading.label({name: x for name, x in own.items() if name not in together})
                    for cell, (own, _) in enumerate(twin.cells)
                    if own.get(key) == value
                }
                for value in pair
            ]
            expected = reading.paired(records, *sides)
            if expected:
                table = twin.results.pair(key, *pair, metrics=metrics)
                check(table, twin.results.axes, expected, differences=True)
            else:
                with pytest.raises(ja.InputError, match="have no combination"):
                    twin.results.pair(key, *pair, metrics=metrics)


def test_filters_select_cells_by_the_settings_in_effect(twin):
    """Of a block, the kind of its own model and loss counts."""
    for key in ("model.kind", "loss.kind", *twin.results.axes):
        values = [own.get(key, reading.lookup(tables, key)) for own, tables in twin.cells]
        for value in {x for x in values if isinstance(x, str | float)}:
            chosen = twin.results.choose(where={key: value}).manifest["cells"]
            assert [cell["cell"] for cell in chosen] == [k for k, x in enumerate(values) if x == value]
