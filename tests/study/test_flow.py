"""Phases that follow p to its limit: the exact flow and descents in the log domain."""

import os
import signal
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.errors import InputError
from jaxattn.study import corpora, execute, program, run, sweepfile
from jaxattn.study.limit import AT_END, AT_PROBES
from jaxattn.study.progress import Reporter


def tree(**changes):
    return tomllib.loads(Path(__file__).with_name("flow.toml").read_text()) | changes


def go(directory, **changes):
    with Reporter(quiet=True) as reporter:
        return run.run_sweep(sweepfile.check(tree(**changes)), directory, command="test", reporter=reporter)


def wide(directory, phase="query"):
    records = pd.read_parquet(directory / "records.parquet")
    records = records[records.phase == phase]
    return records.pivot(index=["seed", "step"], columns="metric", values="value")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished") / "flow"
    assert not go(directory).failures
    return directory


def test_records_equal_the_path_and_its_limit_worked_out_alone(finished, x64):
    table = wide(finished)
    config = sweepfile.check(tree())
    data_keys, model_keys = corpora.seed_keys([0, 1, 2])
    for seed in (0, 2):
        train_key, _ = jax.random.split(data_keys[seed])
        corpus = corpora.generate(config.data, train_key, 20)
        params = ja.models.one_layer.init(model_keys[seed], vocab_size=12, dim=32, dtype=jnp.float64)
        params = ja.dynamics.one_step(params, corpus, step_size=100.0)
        path = ja.dynamics.exact_flow(params, corpus, until_norm=1e4, points=12)
        rows = table.loc[seed]
        # The seeds of a study share a program with other seeds, which rounds differently.
        for metric, expected in (
            ("p_norm", path.norm),
            ("arc_length", path.arc_length),
            ("log_gradient_norm", path.log_gradient_norm),
            ("log_time", path.log_time),
        ):
            np.testing.assert_allclose(rows[metric], expected, rtol=1e-6, err_msg=metric)
        np.testing.assert_array_equal(rows["evaluations"], np.asarray(path.steps) * (6 + 12))
        chosen = ja.theory.selection(path.p[-1], params.E, corpus)
        mm = ja.theory.max_margin(params.E, corpus, chosen)
        away = ja.theory.one_minus_cosine(path.p, mm.p)
        np.testing.assert_allclose(rows["one_minus_cosine"], away, rtol=1e-5)
        np.testing.assert_allclose(rows["max_margin"].iloc[-1], mm.margin, rtol=1e-9)
        assert rows["duality_gap"].iloc[-1] < 1e-10
        assert rows["feasible"].iloc[-1] == 1
        assert 0.99 < rows["margin_ratio"].iloc[-1] <= 1
        important = np.asarray(ja.data.average_signed_frequency(corpus)) != 0
        share = (chosen.important_counts(corpus, important) > 0).mean()
        assert rows["important_selected"].iloc[-1] == share


def test_only_phases_that_move_p_alone_have_a_limit(finished):
    embed, query = wide(finished, "embed"), wide(finished)
    assert not {*AT_PROBES, *AT_END} & set(embed.columns)
    assert {*AT_PROBES, *AT_END} <= set(query.columns)
    assert query[list(AT_PROBES)].notna().all().all()
    last = query.index.get_level_values("step") == 11
    assert query.loc[last, list(AT_END)].notna().all().all()
    assert query.loc[~last, list(AT_END)].isna().all().all()


def test_a_first_order_method_is_a_phase_like_any_other(tmp_path, x64):
    phases = tree()["phases"]
    phases[1] = {"name": "query", "kind": "log_descent", "method": "polyak", "step_size": 5.0, "steps": 40}
    assert not go(tmp_path / "polyak", phases=phases, seeds=2).failures
    rows = wide(tmp_path / "polyak").loc[1]
    np.testing.assert_array_equal(rows["evaluations"], rows.index)
    assert rows["one_minus_cosine"].iloc[-1] < 0.1 * rows["one_minus_cosine"].iloc[0]


@pytest.mark.parametrize("calls", [2, 4])
def test_a_stopped_flow_continues_to_bit_identical_tables(finished, tmp_path, monkeypatch, calls):
    count = 0
    timed = execute._Pace.timed

    def stopping(self, *arguments):
        nonlocal count
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGTERM)
        return timed(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(execute._Pace, "timed", stopping)
        with pytest.raises(execute.Interrupted):
            go(tmp_path / "flow")
    go(tmp_path / "flow")
    for name in ("records", "tokens"):
        one, other = (pd.read_parquet(folder / f"{name}.parquet") for folder in (tmp_path / "flow", finished))
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_a_seed_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch, finished):
    original = program.init_params

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=params.p.at[1].set(jnp.nan))

    monkeypatch.setattr(execute, "init_params", poisoned)
    outcome = go(tmp_path / "flow", phases=tree()["phases"][1:])
    (failure,) = outcome.failures
    assert (failure["seed"], failure["phase"], failure["step"]) == (1, "query", 0)
    assert "NaN" in failure["reason"]
    rows = wide(tmp_path / "flow")
    assert rows.loc[[0, 2], "one_minus_cosine"].notna().all()
    assert rows.loc[1, "one_minus_cosine"].isna().all()


def test_a_float32_study_still_follows_the_flow_in_float64(tmp_path):
    assert not go(tmp_path / "flow", dtype="float32", seeds=1).failures
    assert wide(tmp_path / "flow")["one_minus_cosine"].iloc[-1] < 1e-5


def test_more_than_two_classes_are_refused_in_one_line(tmp_path):
    data = tree()["data"] | {"num_classes": 3, "sequences": 21, "relevant": 6}
    with pytest.raises(InputError, match=r"phases.query: 3 classes, .* use kind = 'descent'"):
        go(tmp_path / "flow", data=data)


def test_max_margin_without_a_phase_that_moves_p_alone_is_refused():
    with pytest.raises(InputError, match=r"probes.max_margin: no phase moves p alone"):
        sweepfile.check(tree(phases=tree()["phases"][:1]))


def test_blocks_are_variants_of_the_file(tmp_path):
    blocks = {
        "exact": {"axes": {"phases.query.until_norm": [1e2, 1e3]}},
        "Polyak": {
            "phases": {"query": {"kind": "log_descent", "method": "polyak", "step_size": 5.0, "steps": 9}}
        },
    }
    sweep = sweepfile.check(tree(blocks=blocks, axes={"model.dim": [16, 32]}))
    cells = sweepfile.cells(sweep)
    assert [cell.number for cell in cells] == [0, 1, 2, 3, 4, 5]
    assert cells[0].settings == {"block": "exact", "model.dim": 16, "phases.query.until_norm": 1e2}
    assert cells[5].settings == {"block": "Polyak", "model.dim": 32}
    assert cells[5].config.phases[1].method == "polyak"
    assert cells[5].config.phases[1].name == "query"
    assert cells[3].config.phases[1].until_norm == 1e3
    assert sweepfile.cells(sweepfile.check(tree()))[0].settings == {}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"model": {"dimension": 3}}, r"blocks.b: model: unknown key 'dimension'; did you mean 'dim'"),
        ({"phases": {"head": {"steps": 3}}}, r"blocks.b: head: no entry 'head' in the list; there are embed"),
        (
            {"axes": {"model.dims": [3]}},
            r"blocks.b: axes: cell 0 \(block = 'b', model.dims = 3\): model: unk",
        ),
        ({"blocks": {}}, r"blocks.b: blocks cannot differ between blocks"),
        ({"seeds": 3}, r"blocks.b: seeds cannot differ between blocks"),
    ],
)
def test_mistakes_in_blocks_name_the_block(block, message):
    with pytest.raises(InputError, match=message):
        sweepfile.cells(sweepfile.check(tree(blocks={"b": block})))
