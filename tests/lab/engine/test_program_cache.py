"""Cached programs are those of the settings and files, and discarded programs are freed."""

import gc
import weakref

import jax
import numpy as np
import pytest

from jaxattn.lab.engine import program_cache
from jaxattn.lab.engine.programs import Programs
from jaxattn.lab.study.groups import compile_groups


def test_programs_are_cached_except_for_custom_code(study):
    def made(name="small", **changes):
        return program_cache.programs(study(name, **changes).base)

    first = made()
    assert made() is first
    assert made(name="small", seeds=7) is first
    others = [made(dtype="float64"), made(probes={"min_count": 2}), made("flow")]
    assert all(other is not first for other in others)
    model = {"kind": "one_layer", "dim": 16}
    scaled = [made(model=model | {"init": {"p": {"kind": "scaled", "scale": x}}}) for x in (0.5, 2.0, 0.5)]
    assert scaled[0] is scaled[1] is scaled[2]
    assert made(model=model | {"init": {"p": {"kind": "scaled", "scale": 0.0}}}) is not scaled[0]
    assert made("own") is not made("own")


def test_programs_have_the_settings_of_the_standard_probes(study):
    """These are constants of a program, and no arguments, so each value has a program of its own."""
    values = {"important": 0.2, "low": -0.5, "high": 0.5, "min_count": 3, "bins": 4, "tokens": False}
    made = [
        program_cache.programs(study(probes=probes).base)
        for probes in ({}, *({k: x} for k, x in values.items()))
    ]
    assert len({id(each) for each in made}) == len(made)


def arguments(programs):
    return jax.random.split(jax.random.key(0), 1), {}


def test_programs_that_were_only_traced_are_discarded_without_collecting_garbage(monkeypatch, study):
    """Plans trace the programs of many groups, and a collection takes longer than tracing."""
    monkeypatch.setattr(program_cache, "_KNOWN", {})
    monkeypatch.setattr(program_cache, "MAX_KNOWN", 1)
    monkeypatch.setattr(program_cache.gc, "collect", None)
    cache, groups = program_cache.ProgramCache(), compile_groups(study(axes={"model.dim": [2, 3, 4]}).cells)
    for group in groups:
        cache.of(group).params(group, 2)


@pytest.mark.more
def test_programs_discarded_from_the_cache_are_freed(monkeypatch, study):
    """Every program maps memory, and a process may have a limited number of mappings."""
    monkeypatch.setattr(program_cache, "_KNOWN", {})
    monkeypatch.setattr(program_cache, "MAX_KNOWN", 2)
    gc.disable()
    try:
        settings = [study(model={"kind": "one_layer", "dim": dim}).base for dim in (2, 3, 4)]
        first = program_cache.programs(settings[0])
        first.start(first.draw(*arguments(first)), *arguments(first))
        forgotten = weakref.ref(first)
        del first
        program_cache.programs(settings[1])
        assert forgotten() is program_cache.programs(settings[0])
        program_cache.programs(settings[2])
        assert forgotten() is None
    finally:
        gc.enable()


def test_programs_are_those_of_the_contents_of_files(monkeypatch, study, tmp_path):
    """A program contains the array of a file that a setting names."""
    monkeypatch.setattr(program_cache, "_KNOWN", {})
    path = tmp_path / "p.npy"
    model = {"kind": "one_layer", "dim": 3, "init": {"p": {"file": str(path)}}}
    made = []
    for value in (1.0, 2.0, 1.0):
        np.save(path, np.full(3, value, np.float32))
        (group,) = compile_groups(study(model=model).cells)
        made.append(program_cache.programs(group.setting))
        # The shapes of the data are enough to start.
        params = made[-1].start(made[-1].corpora(group, 1), *arguments(made[-1]))
        np.testing.assert_array_equal(params.p[0], np.full(3, value))
    assert made[0] is made[2]
    assert made[0] is not made[1]


def test_programs_of_a_group_are_freed_when_the_next_group_starts(monkeypatch, study):
    """Programs with custom code are not in the cache of known programs."""
    monkeypatch.setattr(program_cache, "programs", Programs)
    gc.disable()
    try:
        data = {"kind": "mine.py:pairs", "vocab_size": 10, "sequences": 12}
        cells = study(data=data, axes={"model.dim": [2, 3]}).cells
        cache, groups = program_cache.ProgramCache(), compile_groups(cells)
        first = cache.of(groups[0])
        first.start(first.draw(*arguments(first)), *arguments(first))
        forgotten = weakref.ref(first)
        del first
        cache.of(groups[1])
        assert forgotten() is None
    finally:
        gc.enable()
