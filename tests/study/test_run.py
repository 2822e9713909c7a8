import json
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
from jaxattn.errors import InputError, RunError
from jaxattn.study import checkpoints, corpora, execute, program, run, sweepfile, units
from jaxattn.study.progress import Reporter


def tree(**changes):
    return tomllib.loads(Path(__file__).with_name("small.toml").read_text()) | changes


def go(directory, **changes):
    sweep = sweepfile.check(tree(**changes))
    with Reporter(quiet=True) as reporter:
        return run.run_sweep(sweep, directory, command="test", reporter=reporter)


def tables(directory):
    return [pd.read_parquet(directory / f"{name}.parquet") for name in ("records", "tokens")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished") / "small"
    go(directory)
    return directory


def test_records_and_tokens_have_every_seed_phase_and_step(finished):
    records, tokens = tables(finished)
    assert list(records.columns) == ["cell", "seed", "phase", "step", "metric", "value"]
    assert not records.duplicated(["cell", "seed", "phase", "step", "metric"]).any()
    steps = records.groupby(["phase", "seed"])["step"].unique().map(list).to_dict()
    assert steps["embed", 0] == steps["embed", 1] == [0, 1]
    assert steps["query", 0][-1] == 20
    wanted = {"loss", "train_accuracy", "test_accuracy", "p_norm", "log_gradient_norm", "important_mass"}
    wanted |= {"Ev_bin_00", "Ep_bin_19", "spearman_Ev_bins", "spearman_Ev_tokens", "one_step_error"}
    assert wanted <= set(records["metric"])
    assert len(tokens) == 2 * 2 * 20
    assert set(tokens.columns) >= {"token", "count", "alpha", "posterior_difference", "Ep", "Ev"}


def test_numbers_equal_the_phases_written_out_seed_by_seed(finished):
    records, tokens = tables(finished)
    config = sweepfile.check(tree())
    data_keys, model_keys = corpora.seed_keys([0, 1])
    for seed in (0, 1):
        train_key, test_key = jax.random.split(data_keys[seed])
        train, test = (corpora.generate(config.data, key, n) for key, n in ((train_key, 30), (test_key, 20)))
        params = ja.models.one_layer.init(model_keys[seed], vocab_size=20, dim=16)
        params = ja.dynamics.one_step(params, train, step_size=50.0)
        for _ in range(20):
            params = params.replace(p=params.p - 0.1 * jax.grad(ja.dynamics.loss)(params, train).p)
        last = records[(records.seed == seed) & (records.phase == "query") & (records.step == 20)]
        value = last.set_index("metric")["value"]
        np.testing.assert_allclose(value["loss"], ja.dynamics.loss(params, train), rtol=1e-5)
        np.testing.assert_allclose(value["test_loss"], ja.dynamics.loss(params, test), rtol=1e-5)
        np.testing.assert_allclose(value["p_norm"], jnp.linalg.norm(params.p), rtol=1e-5)
        norm = jnp.linalg.norm(jax.grad(ja.dynamics.loss)(params, train).p)
        np.testing.assert_allclose(value["log_gradient_norm"], jnp.log(norm), rtol=1e-4, atol=1e-4)
        mine = tokens[(tokens.seed == seed) & (tokens.phase == "query")]
        np.testing.assert_allclose(mine["Ep"], params.E @ params.p, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(mine["Ev"], params.E @ params.v, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(mine["alpha"], ja.data.average_signed_frequency(train), atol=1e-7)
        important = np.abs(np.asarray(ja.data.posterior_difference(train))) >= 0.5
        ids, mask = ja.models.reference.padded_sequences(train)
        q = jax.nn.softmax(jnp.where(mask, (params.E @ params.p)[ids], -jnp.inf), axis=1)
        np.testing.assert_allclose(value["important_mass"], (q * important[ids]).sum(1).mean(), rtol=1e-4)


def test_best_test_accuracy_is_the_running_maximum_of_each_seed_and_phase(finished):
    records, _ = tables(finished)
    wide = records.pivot(index=["seed", "phase", "step"], columns="metric", values="value")
    for _, curve in wide.groupby(["seed", "phase"]):
        expected = np.maximum.accumulate(curve["test_accuracy"].to_numpy())
        np.testing.assert_array_equal(curve["best_test_accuracy"], expected)


def test_a_finished_run_is_not_run_again(finished, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in finished.glob("*.parquet")}
    monkeypatch.setattr(run, "execute", None)
    assert go(finished).already_finished
    assert before == {path: path.stat().st_mtime_ns for path in finished.glob("*.parquet")}


def test_manifest_tells_where_the_numbers_come_from(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["config"]["model"]["dim"] == 16
    assert manifest["versions"]["jax"] == jax.__version__
    assert manifest["widths"] == [2]
    assert manifest["wall_time_s"] > 0
    assert len(manifest["config_hash"]) == 16


@pytest.mark.parametrize("calls", [1, 3, 5, 8])
def test_a_stopped_run_continues_to_bit_identical_tables(finished, tmp_path, monkeypatch, calls):
    """Ask to stop after some calls into the device, then run the same command again."""
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
            go(tmp_path / "small")
    assert not (tmp_path / "small" / "records.parquet").exists()
    go(tmp_path / "small")
    for one, other in zip(tables(tmp_path / "small"), tables(finished), strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_a_run_killed_while_saving_continues_to_bit_identical_tables(finished, tmp_path, monkeypatch):
    """Tables are written before the checkpoint: die in between, when the tables are ahead of it."""
    monkeypatch.setattr(execute, "CHECKPOINT_EVERY_S", 0.0)
    monkeypatch.setattr(execute, "BLOCK_S", 0.0)
    monkeypatch.setattr(execute, "CHECKPOINT_SHARE", np.inf)
    saves = 0
    manager = checkpoints._manager

    def dying(folder, keep=1):
        nonlocal saves
        saves += 1
        if saves == 4:
            raise KeyboardInterrupt
        return manager(folder, keep)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_manager", dying)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "small")
    go(tmp_path / "small")
    for one, other in zip(tables(tmp_path / "small"), tables(finished), strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_nan_is_named_and_the_other_seeds_go_on(tmp_path, monkeypatch):
    original = program.init_params

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=params.p.at[1].set(jnp.nan))

    monkeypatch.setattr(execute, "init_params", poisoned)
    outcome = go(tmp_path / "small")
    reason = "loss or gradient is not finite"
    assert outcome.failures == [{"cell": 0, "seed": 1, "phase": "embed", "step": 0, "reason": reason}]
    records, _ = tables(tmp_path / "small")
    loss = records[records.metric == "loss"].groupby("seed")["value"].apply(np.isfinite)
    assert loss[0].all()
    assert not loss[1].any()


def test_folders_of_another_config_and_strange_folders_are_refused(finished, tmp_path):
    with pytest.raises(InputError, match=r"another config \(model.dim: 16 -> 8\)"):
        go(finished, model={"kind": "one_layer", "dim": 8})
    (tmp_path / "thesis.txt").write_text("my life's work")
    with pytest.raises(InputError, match="not empty and no results folder"):
        go(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_full_disk_is_one_clear_line_and_nothing_computed_is_lost(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_parquet", full)
        with pytest.raises(RunError, match=r"the disk is full .* run the same command again"):
            go(tmp_path / "small")
    assert json.loads((tmp_path / "small" / "manifest.json").read_text())["status"] == "running"
    assert not go(tmp_path / "small").already_finished


def test_a_folder_in_the_way_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        go(tmp_path / "file" / "small")


def test_units_cut_the_seeds_and_chunks_change_no_more_than_rounding(tmp_path, finished):
    assert [list(u.seeds) for u in units.plan(sweepfile.check(tree(seeds=5, chunk=2)))] == [
        [0, 1],
        [2, 3],
        [4],
    ]
    go(tmp_path / "one", chunk=1)
    (one, _), (both, _) = tables(tmp_path / "one"), tables(finished)
    keys = ["cell", "seed", "phase", "step", "metric"]
    one, both = (x.sort_values(keys).reset_index(drop=True) for x in (one, both))
    loss = one["metric"] == "loss"
    np.testing.assert_allclose(one["value"][loss], both["value"][loss], rtol=1e-5)


def test_several_classes_axes_and_float64(tmp_path):
    data = tree()["data"] | {"num_classes": 4, "sequences": 32}
    outcome = go(tmp_path / "k", data=data, dtype="float64", axes={"model.dim": [8, 12]})
    assert not outcome.failures
    records, tokens = tables(tmp_path / "k")
    assert set(records["cell"]) == {0, 1}
    assert set(tokens["class"]) == {0, 1, 2, 3}
    loss = records[(records.metric == "loss") & (records.step == 0) & (records.phase == "embed")]
    np.testing.assert_allclose(loss["value"], np.log(4), atol=0.6)
    assert (loss["value"] != loss["value"].astype(np.float32)).all()


def test_seed_keys_do_not_depend_on_the_other_seeds():
    together, _ = corpora.seed_keys(range(5))
    alone, _ = corpora.seed_keys([3])
    np.testing.assert_array_equal(jax.random.key_data(together)[3], jax.random.key_data(alone)[0])


def test_seeds_of_a_large_shared_corpus_agree_with_those_of_a_small_one(monkeypatch):
    config = sweepfile.check(tree())
    data_keys, model_keys = corpora.seed_keys([0, 1, 2])
    own = corpora.load(config.data, data_keys[:1], Reporter(quiet=True).loading)
    shared = own._replace(shared=True, corpora=jax.tree.map(lambda x: x[0], own.corpora))
    results = []
    for large in (1 << 60, 0):
        monkeypatch.setattr("jaxattn.data.ragged.LARGE", large)
        jax.clear_caches()
        params = program.init_params(config, shared, model_keys, {})
        made = program.program(config, 1, shared)
        state = made.advance(
            made.init(params, shared.corpora, {}, model_keys), shared.corpora, {}, jnp.int32(7)
        )
        metrics = made.measure(state, shared.corpora)
        results.append((state.params.p, metrics["loss"], metrics["selected_tokens"]))
    jax.clear_caches()
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
