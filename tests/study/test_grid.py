"""Cells: products, zips, quasi-random points, lists, exclusions, blocks; seeds; files that extend others."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import qmc

from jaxattn.errors import InputError
from jaxattn.results import load
from jaxattn.results.combine import combine
from jaxattn.study import run, sweepfile, units
from jaxattn.study.progress import Reporter

SMALL = Path(__file__).with_name("small.toml")


def tree(**changes):
    return tomllib.loads(SMALL.read_text()) | changes


def settings(**grid):
    return [cell.settings for cell in sweepfile.cells(sweepfile.check(tree(**grid)))]


def test_the_grid_is_the_product_of_lists_zips_points_and_axes():
    got = settings(
        cells=[{"model.dim": 8}, {"model.dim": 16}],
        zip={"phases.embed.step_size": [1.0, 2.0], "phases.query.steps": [10, 20]},
        axes={"data.vocab_size": [30, 40]},
    )
    expected = [
        {"model.dim": d, "phases.embed.step_size": s, "phases.query.steps": k, "data.vocab_size": v}
        for d in (8, 16)
        for s, k in ((1.0, 10), (2.0, 20))
        for v in (30, 40)
    ]
    assert got == expected


def test_quasi_random_points_are_scipys_between_bounds():
    bounds = {
        "phases.embed.step_size": {"low": 1.0, "high": 1000.0, "log": True},
        "model.dim": {"low": 8, "high": 64, "integer": True},
        "phases.query.step_size": {"low": 0.1, "high": 0.3},
    }
    got = settings(halton={"points": 12, "seed": 5, "axes": bounds})
    unit = qmc.Halton(3, scramble=True, rng=5).random(12)
    np.testing.assert_allclose([row["phases.embed.step_size"] for row in got], 10 ** (3 * unit[:, 0]))
    np.testing.assert_allclose([row["phases.query.step_size"] for row in got], 0.1 + 0.2 * unit[:, 2])
    assert [row["model.dim"] for row in got] == np.rint(8 + 56 * unit[:, 1]).astype(int).tolist()
    assert settings(halton={"points": 5, "seed": 5, "axes": bounds}) == got[:5]
    assert settings(halton={"points": 5, "seed": 6, "axes": bounds}) != got[:5]


def test_exclusions_drop_the_cells_that_match_all_of_their_keys():
    axes = {"model.dim": [8, 16, 32], "phases.query.steps": [5, 6]}
    exclude = [{"model.dim": [8, 16], "phases.query.steps": 6}, {"model.dim": 32}]
    assert settings(axes=axes, exclude=exclude) == [
        {"model.dim": 8, "phases.query.steps": 5},
        {"model.dim": 16, "phases.query.steps": 5},
    ]
    numbers = [c.number for c in sweepfile.cells(sweepfile.check(tree(axes=axes, exclude=exclude)))]
    assert numbers == [0, 1]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"zip": {"model.dim": [1, 2], "seeds": [1]}},
            r"zip: lengths differ \(model.dim has 2, seeds has 1\)",
        ),
        ({"axes": {"model.dim": [1]}, "zip": {"model.dim": [1]}}, "model.dim: swept twice"),
        ({"axes": {"model.dim": [1]}, "exclude": [{"model.d": 1}]}, r"exclude\[0\]: model.d is not swept"),
        ({"axes": {"model.dim": [1]}, "exclude": [{"model.dim": 1}]}, "exclude: no cell is left"),
        (
            {"halton": {"points": 3, "axes": {"model.dims": {"low": 1, "high": 2}}}},
            "cell 0 .*unknown key",
        ),
        ({"halton": {"points": 3, "axes": {}}}, r"halton.axes: "),
        (
            {"halton": {"points": 3, "axes": {"model.dim": {"low": 3, "high": 2}}}},
            "low 3.0 is not below",
        ),
        (
            {"halton": {"points": 3, "axes": {"model.dim": {"low": 0, "high": 2, "log": True}}}},
            "a logarithmic axis starts above 0",
        ),
        ({"axes": {"cells": [1]}}, "cells cannot be an axis"),
        ({"seeds": "5:3"}, "seeds: no seed"),
        ({"seeds": [1, 1]}, "seeds: a seed is listed twice"),
        ({"seeds": "many"}, "seeds: "),
    ],
)
def test_mistakes_name_the_place(grid, message):
    with pytest.raises(InputError, match=message):
        settings(**grid)


@pytest.mark.parametrize(
    ("seeds", "expected"), [(3, (0, 1, 2)), ("4:7", (4, 5, 6)), ([9, 2, 4], (2, 4, 9))], ids=str
)
def test_seeds_are_a_number_a_range_or_a_list(seeds, expected):
    assert sweepfile.check(tree(seeds=seeds)).seed_numbers == expected


def test_a_file_may_extend_another(tmp_path):
    (tmp_path / "base.toml").write_text(SMALL.read_text() + "[axes]\nmodel.dim = [8, 16]\n")
    child = tmp_path / "deep" / "child.toml"
    child.parent.mkdir()
    child.write_text(
        'extends = "../base.toml"\nname = "child"\nseeds = 5\n[phases.query]\nsteps = 7\n'
        "[axes]\nphases.embed.step_size = [1.0, 2.0]\n[halton]\npoints = 2\n"
        "[halton.axes]\nphases.query.step_size = {low = 0.1, high = 0.2}\n"
    )
    sweep = sweepfile.load(child)
    assert (sweep.name, sweep.seeds, sweep.phases[1].steps, sweep.phases[1].optimizer) == (
        "child",
        5,
        7,
        "sgd",
    )
    assert len(sweepfile.cells(sweep)) == 8
    assert "extends" not in sweepfile.plain(sweep)


def test_extending_in_circles_or_from_nowhere_is_named(tmp_path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('extends = "two.toml"')
    two.write_text('extends = "one.toml"')
    with pytest.raises(InputError, match=r"one.toml: .*two.toml: extends: one.toml extends this"):
        sweepfile.load(one)
    one.write_text('extends = "three.toml"')
    with pytest.raises(InputError, match=r"one.toml: .*three.toml: no such sweep file"):
        sweepfile.load(one)
    one.write_text("extends = 3")
    with pytest.raises(InputError, match=r"extends: expected a path, got 3"):
        sweepfile.load(one)


def test_axes_may_be_added_on_the_command_line():
    sweep = sweepfile.load(SMALL, ["model.dim=9"], ["phases.query.steps=[1, 2]", "data.length=[3]"])
    assert [c.settings for c in sweepfile.cells(sweep)] == [
        {"phases.query.steps": 1, "data.length": 3},
        {"phases.query.steps": 2, "data.length": 3},
    ]
    with pytest.raises(InputError, match=r"--axis model.dim: expected key=value, for example --axis"):
        sweepfile.load(SMALL, [], ["model.dim"])


def test_the_schema_describes_the_shipped_files():
    schema = sweepfile.schema()
    schema = json.loads(json.dumps(schema))
    fields = schema["$defs"]["Sweep"]["properties"]
    assert {"name", "data", "phases", "axes", "halton", "blocks"} <= set(fields)


def go(directory, **changes):
    with Reporter(quiet=True) as reporter:
        sweep = sweepfile.check(tree(**changes))
        return run.run_sweep(sweep, directory, command="test", reporter=reporter)


def test_seeds_are_topped_up_without_touching_what_is_there(tmp_path):
    folder = tmp_path / "small"
    go(folder, seeds=2)
    parts = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "parts").iterdir()}
    assert not go(folder, seeds="1:5").already_finished
    assert go(folder, seeds="0:5").already_finished
    assert all((path.stat().st_mtime_ns, path.read_bytes()) == was for path, was in parts.items())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["seeds"] == [0, 1, 2, 3, 4]
    assert manifest["status"] == "finished"
    go(tmp_path / "whole", seeds=5)
    keys = ["cell", "seed", "phase", "step", "metric"]
    one, other = (
        pd.read_parquet(path / "records.parquet").sort_values(keys).reset_index(drop=True)
        for path in (folder, tmp_path / "whole")
    )
    pd.testing.assert_frame_equal(one[keys], other[keys])
    loss = one["metric"] == "loss"
    # Another width of the chunk rounds differently.
    np.testing.assert_allclose(one["value"][loss], other["value"][loss], rtol=1e-5)


def test_gaps_between_seeds_make_units_of_their_own():
    sweep = sweepfile.check(tree(seeds=[0, 1, 2, 5, 6, 9], chunk=2))
    assert [list(unit.seeds) for unit in units.plan(sweep)] == [[0, 1], [2], [5, 6], [9]]
    known = ["cells-00000-00000-seeds-00001-00005"]
    assert [list(u.seeds) for u in units.plan(sweep, known)] == [[0], [1, 2, 3, 4, 5], [6], [9]]


def test_shards_write_side_by_side_and_make_up_the_whole(tmp_path):
    changes = {"axes": {"model.dim": [8, 16]}, "chunk": 1}
    go(tmp_path / "whole", **changes)
    sweep = sweepfile.check(tree(**changes))
    with Reporter(quiet=True) as reporter:
        for which in (1, 2, 3):
            folder = tmp_path / f"shard-{which}"
            run.run_sweep(sweep, folder, command="test", reporter=reporter, shard=(which, 3))
    keys = ["cell", "seed", "phase", "step", "metric"]
    shards = combine([load(tmp_path / f"shard-{which}") for which in (1, 2, 3)])
    whole = load(tmp_path / "whole")
    one, other = (x.records.sort_values(keys).reset_index(drop=True) for x in (shards, whole))
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert shards.manifest["cells"][1]["settings"] == whole.manifest["cells"][1]["settings"]
    for shard, message in (((4, 3), "give a number from 1 to 3"), ((5, 5), "there are 4 units of work")):
        with pytest.raises(InputError, match=message):
            units.share(units.plan(sweep), shard)
