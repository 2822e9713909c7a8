import tomllib
from pathlib import Path

import pytest

from jaxattn.study import memory, run, sweepfile
from jaxattn.study.overview import overview, shape
from jaxattn.study.progress import Reporter

HERE = Path(__file__).parent
SWEEPS = HERE.parents[1] / "sweeps"


def sweep(name="small", **changes):
    return sweepfile.check(tomllib.loads((HERE / f"{name}.toml").read_text()) | changes)


@pytest.mark.parametrize("name", ["quickstart", "margin_convergence"])
def test_memory_of_sixteen_seeds_is_predicted_within_a_tenth(name):
    """Against XLA's own count for a program of sixteen seeds, at the sizes of shipped sweeps."""
    cell = sweepfile.cells(sweepfile.load(SWEEPS / f"{name}.toml"))[1 if name != "quickstart" else 0].config
    assert abs(memory.predict(cell).of(16) / memory.peak(cell, 16) - 1) < 0.1


def test_memory_holds_at_least_the_parameters_and_grows_with_them():
    small, large = (memory.predict(sweep(model={"kind": "one_layer", "dim": d})) for d in (16, 64))
    # State in, state out: twice E, p and v of a float32 model with V = 20.
    assert small.per_seed >= 2 * 4 * (20 * 16 + 2 * 16)
    assert large.per_seed - small.per_seed >= 2 * 4 * 20 * 48


def test_cells_that_differ_in_numbers_only_are_one_group(tmp_path):
    axes = {"model.dim": [8, 16], "phases.embed.step_size": [1.0, 2.0, 3.0]}
    table, whole = overview(sweep(axes=axes, seeds=5, chunk=2), tmp_path / "none")
    assert table["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert table["seeds"].tolist() == [5] * 6
    assert table["units"].tolist() == [3] * 6
    assert whole == "small: 6 cells in 2 groups, 18 units, 0 of them done"
    cells = sweepfile.cells(sweep(axes={"phases.query.steps": [3, 4]}))
    assert shape(cells[0].config) != shape(cells[1].config)


def test_what_is_there_counts_as_done(tmp_path):
    with Reporter(quiet=True) as reporter:
        run.run_sweep(sweep(chunk=1), tmp_path / "small", command="test", reporter=reporter)
    table, whole = overview(sweep(chunk=1, seeds=3), tmp_path / "small")
    assert table["done"].tolist() == ["2 of 3"]
    assert whole.endswith("3 units, 2 of them done")


def test_texts_are_not_read(tmp_path):
    data = {"kind": "tfds", "dataset": "imdb_reviews", "data_dir": "nosuch"}
    table, _ = overview(sweep(data=data), tmp_path / "none")
    assert table["memory"].tolist() == ["?"]
