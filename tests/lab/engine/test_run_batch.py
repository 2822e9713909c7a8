"""Batches from their start to their tables, and bitwise identical tables after a stop."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxattn as ja
from jaxattn.core import pytrees
from jaxattn.dynamics.flows import stiff, ties
from jaxattn.lab import kinds
from jaxattn.lab.engine import batch_run, programs, run_study
from jaxattn.lab.engine.programs import seed_keys
from jaxattn.lab.probes.standard import BEST
from jaxattn.lab.storage import checkpoints, memo, run_log
from jaxattn.lab.study import seed as of_seed
from jaxattn.lab.study.groups import compile_groups

AT_PROBES = ["one_minus_cosine", "margin_ratio"]
AT_END = ["feasible", "max_margin", "duality_gap", "primal_residual", "support_pairs", "certified_distance"]


def last_line(directory):
    """Read the last log line of the only unfinished batch of a folder."""
    (one,) = memo.partials(directory)
    return run_log.latest(one.path, directory).line


def wide(read, directory, phase="query"):
    records, _ = read(directory)
    records = records[records.phase == phase]
    return records.pivot(index=["seed", "step"], columns="metric", values="value")


def test_records_and_tokens_contain_every_seed_phase_and_step(small_run, read):
    records, tokens = read(small_run)
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


def generate(data, key, sequences):
    """Call the data's generator itself, as a user does."""
    settings = {name: getattr(data, name) for name in data.arguments} | {"sequences": sequences}
    return data.function(key, **settings)


@pytest.mark.more
def test_records_match_explicit_phases(small_run, read, study):
    records, tokens = read(small_run)
    data = study().base.data
    data_keys, model_keys, _ = seed_keys([0, 1])
    for seed in (0, 1):
        train_key, test_key = jax.random.split(data_keys[seed])
        train, test = (generate(data, key, n) for key, n in ((train_key, 30), (test_key, 20)))
        params = ja.models.one_layer.init(model_keys[seed], vocab_size=20, dim=16)
        params = jax.jit(lambda x, train: ja.dynamics.one_step(x, train, step_size=50.0))(params, train)
        gradient, loss = jax.jit(jax.grad(ja.dynamics.loss)), jax.jit(ja.dynamics.loss)
        for _ in range(20):
            params = params.replace(p=params.p - 0.1 * gradient(params, train).p)
        last = records[(records.seed == seed) & (records.phase == "query") & (records.step == 20)]
        value = last.set_index("metric")["value"]
        np.testing.assert_allclose(value["loss"], loss(params, train), rtol=1e-5)
        np.testing.assert_allclose(value["test_loss"], loss(params, test), rtol=1e-5)
        np.testing.assert_allclose(value["p_norm"], jnp.linalg.norm(params.p), rtol=1e-5)
        norm = jnp.linalg.norm(gradient(params, train).p)
        np.testing.assert_allclose(value["log_gradient_norm"], jnp.log(norm), rtol=1e-4, atol=1e-4)
        mine = tokens[(tokens.seed == seed) & (tokens.phase == "query")]
        np.testing.assert_allclose(mine["Ep"], params.E @ params.p, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(mine["Ev"], params.E @ params.v, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(mine["alpha"], ja.data.average_signed_frequency(train), atol=1e-7)
        important = np.abs(np.asarray(ja.data.posterior_difference(train))) >= 0.5
        ids, mask = ja.models.reference.padded_sequences(train)
        q = jax.nn.softmax(jnp.where(mask, (params.E @ params.p)[ids], -jnp.inf), axis=1)
        np.testing.assert_allclose(value["important_mass"], (q * important[ids]).sum(1).mean(), rtol=1e-4)


def test_best_test_accuracy_is_the_running_maximum(small_run, read):
    records, _ = read(small_run)
    table = records.pivot(index=["seed", "phase", "step"], columns="metric", values="value")
    for _, curve in table.groupby(["seed", "phase"]):
        expected = np.maximum.accumulate(curve["test_accuracy"].to_numpy())
        np.testing.assert_array_equal(curve["test_accuracy_best_on_test"], expected)


@pytest.mark.parametrize(
    "calls", [pytest.param(1, marks=pytest.mark.more), 3, pytest.param(5, marks=pytest.mark.more), 8]
)
def test_stopped_run_resumes_bitwise_identically(
    small_run, tmp_path, go, stop, study, assert_same, listed, calls
):
    """Ask the run to stop after some calls to the device, then run the same command again."""
    folder = stop(tmp_path / "small", study(), calls)
    assert [len(names) for names in listed(folder)] == [0, 1, 0]
    go(folder, study())
    assert [len(names) for names in listed(folder)] == [1, 0, 0]
    assert_same(folder, small_run)


@pytest.mark.more
def test_run_stopped_after_any_step_takes_each_step_once(
    small_run, tmp_path, go, stop, study, assert_same, every_step, counted
):
    before = []
    for calls in (1, 4, 9, 16, 30):
        folder = stop(tmp_path / str(calls), study(), calls, intervals=every_step)
        go(folder, study(), intervals=every_step)
        assert_same(folder, small_run)
        first, again = counted
        assert first[0] == again[0] == [(0, 0), (0, 1)]
        assert first[1] + again[1] == 21
        before.append(first[1])
        counted.clear()
    assert before[0] == 0
    assert 1 < before[2] < before[3] < 21


def test_resumed_batch_adds_up_the_time_of_its_processes(tmp_path, monkeypatch, go, stop, study, finished):
    stop(tmp_path, study(), 5)
    (one,) = memo.partials(tmp_path)
    assert one.record.wall_time_s > 0
    go(tmp_path, study())
    (record,) = finished(tmp_path).values()
    assert one.record.wall_time_s < record.wall_time_s < one.record.wall_time_s + 60


@pytest.mark.more
@pytest.mark.parametrize("calls", [2, 4])
def test_stopped_flow_resumes_bitwise_identically(flow_run, tmp_path, go, stop, study, assert_same, calls):
    stop(tmp_path / "flow", study("flow"), calls)
    go(tmp_path / "flow", study("flow"))
    assert_same(tmp_path / "flow", flow_run)


@pytest.mark.more
def test_batch_resumes_on_a_different_number_of_devices(tmp_path, monkeypatch, go, stop, study, read):
    """The run starts with an odd number of cores and resumes with another number."""
    wanted = study(seeds=3)
    with monkeypatch.context() as patch:
        patch.setattr(run_study.devices, "pad_to_devices", lambda runs, shared: [*runs, runs[-1]])
        stop(tmp_path / "other", wanted, 4)
    assert last_line(tmp_path / "other").phase == "query"
    assert not go(tmp_path / "other", wanted)[0].errors
    go(tmp_path / "straight", wanted)
    (one, _), (other, _) = read(tmp_path / "other", ordered=True), read(tmp_path / "straight", ordered=True)
    pd.testing.assert_frame_equal(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.more
def test_stopped_flow_with_expensive_steps_resumes_bitwise_identically(
    tmp_path, monkeypatch, cleared, go, stop, study, assert_same
):
    monkeypatch.setattr(stiff, "MANY_DIMS", 0)
    monkeypatch.setattr(ties, "MAX_TIED", 4)
    go(tmp_path / "straight", study("flow"))
    stop(tmp_path / "flow", study("flow"), 8)
    last = last_line(tmp_path / "flow")
    assert (last.phase, 0 < last.step < 11) == ("query", True)
    go(tmp_path / "flow", study("flow"))
    assert_same(tmp_path / "flow", tmp_path / "straight")


@pytest.mark.more
def test_killed_flow_resumes_from_its_last_row(
    tmp_path, monkeypatch, cleared, go, study, every_step, assert_same
):
    monkeypatch.setattr(stiff, "MANY_DIMS", 0)
    monkeypatch.setattr(ties, "MAX_TIED", 4)
    go(tmp_path / "straight", study("flow"))
    measured = []

    def killed(underway, program, state):
        measured.append((state.index, state.step))
        if measured[-1] == (1, 6):
            raise SystemExit
        measure(underway, program, state)

    measure = batch_run._BatchRun.measure
    with monkeypatch.context() as patch:
        patch.setattr(batch_run._BatchRun, "measure", killed)
        with pytest.raises(SystemExit):
            go(tmp_path / "flow", study("flow"), intervals=every_step)
        measured.clear()
        with pytest.raises(SystemExit):
            go(tmp_path / "flow", study("flow"), intervals=every_step)
    assert measured == [(1, 6)]
    go(tmp_path / "flow", study("flow"))
    assert_same(tmp_path / "flow", tmp_path / "straight")


def test_run_killed_while_saving_resumes_bitwise_identically(
    small_run, tmp_path, monkeypatch, go, study, every_step, assert_same
):
    """Kill the run after tables and arrays are written, but before their commit record."""
    saves = 0
    save = checkpoints.save

    def dying(*arguments):
        nonlocal saves
        saves += 1
        if saves == 4:
            raise KeyboardInterrupt
        return save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", dying)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "small", study(), intervals=every_step)
    go(tmp_path / "small", study(), intervals=every_step)
    assert_same(tmp_path / "small", small_run)


def poison(monkeypatch, change):
    """Let some runs start with NaN."""
    original = programs.Programs.start

    def poisoned(*arguments):
        params = original(*arguments)
        return params.replace(p=change(params.p))

    monkeypatch.setattr(programs.Programs, "start", poisoned)


def test_nan_is_reported_and_other_seeds_continue(tmp_path, monkeypatch, go, study, read):
    poison(monkeypatch, lambda p: p.at[1].set(jnp.nan))
    outcome, _ = go(tmp_path / "small", study())
    reason = "loss or gradient is not finite"
    assert outcome.failures == [{"cell": 0, "seed": 1, "phase": "embed", "step": 0, "reason": reason}]
    records, _ = read(tmp_path / "small")
    loss = records[records.metric == "loss"].groupby("seed")["value"].apply(np.isfinite)
    assert loss[0].all()
    assert not loss[1].any()


@pytest.mark.more
def test_failed_flow_is_reported_and_other_seeds_continue(tmp_path, monkeypatch, go, study, tables, read):
    poison(monkeypatch, lambda p: p.at[1].set(jnp.nan))
    outcome, _ = go(tmp_path / "flow", study("flow", phases=tables("flow")["phases"][1:]))
    (failure,) = outcome.failures
    assert (failure["seed"], failure["phase"], failure["step"]) == (1, "query", 0)
    assert "NaN" in failure["reason"]
    rows = wide(read, tmp_path / "flow")
    assert rows.loc[[0, 2], "one_minus_cosine"].notna().all()
    assert rows.loc[1, "one_minus_cosine"].isna().all()


@pytest.mark.more
def test_four_class_study_with_a_swept_step_size_runs_in_float64(tmp_path, go, study, tables, read):
    data = tables()["data"] | {"num_classes": 4, "sequences": 32}
    wanted = study(data=data, dtype="float64", axes={"phases.embed.step_size": [50.0, 60.0]})
    assert not go(tmp_path / "k", wanted)[0].failures
    records, tokens = read(tmp_path / "k")
    assert set(records["cell"]) == {0, 1}
    assert set(tokens["class"]) == {0, 1, 2, 3}
    loss = records[(records.metric == "loss") & (records.step == 0) & (records.phase == "embed")]
    np.testing.assert_allclose(loss["value"], np.log(4), atol=0.6)
    assert (loss["value"] != loss["value"].astype(np.float32)).all()


@pytest.mark.more
def test_flow_records_match_the_path_and_the_limit(flow_run, x64, study, read):
    table = wide(read, flow_run)
    data = study("flow").base.data
    data_keys, model_keys, _ = seed_keys([0, 1, 2])
    for seed in (0, 2):
        train_key, _ = jax.random.split(data_keys[seed])
        corpus = generate(data, train_key, 20)
        params = ja.models.one_layer.init(model_keys[seed], vocab_size=12, dim=32, dtype=jnp.float64)
        params = ja.dynamics.one_step(params, corpus, step_size=100.0)
        path = ja.dynamics.exact_flow(
            ja.theory.scores.one_layer(params, corpus), params.p, until_norm=1e4, points=12
        )
        rows = table.loc[seed]
        # The program that all seeds of a study share rounds differently.
        for metric, expected in (
            ("p_norm", path.norm),
            ("arc_length", path.arc_length),
            ("log_gradient_norm", path.log_gradient_norm),
            ("log_time", path.log_time),
        ):
            np.testing.assert_allclose(rows[metric], expected, rtol=1e-6, err_msg=metric)
        np.testing.assert_array_equal(rows["evaluations"], np.asarray(path.steps) * (6 + 12))
        chosen = ja.theory.selection(path.p[-1], ja.theory.Scores(params.E, corpus))
        mm = ja.theory.max_margin(ja.theory.Scores(params.E, corpus), chosen)
        away = ja.theory.one_minus_cosine(path.p, mm.p)
        np.testing.assert_allclose(rows["one_minus_cosine"], away, rtol=1e-5)
        np.testing.assert_allclose(rows["max_margin"].iloc[-1], mm.margin, rtol=1e-9)
        assert rows["duality_gap"].iloc[-1] < 1e-10
        assert rows["feasible"].iloc[-1] == 1
        assert 0.99 < rows["margin_ratio"].iloc[-1] <= 1
        important = np.asarray(ja.data.average_signed_frequency(corpus)) != 0
        assert rows["important_selected"].iloc[-1] == chosen.selects(corpus, important)[0].mean()


@pytest.mark.more
def test_limit_metrics_are_recorded_only_for_phases_that_train_only_p(flow_run, read):
    assert set(ja.probes.MaxMarginDirection.metrics) == {*AT_PROBES, *AT_END}
    embed, query = wide(read, flow_run, "embed"), wide(read, flow_run)
    assert not {*AT_PROBES, *AT_END} & set(embed.columns)
    assert {*AT_PROBES, *AT_END} <= set(query.columns)
    assert query[AT_PROBES].notna().all().all()
    last = query.index.get_level_values("step") == 11
    assert query.loc[last, AT_END].notna().all().all()
    assert query.loc[~last, AT_END].isna().all().all()


@pytest.mark.more
def test_first_order_method_runs_as_a_phase(tmp_path, go, study, tables, read):
    phases = tables("flow")["phases"]
    phases[1] = {"name": "query", "kind": "log_descent", "method": "polyak", "step_size": 5.0, "steps": 40}
    assert not go(tmp_path / "polyak", study("flow", phases=phases, seeds=2))[0].failures
    rows = wide(read, tmp_path / "polyak").loc[1]
    np.testing.assert_array_equal(rows["evaluations"], rows.index)
    assert rows["one_minus_cosine"].iloc[-1] < 0.1 * rows["one_minus_cosine"].iloc[0]


@pytest.mark.more
def test_flow_runs_in_float64_in_a_float32_study(tmp_path, go, study, read):
    assert not go(tmp_path / "flow", study("flow", dtype="float32", seeds=1))[0].failures
    assert wide(read, tmp_path / "flow")["one_minus_cosine"].iloc[-1] < 1e-5


def descent(train, **changes):
    phase = {"name": "all", "kind": "descent", "train": train, "optimizer": "adam", "step_size": 0.01}
    return phase | {"steps": 6} | changes


def records_of(go, read, directory, wanted):
    go(directory, wanted)
    return read(directory)[0].pivot_table(index=["seed", "phase", "step"], columns="metric", values="value")


@pytest.mark.parametrize("kind", kinds.MODELS)
@pytest.mark.more
def test_study_matches_explicit_adam(kind, tmp_path, x64, go, read, study):
    trained = ["E", "p"] if kind == "two_layer" else list(kinds.load_kind(kinds.MODELS[kind]).parameters)
    own = {"heads": 2} if kind == "multi_head" else {}
    settings = {"model": {"kind": kind, "dim": 8} | own, "phases": [descent(trained)]}
    wanted = study(seeds=2, dtype="float64", probes={"per_decade": 1, "bins": 0, "min_count": 1}, **settings)
    found = records_of(go, read, tmp_path, wanted)
    model, train_key = wanted.base.model, of_seed.keys(1)[0]
    train = wanted.base.data.draw(train_key).train
    params = model.init(of_seed.keys(1)[1], train, dtype=jnp.float64)
    moments = dict.fromkeys(trained, (0.0, 0.0))
    gradient_of = jax.jit(
        jax.grad(lambda x: ja.losses.logistic(model.outputs(x, train), train.targets).mean())
    )
    for step in range(1, 7):
        gradient = gradient_of(params)
        moved = {}
        for name, (first, second) in moments.items():
            g = getattr(gradient, name)
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            moments[name] = first, second
            root = jnp.sqrt(second / (1 - 0.999**step)) + 1e-8
            moved[name] = getattr(params, name) - 0.01 * first / (1 - 0.9**step) / root
        params = params.replace(**moved)
    expected = ja.losses.logistic(model.outputs(params, train), train.targets).mean()
    np.testing.assert_allclose(found.loc[(1, "all", 6), "loss"], expected, rtol=1e-8)
    assert found.loc[(1, "all", 6), "loss"] < found.loc[(1, "all", 0), "loss"]
    assert ("important_selected" in found) == isinstance(model, ja.TokenModel)
    # The computation of one seed, as explicit code, must match the engine.
    assert_is_what_the_engine_records(wanted.base, 1, read(tmp_path)[0])


@pytest.mark.parametrize("kind", ["two_layer", "two_layer_weights"])
@pytest.mark.more
def test_stopped_minibatch_run_resumes_bitwise_identically(
    kind, tmp_path, x64, go, stop, read, study, assert_same
):
    trained = list(kinds.load_kind(kinds.MODELS[kind]).parameters)
    phase = descent(trained, batch_size=8, steps=20)
    wanted = study(model={"kind": kind, "dim": 8}, phases=[phase], dtype="float64")
    go(tmp_path / "straight", wanted)
    stop(tmp_path / "stopped", wanted, 5)
    go(tmp_path / "stopped", wanted)
    assert_same(tmp_path / "stopped", tmp_path / "straight")
    assert_is_what_the_engine_records(wanted.base, 1, read(tmp_path / "straight")[0])


@pytest.mark.more
def test_run_with_custom_probe_steps_resumes_bitwise_identically(
    tmp_path, go, stop, read, study, assert_same
):
    probes = {"steps": {"query": [3, 7, 18]}, "every": 1, "min_count": 1}
    wanted = study(seeds=4, chunk=2, probes=probes)
    go(tmp_path / "straight", wanted)
    stop(tmp_path / "stopped", study(seeds=2, chunk=2, probes=probes), 4)
    go(tmp_path / "stopped", study(seeds=2, chunk=2, probes=probes))
    go(tmp_path / "stopped", wanted)
    assert_same(tmp_path / "stopped", tmp_path / "straight")
    records = read(tmp_path / "straight")[0]
    steps = records.groupby("phase", observed=True)["step"].unique().map(sorted).to_dict()
    assert steps == {"embed": [0, 1], "query": [0, 3, 7, 18, 20]}


def assert_is_what_the_engine_records(setting, seed, records, tolerance=1e-10):
    """Assert that the pure functions of one seed give the records of a run, metric by metric."""
    mine = records[records["seed"] == seed].set_index(["phase", "step", "metric"])["value"]
    seen = 0
    for phase, step, found in of_seed.run_seed(setting, seed):
        for name, value in found.items():
            entries = (
                {name: value} if value.ndim == 0 else {f"{name}_{k:02d}": x for k, x in enumerate(value)}
            )
            for metric, x in entries.items():
                np.testing.assert_allclose(
                    mine[phase, step, metric],
                    x,
                    rtol=tolerance,
                    atol=tolerance,
                    err_msg=f"{phase} {step} {metric}",
                )
                seen += 1
    late = {*BEST, *AT_PROBES, *AT_END, "longest", "share_of_longest"}
    assert seen == (~mine.index.get_level_values("metric").isin(late)).sum()


@pytest.mark.more
def test_pure_functions_for_one_seed_match_the_records(tmp_path, x64, go, read, study, tables):
    """The phases are minibatches, one step, an early stop and a first-order method."""
    phases = [
        descent(["E", "p"], name="minibatches", batch_size=7, steps=4),
        {"name": "one_step", "kind": "one_step", "step_size": 9.0},
        descent(["p"], name="early_stop", patience=1, check_every=1, steps=4)
        | {"step_size": 0.5, "schedule": "cosine", "warmup": 1},
        {"name": "log", "kind": "log_descent", "method": "dual_acceleration", "step_size": 0.3, "steps": 3},
    ]
    data = tables()["data"] | {"validation_sequences": 20}
    probes = {"per_decade": 1, "min_count": 1, "bins": 3}
    wanted = study(seeds=[1, 4], dtype="float64", data=data, phases=phases, probes=probes)
    go(tmp_path, wanted)
    assert_is_what_the_engine_records(wanted.base, 4, read(tmp_path)[0])


@pytest.mark.more
def test_pure_functions_for_a_flow_match_the_records(flow_run, x64, read, study):
    assert_is_what_the_engine_records(study("flow").base, 1, read(flow_run)[0])


@pytest.fixture(scope="module")
def own_run(tmp_path_factory, go, study):
    directory = tmp_path_factory.mktemp("own") / "run"
    assert not go(directory, study("own"))[0].failures
    return directory


@pytest.mark.more
def test_custom_code_matches_explicit_computation(own_run, x64, read, study):
    """The model, data, loss, start, optimiser, phase and probes of the study are all custom."""
    setting = study("own").base
    mine = setting.model
    records, _ = read(own_run)
    data_key, key, _ = of_seed.keys(1)
    train_key, test_key = jax.random.split(data_key)
    pairs = type(setting.data).function
    train = pairs(train_key, vocab_size=10, sequences=12, swapped=0.25)
    test = pairs(test_key, vocab_size=10, sequences=8, swapped=0.25)
    params = mine.init(key, train, dtype=jnp.float64)._replace(v=jnp.full(4, 0.25))

    def loss_of(corpus):
        ids, mask = ja.models.reference.padded_sequences(corpus)

        def loss(params):
            scores, values = 2.0 * (params.E @ (params.W @ params.p)), params.E @ params.v
            q = jax.nn.softmax(jnp.where(mask, scores[ids], -jnp.inf), axis=1)
            return (0.5 * jnp.maximum(0, 1 - corpus.targets * (q * values[ids]).sum(1)) ** 2).mean()

        return jax.jit(loss)

    gradient_of = jax.jit(jax.grad(loss_of(train)))
    for _ in range(3):
        g = gradient_of(params)
        scale = jnp.minimum(1, 0.01 / jnp.sqrt((g.E**2).sum() + (g.p**2).sum()))
        params = params._replace(E=params.E - 0.5 * scale * g.E, p=params.p - 0.5 * scale * g.p)
    start, noise_key = params.p, jax.random.fold_in(key, 1)
    norms = [jnp.linalg.norm(params.p)]
    for step in range(3):
        noise = jax.random.normal(jax.random.fold_in(noise_key, step), (4,), jnp.float64)
        params = params._replace(p=params.p - 0.1 * gradient_of(params).p + 0.01 * noise)
        norms.append(jnp.linalg.norm(params.p))
    last = records[(records.seed == 1) & (records.phase == "wander") & (records.step == 3)]
    value = last.set_index("metric")["value"]
    expected = {
        "loss": loss_of(train)(params),
        "test_loss": loss_of(test)(params),
        "spread": 3.0 * params.p.std(),
        "travelled": jnp.linalg.norm(params.p - start),
        "longest": max(norms),
        "share_of_longest": norms[-1] / max(norms),
    }
    for name, x in expected.items():
        np.testing.assert_allclose(value[name], x, rtol=1e-10, err_msg=name)
    # The scores are not E·p; attention on important tokens uses the scores of the model.
    chosen = ja.theory.selection_from_scores(mine.scores_and_values(params)[0], train)
    by_query = ja.theory.selection_from_scores(params.E @ params.p, train)
    important = np.abs(np.asarray(ja.data.posterior_difference(train))) >= 0.5
    assert (chosen.mask != by_query.mask).any()
    assert value["important_selected"] == np.mean(np.asarray(chosen.selects(train, important)[0]))


@pytest.mark.more
def test_custom_code_matches_its_pure_functions(own_run, x64, read, study):
    assert_is_what_the_engine_records(study("own").base, 0, read(own_run)[0])


@pytest.mark.more
def test_selected_tokens_are_determined_by_the_model_scores(own_run, x64, read, study):
    """With W = 1 the scores are E·p; with a random W the selection changes while E·p does not."""
    data_key, key, _ = of_seed.keys(0)
    for rotation in ("drawn", "identity"):
        setting = study("own", model=study("own").tree["model"] | {"rotation": rotation}).base
        corpora = of_seed.draw_data(setting, data_key)
        params = of_seed.initial_params(setting, corpora, key, [])
        carried = of_seed.begin_phase(setting, 0, params, corpora, key)
        found = of_seed.merged_metrics(setting, of_seed.measure_probes(setting, 0, carried, corpora), 0)
        by_query = ja.theory.selection_from_scores(params.E @ params.p, corpora.train)
        own = ja.theory.selection_from_scores(setting.model.scores_and_values(params)[0], corpora.train)
        assert bool((own.mask == by_query.mask).all()) == (rotation == "identity")
        important = np.abs(np.asarray(corpora.tokens.posterior_difference[:, 0])) >= 0.5
        assert found["important_selected"] == np.mean(np.asarray(own.selects(corpora.train, important)[0]))
        assert found["selected_tokens"] == own.counts(corpora.train).mean()


@pytest.mark.parametrize("run", ["small_run", "own_run"])
@pytest.mark.more
def test_stored_parameters_match_the_pure_functions(run, request, study, x64):
    """The parameters after each phase of a run are compared with those of explicit phases."""
    directory = request.getfixturevalue(run)
    results = ja.load(directory)
    with jax.enable_x64(run == "own_run"):
        setting = study("own" if run == "own_run" else "small").base

        @jax.jit
        def one_by_one():
            data_key, key, _ = of_seed.keys(1)
            corpora = of_seed.draw_data(setting, data_key)
            after = [of_seed.initial_params(setting, corpora, key, [])]
            for index, phase in enumerate(setting.phases):
                carried = of_seed.begin_phase(setting, index, after[-1], corpora, key)
                after.append(of_seed.advance(setting, index, carried, corpora, phase.steps).state.params)
            return after[1:]

        for phase, params in zip(setting.phases, one_by_one(), strict=True):
            found = results.params(seed=1, phase=phase.name)
            for name in pytrees.names(params):
                expected = pytrees.get(params, name)
                tolerance = 1e-10 if run == "own_run" else 1e-4
                stored = found[name] if run == "own_run" else getattr(found, name)
                np.testing.assert_allclose(stored, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.more
def test_minibatches_depend_on_seed_and_phase(tmp_path, go, read, study):
    phases = [descent(["p"], name=name, batch_size=10) for name in ("one", "two")]
    found = records_of(go, read, tmp_path / "a", study(phases=phases))
    again = records_of(go, read, tmp_path / "b", study(phases=phases))
    pd.testing.assert_frame_equal(found, again)
    full = records_of(go, read, tmp_path / "c", study(phases=[descent(["p"], name="one"), phases[1]]))
    for seed in (0, 1):
        assert found.loc[(seed, "one", 6), "loss"] != full.loc[(seed, "one", 6), "loss"]


@pytest.mark.more
def test_early_stopped_phase_ends_with_the_best_validation_loss(tmp_path, go, read, study, tables):
    data = tables()["data"] | {"validation_sequences": 20, "vocab_size": 60, "max_posterior_difference": 0.3}
    phase = descent(["E", "p", "v"], steps=40, step_size=0.1, check_every=1)
    common = {"data": data, "dtype": "float64", "probes": {"per_decade": 100, "min_count": 1, "bins": 0}}
    straight = records_of(go, read, tmp_path / "a", study(phases=[phase], **common))
    stopped = records_of(go, read, tmp_path / "b", study(phases=[phase | {"patience": 500}], **common))
    for seed in (0, 1):
        # The loss before the first step is not checked.
        path = straight.loc[(seed, "all")]["validation_loss"].loc[1:]
        end = stopped.loc[(seed, "all", 40), "validation_loss"]
        assert path.min() * (1 - 1e-9) <= end < path.iloc[-1]


@pytest.mark.more
def test_batches_of_a_group_share_traced_programs(study, monkeypatch):
    traced = []

    def counted(name, function):
        def call(*arguments):
            traced.append(name)
            return function(*arguments)

        return call

    for name in ("draw_data", "initial_params"):
        monkeypatch.setattr(of_seed, name, counted(name, getattr(of_seed, name)))
    (group,) = compile_groups(study(model={"kind": "one_layer", "dim": 15}).cells)
    made = programs.Programs(group.setting)
    for seeds in ([0, 1], [2, 3], [4, 5]):
        data_keys, model_keys, _ = seed_keys(seeds)
        loaded = made.draw(data_keys, {})
        params = made.start(loaded, model_keys, {})
        expected = group.setting.model.init(model_keys[1], loaded.splits.train, dtype=params.p.dtype)
        np.testing.assert_allclose(params.p[1], expected.p, rtol=1e-6)
    assert sorted(traced) == ["draw_data", "initial_params"]
