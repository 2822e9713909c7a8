"""Cells that share a program: equality with single cells, one compilation, several devices."""

import os
import subprocess
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.lab.study import setting
from jaxattn.lab.study.groups import compile_groups


@pytest.mark.parametrize(
    ("case", "lane"),
    [
        pytest.param("runs", (-2, 1), marks=pytest.mark.more),
        pytest.param("runs", (0, 0), marks=pytest.mark.more),
        pytest.param("flows", (0, 0), marks=pytest.mark.slow),
        pytest.param("flows", (-2, 1), marks=pytest.mark.slow),
    ],
)
def test_vmapped_cells_match_single_cells(
    case, lane, request, tmp_path, go, read, finished, study, monkeypatch
):
    """Every metric of every phase is compared by seed and cell, without padding."""
    folder, wanted = request.getfixturevalue(case)
    together, tokens = read(folder, ordered=True)
    cells = wanted.cells
    records = finished(folder).values()
    assert len(records) == (1 if case == "runs" else 2)
    assert all(len(record.runs) == record.origin.width == 2 * len(record.cells) > 2 for record in records)
    monkeypatch.setattr(setting, "padded_size", lambda vocab_size: vocab_size)
    number, seed = lane[0] % len(cells), lane[1]
    own = cells[number]
    path = tmp_path / f"{number}-{seed}"
    go(path, type(wanted).from_tables(own.tables | {"name": "alone", "seeds": [seed]}))
    alone, alone_tokens = read(path, ordered=True)
    mine = together[(together.cell == number) & (together.seed == seed)]
    assert mine["metric"].tolist() == alone["metric"].tolist()
    np.testing.assert_allclose(mine["value"], alone["value"], rtol=1e-10, atol=1e-10)
    of_mine = tokens[(tokens.cell == number) & (tokens.seed == seed)]
    size, phases = own.setting.data.vocab_size, own.setting.phases
    assert len(of_mine) == len(alone_tokens) == size * len(phases)
    for column in ("count", "alpha", "posterior_difference", "Ep", "Ev"):
        np.testing.assert_allclose(of_mine[column], alone_tokens[column], rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_vmapped_cells_with_custom_code_match_single_cells(tmp_path, go, read, study):
    """Every float of a custom model, data, loss, start, optimiser, phase and probe varies between runs."""
    zipped = {
        "model.sharpness": [1.0, 2.0],
        "model.init.v.value": [0.25, 0.5],
        "data.swapped": [0.25, 0.1],
        "loss.softness": [0.5, 2.0],
        "phases.clip.limit": [0.01, 5.0],
        "phases.clip.momentum": [0.2, 0.5],
        "phases.wander.noise": [0.01, 0.1],
        "probes.own.0.scale": [3.0, 1.0],
    }
    wanted = study("own", zip=zipped, seeds=2)
    assert len(compile_groups(wanted.cells)) == 1
    assert not go(tmp_path / "together", wanted)[0].failures
    together, _ = read(tmp_path / "together", ordered=True)
    alone_tables = wanted.cells[1].tables | {"name": "alone", "seeds": [1]}
    go(tmp_path / "alone", type(wanted).from_tables(alone_tables, wanted.names))
    alone, _ = read(tmp_path / "alone", ordered=True)
    mine = together[(together.cell == 1) & (together.seed == 1)]
    assert mine["metric"].tolist() == alone["metric"].tolist()
    np.testing.assert_allclose(mine["value"], alone["value"], rtol=1e-10, atol=1e-10)


def shifted(key, *, sequences: int, shift: float | None = None) -> ja.data.Vectors:
    """Sample vectors with a mean of `shift`, 0 by default."""
    X = jax.random.normal(key, (sequences, 3, 2)) + (0.0 if shift is None else shift)
    return ja.data.Vectors(targets=jnp.ones(sequences), X=X)


class Average(ja.Model):
    """p·x for the mean token x of each sequence."""

    takes: ClassVar[type] = ja.data.Vectors

    def init(self, key, like, *, dtype):
        return {"p": jnp.zeros(like.dim, dtype)}

    def outputs(self, params, data):
        return data.X.mean(axis=1) @ params["p"]


def mean_entry(params, data):
    return {"mean": data.X.mean()}


@pytest.mark.more
def test_a_number_that_is_none_in_some_cells_is_used_in_the_others(tmp_path):
    wanted = ja.Study(
        name="optional",
        data={"kind": shifted, "sequences": 8},
        model=Average(),
        loss="squared_error",
        phases=[
            {
                "name": "train",
                "kind": "descent",
                "train": ["p"],
                "optimizer": "sgd",
                "step_size": 0.1,
                "steps": 1,
            }
        ],
        probes={"tokens": False, "own": [mean_entry]},
        blocks={"zero": {}, "five": {"data": {"shift": 5.0}}, "nine": {"data": {"shift": 9.0}}},
    )
    assert [len(group.cells) for group in compile_groups(wanted.cells)] == [1, 2]
    records = wanted.run(tmp_path / "optional", quiet=True).records
    means = records[(records["metric"] == "mean") & (records["step"] == 0)].sort_values("cell")["value"]
    np.testing.assert_allclose(means, [0, 5, 9], atol=0.5)


def compiled(function):
    """Count the programs that XLA compiles, or loads from the cache, during a call."""
    count = 0

    def listen(event, duration, **_):
        nonlocal count
        count += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        function()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return count


@pytest.mark.more
def test_group_compiles_once_for_all_cells_and_batches(tmp_path, go, study):
    jax.clear_caches()
    one = compiled(lambda: go(tmp_path / "one", study(dtype="float64", seeds=2, chunk=2)))
    jax.clear_caches()
    axes = {"phases.embed.step_size": [1.0, 2.0, 3.0], "phases.query.step_size": [0.1, 0.2]}
    wanted = study(dtype="float64", seeds=2, chunk=2, axes=axes)
    many = compiled(lambda: go(tmp_path / "many", wanted))
    assert one > 5
    assert many == one


@pytest.mark.parametrize(
    "name", [pytest.param("small", marks=pytest.mark.more), pytest.param("flow", marks=pytest.mark.slow)]
)
def test_a_cell_has_the_same_results_in_every_grid(tmp_path, go, read, study, name):
    """The other cells change neither the program of a cell nor the size to which its vocabulary is padded."""
    changes = {"seeds": 2, "chunk": 2, "loss": {"kind": "logistic"}}
    axes = {"data.vocab_size": [18], "phases.embed.step_size": [1.5]}
    wanted = study(name, **changes, axes=axes)
    go(tmp_path / "alone", wanted)
    axes = {"data.vocab_size": [31, 18, 64], "phases.embed.step_size": [0.7, 1.5]}
    go(tmp_path / "more", study(name, **changes, axes=axes))
    alone, tokens = read(tmp_path / "alone")
    found, found_tokens = (table[table["cell"] == 3].assign(cell=0) for table in read(tmp_path / "more"))
    for one, other in ((alone, found), (tokens, found_tokens)):
        pd.testing.assert_frame_equal(one, other.reset_index(drop=True), check_exact=True, check_dtype=False)


# The test runs in a separate process, in which the CPU counts as four devices.
CHILD = """
import sys
from pathlib import Path
import jax
from jaxattn import Study
from jaxattn.lab.engine.program_cache import programs
from jaxattn.lab.engine.progress import Reporter
from jaxattn.lab.engine.run_study import run_study
from jaxattn.lab.study import groups
assert len(jax.local_devices()) == 4
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
for number in range(1, len(sys.argv), 2):
    study = Study.read(sys.argv[number])
    with Reporter(quiet=True) as reporter:
        run_study(study, Path(sys.argv[number + 1]), command="test", reporter=reporter)
    (group,) = groups.compile_groups(study.cells)
    with jax.enable_x64(True):
        for made in programs(group.setting).phase_programs(group, 8):
            text = made.function.lower(*made.arguments).compile().as_text()
            assert "num_partitions=4" in text
            for word in COLLECTIVES:
                assert word not in text, (made.location, word)
"""


@pytest.mark.slow
def test_four_devices_match_one_device_and_use_no_collectives(runs, flows, tmp_path, read):
    words = []
    for number, (_, wanted) in enumerate((runs, flows)):
        words += [str(wanted.write(tmp_path / f"{number}.toml")), str(tmp_path / f"four-{number}")]
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    }
    command = [sys.executable, "-c", CHILD, *words]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    keys = ["cell", "seed", "phase", "step", "metric"]
    for number, (folder, _) in enumerate((runs, flows)):
        four, four_tokens = read(tmp_path / f"four-{number}", ordered=True)
        one, one_tokens = read(folder, ordered=True)
        pd.testing.assert_frame_equal(four[keys], one[keys])
        np.testing.assert_allclose(four["value"], one["value"], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(four_tokens["Ep"], one_tokens["Ep"], rtol=1e-10, atol=1e-10)


GENERATED = {"vocab_size": 16, "length": 5, "sequences": 24, "test_sequences": 24, "validation_sequences": 24}
KINDS = {
    "topics": GENERATED | {"relevant": 6, "topic_words": 3},
    "xor": GENERATED | {"pairs": 2},
    "negation": GENERATED | {"relevant": 6},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"), [("topics", "min_purity"), ("xor", "label_noise"), ("negation", "negated")]
)
def test_vmapping_over_generator_settings_matches_running_each_cell_alone(
    kind, number, tmp_path, go, read, finished, study, tables
):
    axes = {f"data.{number}": [1e-9, 0.5], "data.vocab_size": [18, 20]}
    data = {"kind": kind} | KINDS[kind]
    wanted = study(data=data, phases=tables()["phases"][:1], dtype="float64", axes=axes)
    assert len(compile_groups(wanted.cells)) == 1
    assert not go(tmp_path / "together", wanted)[0].failures
    records, _ = read(tmp_path / "together")
    assert [len(record.runs) for record in finished(tmp_path / "together").values()] == [8]
    which = 2 if kind == "negation" else 0
    alone_tables = wanted.cells[which].tables | {"name": "alone", "seeds": [1]}
    go(tmp_path / "alone", type(wanted).from_tables(alone_tables))
    alone, _ = read(tmp_path / "alone")
    mine = records[(records.cell == which) & (records.seed == 1)]
    assert mine["metric"].tolist() == alone["metric"].tolist()
    np.testing.assert_allclose(mine["value"], alone["value"], rtol=1e-10, atol=1e-10)
    last = alone[alone.step == 1].set_index("metric")["value"]
    assert np.isfinite(last[["loss", "test_loss", "p_norm", "log_gradient_norm"]]).all()
    # An xor without noise, or with half its sequences negated, has no token with a signal.
    correlations = last[["correlation_Ev_alpha", "spearman_Ev_tokens", "spearman_Ep_signed_tokens"]]
    assert correlations.isna().all() == (kind != "topics")
    assert np.isnan(last["important_mass"]) == (kind != "topics")


def of_all_rows(params, data):
    """Return the largest attention over the vocabulary, and the vocabulary size that a probe gets."""
    return {"largest": jax.nn.softmax(params.E @ params.p).max(), "rows": len(params.E) + 0.0}


def test_custom_probes_get_no_rows_of_a_padded_vocabulary(tmp_path):
    """With zero rows, the softmax would have further terms."""
    wanted = ja.Study(
        name="rows",
        seeds=2,
        data=ja.data.Assumption1(vocab_size=13, relevant=4, length=3, sequences=12),
        model=ja.models.OneLayer(dim=4),
        phases=[ja.dynamics.Descent(name="query", train=["p"], optimizer="sgd", step_size=0.5, steps=2)],
        probes=ja.Probes(tokens=False, own=[of_all_rows]),
    )
    results = wanted.run(tmp_path / "run", quiet=True, report=False)
    for row in results.table().to_dict("records"):
        params = results.params(seed=row["seed"])
        weights = np.exp(params.E @ params.p)
        assert row["rows"] == len(params.E) == 13
        np.testing.assert_allclose(row["largest"], weights.max() / weights.sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "pads"),
    [
        ({}, True),
        ({"init": {"p": ja.models.starts.Scaled(scale=0.5)}}, True),
        ({"probes": ja.Probes(own=[ja.probes.Norms()])}, True),
        ({"probes": ja.Probes(own=[of_all_rows])}, False),
        ({"init": {"p": lambda key, value: 2 * value}}, False),
    ],
)
def test_a_vocabulary_is_padded_only_without_custom_code_that_gets_parameters(changes, pads):
    wanted = ja.Study(
        name="pads",
        data=ja.data.Assumption1(vocab_size=10, relevant=4, length=3, sequences=12),
        model=ja.models.OneLayer(dim=4),
        phases=[ja.dynamics.Descent(name="query", train=["p"], optimizer="sgd", step_size=0.5, steps=2)],
        **changes,
    )
    (group,) = compile_groups(wanted.cells)
    assert group.setting.data.vocab_size == (16 if pads else 10)
