"""Programs that are compiled before they are called."""

import threading
from contextlib import contextmanager

import jax
import pytest

from jaxattn.engine import ahead, execute, program
from jaxattn.engine.groups import compile_groups
from jaxattn.engine.program import Compiled

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compiling():
    """Collect the thread of every program that is compiled, or found among those kept."""
    threads = []

    def note(event, *_, **__):
        if event == COMPILED:
            threads.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield threads
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def of(study, dim, **changes):
    """A study that no other test has programs of."""
    return study(model={"kind": "one_layer", "dim": dim}, **changes)


def test_programs_compile_once_in_other_threads_with_results_that_stay(
    tmp_path, go, study, assert_same, monkeypatch
):
    jax.clear_caches()
    with compiling() as before:
        assert not go(tmp_path / "ahead", of(study, 13, seeds=3))[0].failures
    program._made.cache_clear()
    jax.clear_caches()
    monkeypatch.setattr(ahead.Ahead, "compile", lambda *_: None)
    with compiling() as as_called:
        assert not go(tmp_path / "called", of(study, 13, seeds=3))[0].failures
    assert_same(tmp_path / "ahead", tmp_path / "called")
    main = threading.main_thread().name
    assert set(as_called) == {main}
    # The programs of two phases and the keys; what is left are operations between them.
    assert len([name for name in before if name != main]) == 13
    assert len(before) == len(as_called)


def test_a_batch_that_goes_on_compiles_what_it_calls(tmp_path, go, stop, study, small_run, assert_same):
    stop(tmp_path / "small", study(), 4)
    program._made.cache_clear()
    jax.clear_caches()
    with compiling() as threads:
        go(tmp_path / "small", study())
    assert_same(tmp_path / "small", small_run)
    # Keys, corpora, parameters, and of the second phase all but its beginning.
    assert len([name for name in threads if name != threading.main_thread().name]) == 7


def test_all_programs_are_traced_before_the_first_is_compiled(study, monkeypatch):
    (group,) = compile_groups(of(study, 17).cells)
    cache = execute.CompilationCache(lambda *_: None)
    traced, waited = threading.Event(), []
    original = ahead._compile

    def compile(*arguments):
        waited.append(traced.wait(60))
        original(*arguments)

    monkeypatch.setattr(ahead, "_compile", compile)
    with ahead.backend.precision("float32"):
        cache.compile_ahead(group, 2)
    traced.set()
    cache.close()
    assert waited
    assert all(waited)


def test_what_raises_ahead_raises_when_it_is_called(study):
    (group,) = compile_groups(of(study, 14).cells)
    cache = execute.CompilationCache(lambda *_: None)
    made = cache._made(group)
    calls = []

    def wrong(*arguments):
        calls.append(arguments)
        raise ZeroDivisionError("told once")

    function = Compiled(wrong, (0,))
    made.draw = lambda setting: function
    cache.compile_ahead(group, 2)
    cache.close()
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError, match="told once"):
        function(jax.numpy.zeros(2))


def test_a_call_waits_for_what_compiles_it():
    function = Compiled(lambda x: x + 1, (0,))
    begun, go_on = threading.Event(), threading.Event()

    def submit(compile):
        def run():
            begun.set()
            go_on.wait(60)
            compile()

        pool = ahead.ThreadPoolExecutor(1)
        future = pool.submit(run)
        pool.shutdown(wait=False)
        return future

    function.compile_ahead(submit, jax.ShapeDtypeStruct((2,), jax.numpy.float32))
    assert begun.wait(60)
    threading.Timer(0.05, go_on.set).start()
    x = jax.numpy.ones(2)
    with compiling() as threads:
        found = function(x)
    assert go_on.is_set()
    assert found.tolist() == [2, 2]
    assert threading.main_thread().name not in threads
