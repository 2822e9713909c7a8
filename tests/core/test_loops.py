"""Tests of maps over many items, compared with loops."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap
from threadpoolctl import threadpool_info

from jaxattn.core.loops import cond_under_vmap, map_in_equal_parts, map_on_cores


@pytest.mark.parametrize(("size", "most"), [(8, 3), (7, 7), (5, 1), (6, 4), (3, 2), (9, 8)])
def test_map_in_equal_parts_matches_a_loop_and_traces_once(rng, size, most):
    together = []

    @custom_vmap
    def double(x):
        return 2 * x

    @double.def_vmap
    def rule(size, _, x):
        together.append(size)
        return 2 * x, True

    numbers = rng.integers(0, 100, (size, 2))
    keys = jax.random.split(jax.random.key(0), size)
    doubled, drawn = jax.jit(
        lambda *items: map_in_equal_parts(
            lambda item: (double(item[0]), jax.random.bits(item[1])), items, most
        )
    )(numbers, keys)
    np.testing.assert_array_equal(doubled, 2 * numbers)
    np.testing.assert_array_equal(drawn, [jax.random.bits(key) for key in keys])
    assert len(together) == (most > 1)
    assert all(each <= most for each in together)


def test_map_on_cores_preserves_the_order_of_items():
    assert map_on_cores(lambda x, y: x - y, range(50), range(50, 100)) == [-50] * 50
    assert map_on_cores(str, []) == []


def test_map_on_cores_runs_two_items_concurrently(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    # Two threads must reach the barrier at the same time.
    meeting = threading.Barrier(2, timeout=600)
    assert sorted(map_on_cores(lambda _: meeting.wait(), range(2))) == [0, 1]


def test_map_on_cores_limits_blas_to_one_thread_and_restores_the_limit():
    def threads(_=None):
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    np.linalg.svd(np.eye(2))
    before = threads()
    assert {one for found in map_on_cores(threads, range(4)) for one in found} == {1}
    assert threads()[: len(before)] == before


def test_map_on_cores_propagates_exceptions():
    with pytest.raises(ZeroDivisionError):
        map_on_cores(lambda x: 1 / x, [1, 0])


def trace_of_power(_, x):
    return jnp.trace(x @ x @ x)


def loops_around(text, operation):
    """Return the smallest number of loops that contain an operation of a compiled program."""
    computations, name = {}, None
    for line in text.splitlines():
        if begun := re.match(r"(ENTRY )?%?([\w.-]+) .*{$", line):
            name = "entry" if begun[1] else begun[2]
            computations[name] = []
        elif name:
            computations[name].append(line)

    def depths(name, depth):
        for line in computations[name]:
            if f" {operation}(" in line:
                yield depth
            for kind, called in re.findall(r"(body|condition|calls|to_apply)=%?([\w.-]+)", line):
                yield from depths(called, depth + (kind == "body"))

    return min(depths("entry", 0))


def test_unneeded_work_is_not_hoisted_out_of_the_loop():
    x = jnp.broadcast_to(jnp.eye(60) / 2, (2, 60, 60))

    def loops(ask):
        runs = jax.jit(jax.vmap(lambda x, needed: ask(needed, trace_of_power, jnp.zeros(()), x)))
        return loops_around(runs.lower(x, jnp.zeros(2, bool)).compile().as_text(), "dot")

    assert loops(cond_under_vmap) == 1
    assert loops(lambda needed, compute, old, x: jnp.where(needed, compute(old, x), old)) == 0


def test_vmapped_conditions_are_independent():
    x, needed = jnp.arange(4.0), jnp.array([True, False, True, False])
    found = jax.vmap(lambda x, needed: cond_under_vmap(needed, lambda old, x: old + 10 * x, x, x))(x, needed)
    assert found.tolist() == [0.0, 1.0, 22.0, 3.0]
