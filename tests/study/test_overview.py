import tomllib
from pathlib import Path

import pytest

from jaxattn.errors import InputError
from jaxattn.study import corpora, groups, memory, pace, run, sweepfile
from jaxattn.study.overview import duration, overview
from jaxattn.study.progress import Reporter

HERE = Path(__file__).parent
PHASES = tomllib.loads((HERE / "small.toml").read_text())["phases"]
SWEEPS = HERE.parents[1] / "sweeps"


def sweep(name="small", **changes):
    return sweepfile.check(tomllib.loads((HERE / f"{name}.toml").read_text()) | changes)


def group(wanted):
    return groups.groups(sweepfile.cells(wanted))[0]


@pytest.mark.parametrize("name", ["quickstart", "margin_convergence"])
def test_memory_of_sixteen_lanes_is_predicted_within_a_tenth(name):
    """Against XLA's own count for a program of sixteen lanes, at the sizes of shipped sweeps."""
    cells = groups.groups(sweepfile.cells(sweepfile.load(SWEEPS / f"{name}.toml")))[-1]
    assert abs(memory.predict(cells).of(16) / memory.peak(cells, 16) - 1) < 0.1


@pytest.mark.parametrize("path", sorted(SWEEPS.glob("**/*.toml")), ids=lambda path: path.stem)
def test_what_sizes_alone_allow_is_never_less_than_what_is_held(path):
    for wanted in groups.groups(sweepfile.cells(sweepfile.load(path))):
        if not corpora.is_text(wanted.config.data):
            held, own = memory._sizes(wanted, 1)
            assert held + own <= memory.at_most(wanted.config)


def test_memory_holds_at_least_the_parameters_and_grows_with_them():
    small, large = (memory.predict(group(sweep(model={"kind": "one_layer", "dim": d}))) for d in (16, 64))
    # E, p and v of a float32 model with V = 20, at least.
    assert small.per_lane >= 4 * (20 * 16 + 2 * 16)
    assert large.per_lane - small.per_lane >= 4 * 20 * 48


def test_lanes_are_cut_to_what_fits_and_one_that_does_not_fit_is_an_error():
    wanted = group(sweep())
    needed = memory.predict(wanted)
    assert memory.width(wanted, 50, memory.default_budget()) == 50
    assert memory.width(wanted, 50, needed.of(7)) == 7
    with pytest.raises(InputError, match=r"cell 0: one seed needs \d+ MiB, but \d MiB may be used"):
        memory.width(wanted, 50, needed.of(1) // 4)


def test_groups_say_what_runs_together(tmp_path):
    axes = {"model.dim": [8, 16], "phases.embed.step_size": [1.0, 2.0, 3.0]}
    (cells, table), whole = overview(sweep(axes=axes, seeds=5, chunk=4), tmp_path / "none", quick=True)
    assert cells["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert cells["done"].tolist() == ["0 of 5"] * 6
    assert table["vmapped"].tolist() == ["seed, phases.embed.step_size"] * 2
    assert table[["cells", "lanes", "together", "units"]].to_numpy().tolist() == [[3, 15, 3, 6]] * 2
    assert whole.startswith("small: 6 cells in 2 groups, 12 units, 0 of them done")


def test_what_is_there_counts_as_done(tmp_path):
    with Reporter(quiet=True) as reporter:
        run.run_sweep(sweep(chunk=1), tmp_path / "small", command="test", reporter=reporter)
    (cells, _), whole = overview(sweep(chunk=1, seeds=3), tmp_path / "small")
    assert cells["done"].tolist() == ["2 of 3"]
    assert "3 units, 2 of them done, about " in whole


def test_the_time_grows_with_the_work():
    short, long = (
        pace.seconds(group(sweep(phases=[*PHASES[:1], PHASES[1] | {"steps": steps}])), [0, 1, 2, 3], lanes, 1)
        for steps, lanes in ((20, 4), (200_000, 400))
    )
    assert 0 < short < long / 20


def test_durations():
    assert [duration(x) for x in (3.4, 100.0, 150.0, 8000.0)] == ["3 s", "100 s", "2.5 min", "2.2 h"]


def test_quick_leaves_out_what_takes_compiling(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("compiles")

    monkeypatch.setattr(memory, "predict", refuse)
    monkeypatch.setattr(pace, "seconds", refuse)
    tables, whole = overview(sweep(), tmp_path, quick=True)
    assert list(tables[1]) == ["group", "cells", "vmapped", "lanes", "together", "units"]
    assert "left" not in whole
    with pytest.raises(AssertionError, match="compiles"):
        overview(sweep(), tmp_path)
