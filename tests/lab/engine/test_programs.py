"""Functions of one seed, vmapped over runs and compiled before they are called."""

import threading
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.core import backend
from jaxattn.lab.engine import program_cache, programs
from jaxattn.lab.engine.programs import Programs, seed_keys
from jaxattn.lab.study.groups import compile_groups

COMPILED = "/jax/core/compile/backend_compile_duration"


def test_seed_keys_do_not_depend_on_other_seeds():
    together, _, _ = seed_keys(range(5))
    alone, _, _ = seed_keys([3])
    np.testing.assert_array_equal(jax.random.key_data(together)[3], jax.random.key_data(alone)[0])


@pytest.mark.slow
def test_large_corpus_code_path_matches_the_regular_one(monkeypatch, study):
    setting = study().base
    data_keys, model_keys, _ = seed_keys([0, 1, 2])
    own = Programs(setting).draw(data_keys[:1], {})
    shared = own._replace(shared=True, splits=jax.tree.map(lambda x: x[0], own.splits))
    results = []
    for large in (1 << 60, 0):
        monkeypatch.setattr("jaxattn.data.ragged.LARGE", large)
        jax.clear_caches()
        own_programs = Programs(setting, shared)
        params = own_programs.start(shared, model_keys, {})
        made = own_programs.phase(1, shared)
        carried = made.begin(params, shared.splits, {}, model_keys)
        carried = made.advance(carried, shared.splits, {}, jnp.int32(7))
        found = made.measure(carried, shared.splits, {})
        metrics = {name: x for every in found.values() for name, x in every.items()}
        results.append((carried.state.params.p, metrics["loss"], metrics["selected_tokens"]))
    jax.clear_caches()
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.more
def test_swept_thresholds_apply_to_each_cell(tmp_path, study):
    """The attention on important tokens against a loop over tokens and sequences."""
    thresholds = [0.1, 2.0 / 3.0]
    # One phase is enough: the thresholds are constants, so each cell compiles its own programs.
    phases = study().tree["phases"][1:]
    probes = {"min_count": 1, "bins": 0}
    swept = study(axes={"probes.important": thresholds}, phases=phases, probes=probes, seeds=1)
    results = swept.run(tmp_path / "swept", quiet=True)
    known = results.table()
    assert known["important_mass"].nunique(dropna=False) > 1
    for row in known.to_dict("records"):
        cell, seed = row["cell"], row["seed"]
        params, train = results.params(cell=cell, seed=seed), results.dataset(seed, cell).train
        tokens = results.tokens.query(f"cell == {cell} and seed == {seed} and phase == 'query'")
        important = np.zeros(train.vocab_size, bool)
        important[tokens["id"]] = tokens["posterior_difference"].abs() >= thresholds[cell]
        weights = np.asarray(train.counts()) * np.exp(np.asarray(params.E @ params.p))
        mass = (weights[:, important].sum(axis=1) / weights.sum(axis=1)).mean()
        expected = mass if important.any() else np.nan
        np.testing.assert_allclose(row["important_mass"], expected, rtol=1e-5)


@contextmanager
def compiling():
    """Collect the thread of every program that is compiled or loaded from the cache."""
    threads = []

    def note(event, *_, **__):
        if event == COMPILED:
            threads.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield threads
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.more
def test_programs_are_compiled_before_they_are_called(tmp_path, go, study, monkeypatch, assert_same):
    wanted = study(model={"kind": "one_layer", "dim": 13}, seeds=3)
    jax.clear_caches()
    program_cache._KNOWN.clear()
    with compiling() as before:
        assert not go(tmp_path / "before", wanted)[0].failures
    program_cache._KNOWN.clear()
    jax.clear_caches()
    monkeypatch.setattr(Programs, "compile", lambda *_, **__: None)
    with compiling() as as_called:
        assert not go(tmp_path / "called", wanted)[0].failures
    assert_same(tmp_path / "before", tmp_path / "called")
    main = threading.main_thread().name
    assert set(as_called) == {main}
    # Draw and start, and for two phases begin, measure, state_metrics, advance and tokens.
    assert len([name for name in before if name != main]) == 12
    assert len(before) == len(as_called)


@pytest.mark.more
def test_resumed_batch_compiles_only_remaining_programs(tmp_path, go, stop, study, small_run, assert_same):
    stop(tmp_path / "small", study(), 4)
    program_cache._KNOWN.clear()
    jax.clear_caches()
    with compiling() as threads:
        go(tmp_path / "small", study())
    assert_same(tmp_path / "small", small_run)
    # Draw, start, and for the second phase all programs except begin.
    assert len([name for name in threads if name != threading.main_thread().name]) == 6


def test_compilation_error_is_raised(study, monkeypatch):
    (group,) = compile_groups(study(model={"kind": "one_layer", "dim": 14}).cells)
    made = Programs(group.setting)

    def fail(*_):
        raise ZeroDivisionError("in a thread")

    monkeypatch.setattr(programs, "_compile", fail)
    with backend.precision("float32"), pytest.raises(ZeroDivisionError, match="in a thread"):
        made.compile(group, 2)


@pytest.mark.more
def test_seeds_per_core_changes_how_many_seeds_train_at_a_time_but_not_the_results(study):
    texts, trained = [], []
    for setting in ({}, {"seeds_per_core": 1}):
        first, last = study().config["phases"]
        group_setting = study(phases=[first, last | setting]).base
        data_keys, model_keys, _ = seed_keys([0, 1, 2])
        made = Programs(group_setting)
        loaded = made.draw(data_keys, {})
        program = made.phase(1, loaded)
        carried = program.begin(made.start(loaded, model_keys, {}), loaded.splits, {}, model_keys)
        texts.append(program.advance.lower(carried, loaded.splits, {}, jnp.int32(5)).as_text())
        trained.append(program.advance(carried, loaded.splits, {}, jnp.int32(5)).state.params.p)
    # By default all three seeds are vmapped; with the setting, a loop trains one of them at a time.
    assert texts[1].count("stablehlo.while") == texts[0].count("stablehlo.while") + 1
    np.testing.assert_allclose(*trained, rtol=1e-5)
