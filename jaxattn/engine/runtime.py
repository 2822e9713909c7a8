"""How long a group will take, from running a few lanes of it for a moment."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxattn.study import corpora, devices
from jaxattn.study.groups import Group
from jaxattn.study.program import init_params, program

LANES = 4
TRIAL_S = 0.3


def seconds(group: Group, seeds: list[int], lanes: int, units: int) -> float:
    """Estimate the time of a group.

    A few lanes run every phase: setting up, some steps, one probe. Steps are taken to be as long as those
    first ones, and time to grow with the lanes, which a wide device beats. Limits of phases and drawing of
    figures are not in it.

    Args:
        group: cells that share a program.
        seeds: seeds to try with.
        lanes: how many there are in all.
        units: in how many units they run.

    Returns:
        Seconds, with one compilation for every program.
    """
    sweep = group.config
    compiling, running = 0.0, 0.0
    with jax.enable_x64(sweep.dtype == "float64"), jax.default_matmul_precision("highest"):
        shared = corpora.is_text(sweep.data)
        some = devices.fill([(group.cells[0], seed) for seed in seeds[:LANES]], shared)
        keys, model_keys = corpora.seed_keys([seed for _, seed in some])
        numbers = group.numbers([cell for cell, _ in some])
        loaded = corpora.load(sweep.data, keys, lambda *_: None, numbers)
        params = init_params(sweep, loaded, model_keys, numbers)
        for index in range(len(sweep.phases)):
            made = program(sweep, index, loaded)
            first, again, state = _twice(partial(made.init, params, loaded.corpora, numbers, model_keys))
            compiling, running = compiling + first - again, running + again
            begin = time.perf_counter()
            state = jax.block_until_ready(made.advance(state, loaded.corpora, numbers, jnp.int32(1)))
            compiling += time.perf_counter() - begin
            taken, spent = 0, 0.0
            while taken + 1 < made.steps and spent < TRIAL_S:
                block = min(max(1, taken), made.steps - 1 - taken)
                begin = time.perf_counter()
                state = jax.block_until_ready(made.advance(state, loaded.corpora, numbers, jnp.int32(block)))
                spent, taken = spent + time.perf_counter() - begin, taken + block
            running += spent / taken * made.steps if taken else 0.0
            first, again, _ = _twice(partial(made.measure, state, loaded.corpora))
            compiling, running = compiling + first - again, running + again * len(made.probe_steps)
            params = state.params
    # A last, narrower unit compiles once more.
    return compiling * (1 + (units > 1)) + running * lanes / len(some)


def _twice(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """Time a function's first call, which compiles, and its second."""
    times, result = [], None
    for _ in range(2):
        begin = time.perf_counter()
        result = jax.block_until_ready(function())
        times.append(time.perf_counter() - begin)
    return times[0], times[1], result
