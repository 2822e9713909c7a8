import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from jaxattn.study import groups, run, sweepfile
from jaxattn.study.progress import Reporter

HERE = Path(__file__).parent
KEYS = ["cell", "seed", "phase", "step", "metric"]
INDEPENDENT = {
    "kind": "independent",
    "vocab_size": 12,
    "relevant": 4,
    "length": 5,
    "sequences": 16,
    "test_sequences": 8,
}
PHASES = [
    {"name": "embed", "kind": "one_step", "step_size": 20.0},
    {
        "name": "heavy",
        "kind": "descent",
        "train": ["E", "p"],
        "optimizer": "sgd",
        "step_size": 0.1,
        "steps": 3,
    },
    {
        "name": "query",
        "kind": "descent",
        "train": ["p"],
        "optimizer": "polyak",
        "step_size": 0.5,
        "steps": 4,
        "schedule": "cosine",
    },
    {"name": "log", "kind": "log_descent", "method": "normalized", "step_size": 0.2, "steps": 3},
]


def sweep(**changes):
    tree = tomllib.loads((HERE / "small.toml").read_text())
    return sweepfile.check(tree | {"dtype": "float64", "figures": []} | changes)


def go(directory, wanted):
    with Reporter(quiet=True) as reporter:
        return run.run_sweep(wanted, directory, command="test", reporter=reporter)


def tables(directory):
    records = pd.read_parquet(directory / "records.parquet").sort_values(KEYS).reset_index(drop=True)
    tokens = pd.read_parquet(directory / "tokens.parquet")
    return records, tokens.sort_values(["cell", "seed", "phase", "id"]).reset_index(drop=True)


def test_cells_that_differ_in_numbers_only_are_one_group():
    axes = {
        "model.dim": [8, 16],
        "phases.embed.step_size": [1.0, 2.0],
        "data.vocab_size": [20, 30],
        "probes.important": [0.5, 0.6],
    }
    found = groups.groups(sweepfile.cells(sweep(axes=axes)))
    assert [[cell.number % 2 for cell in group.cells] for group in found] == [[0] * 4, [1] * 4] * 2
    assert {group.config.data.vocab_size for group in found} == {30}
    assert found[0].varying == (("data", "vocab_size"), ("phases.0", "step_size"))
    with jax.enable_x64(True):
        numbers = found[0].numbers(found[0].cells)
    np.testing.assert_array_equal(numbers["phases.0", "step_size"], [1, 1, 2, 2])
    np.testing.assert_array_equal(numbers["data", "vocab_size"], [20, 30, 20, 30])


def test_what_shapes_a_program_makes_another_group():
    for axes in (
        {"phases.query.steps": [3, 4]},
        {"data.length": [4, 5]},
        {"phases.query.optimizer": ["sgd", "adam"]},
        {"probes.low": [-1.0, -0.5]},
    ):
        assert len(groups.groups(sweepfile.cells(sweep(axes=axes)))) == 2


@pytest.fixture(scope="module")
def lanes(tmp_path_factory):
    """Every kind of descent over every kind of number, as lanes of one program."""
    axes = {
        "data.vocab_size": [7, 40, 12],
        "phases.heavy.momentum": [0.0, 0.5],
    }
    zipped = {
        "data.max_posterior_difference": [0.9, 0.5],
        "phases.embed.step_size": [20.0, 5.0],
        "phases.heavy.step_size": [0.1, 0.3],
        "phases.query.step_size": [0.5, 0.2],
        "phases.log.step_size": [0.2, 0.1],
    }
    wanted = sweep(data=INDEPENDENT, phases=PHASES, axes=axes, zip=zipped, seeds=2)
    folder = tmp_path_factory.mktemp("lanes") / "together"
    assert not go(folder, wanted).failures
    return folder, wanted


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    """The exact flow to its limit, with more tokens than dimensions and with fewer."""
    tree = tomllib.loads((HERE / "flow.toml").read_text())
    axes = {"data.vocab_size": [12, 40], "phases.embed.step_size": [100.0, 50.0]}
    wanted = sweepfile.check(tree | {"axes": axes, "seeds": 2})
    folder = tmp_path_factory.mktemp("flows") / "together"
    assert not go(folder, wanted).failures
    return folder, wanted


@pytest.mark.parametrize("case", ["lanes", "flows"])
def test_lanes_equal_cells_that_run_alone(case, request, tmp_path):
    """Seed by seed and cell by cell, without padding: every metric of every phase."""
    folder, wanted = request.getfixturevalue(case)
    together, tokens = tables(folder)
    cells = sweepfile.cells(wanted)
    assert json.loads((folder / "manifest.json").read_text())["widths"] == [2 * len(cells)]
    for number, seed in ((0, 0), (len(cells) - 2, 1)):
        own = cells[number].config
        path = tmp_path / f"{number}-{seed}"
        go(path, sweepfile.check(sweepfile.plain(own) | {"seeds": [seed]}))
        alone, alone_tokens = tables(path)
        mine = together[(together.cell == number) & (together.seed == seed)]
        assert mine["metric"].tolist() == alone["metric"].tolist()
        np.testing.assert_allclose(mine["value"], alone["value"], rtol=1e-10, atol=1e-10)
        of_mine = tokens[(tokens.cell == number) & (tokens.seed == seed)]
        assert len(of_mine) == len(alone_tokens) == own.data.vocab_size * len(own.phases)
        for column in ("count", "alpha", "posterior_difference", "Ep", "Ev"):
            np.testing.assert_allclose(of_mine[column], alone_tokens[column], rtol=1e-10, atol=1e-10)


def compiled(function):
    """Count the programs that XLA compiles, or takes from the cache, while a function runs."""
    count = 0

    def listen(event, duration, **_):
        nonlocal count
        count += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        function()
    finally:
        jax.monitoring.clear_event_listeners()
    return count


def test_a_group_compiles_once_however_many_cells_and_units_it_has(tmp_path):
    jax.clear_caches()
    one = compiled(lambda: go(tmp_path / "one", sweep(seeds=2, chunk=2)))
    jax.clear_caches()
    axes = {"phases.embed.step_size": [1.0, 2.0, 3.0], "phases.query.step_size": [0.1, 0.2]}
    many = compiled(lambda: go(tmp_path / "many", sweep(seeds=2, chunk=2, axes=axes)))
    assert one > 5
    # The numbers of the lanes are arrays that a single cell does not have.
    assert many <= one + 10


@pytest.mark.parametrize("case", ["lanes", "flows"])
def test_lanes_on_four_devices_equal_lanes_on_one(case, request, tmp_path):
    """In a process of its own, where the CPU counts as four devices; without collectives."""
    folder, wanted = request.getfixturevalue(case)
    child = """
import sys, tomllib
from pathlib import Path
import jax, msgspec
from jaxattn.study import devices, execute, groups, memory, program, run, sweepfile
from jaxattn.study.progress import Reporter
assert len(jax.local_devices()) == 4
wanted = sweepfile.check(msgspec.json.decode(Path(sys.argv[1]).read_bytes()))
with Reporter(quiet=True) as reporter:
    run.run_sweep(wanted, Path(sys.argv[2]), command="test", reporter=reporter)
(group,) = groups.groups(sweepfile.cells(wanted))
with jax.enable_x64(True):
    loaded = memory.abstract(group, 8)
    params, numbers = memory._params(group, loaded, 8), memory._numbers(group, 8)
    keys = memory._keys(8)
    for index in range(len(wanted.phases)):
        made = program.program(group.config, index, loaded)
        state = jax.eval_shape(made.init, params, loaded.corpora, numbers, keys)
        step = jax.ShapeDtypeStruct((), "int32")
        for function, arguments in (
            (made.init, (params, loaded.corpora, numbers, keys)),
            (made.advance, (state, loaded.corpora, numbers, step)),
            (made.measure, (state, loaded.corpora)),
            (made.tokens, (params, loaded.corpora)),
        ):
            text = jax.jit(function).lower(*arguments).compile().as_text()
            assert "num_partitions=4" in text
            for word in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
                assert word not in text, (index, function, word)
"""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(sweepfile.plain(wanted)))
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", child, str(config), str(tmp_path / "four")],
        env=os.environ | flags,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (four, four_tokens), (one, one_tokens) = tables(tmp_path / "four"), tables(folder)
    pd.testing.assert_frame_equal(four[KEYS], one[KEYS])
    np.testing.assert_allclose(four["value"], one["value"], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(four_tokens["Ep"], one_tokens["Ep"], rtol=1e-10, atol=1e-10)
