"""How long a compile group will take, from running a few lanes of it for a moment."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxattn import backend
from jaxattn.base import silent
from jaxattn.engine import devices
from jaxattn.engine.groups import CompileGroup
from jaxattn.engine.program import load, program, seed_keys, start

LANES = 4
TRIAL_S = 0.3


def estimate_runtime(group: CompileGroup, seeds: list[int], lanes: int, batches: int) -> float:
    """Estimate the time of a group.

    A few lanes run every phase: setting up, some steps, one probe. Steps are taken to be as long as those
    first ones, and time to grow with the lanes, which a wide device beats. Limits of phases and drawing of
    figures are not in it.

    Args:
        group: cells that share a program.
        seeds: seeds to try with.
        lanes: how many there are in all.
        batches: in how many batches they run.

    Returns:
        Seconds, with one compilation for every program.
    """
    setting = group.setting
    compiling, running = 0.0, 0.0
    with backend.precision(setting.dtype):
        some = devices.pad_to_devices([(group.cells[0], seed) for seed in seeds[:LANES]], setting.data.shared)
        keys, model_keys = seed_keys([seed for _, seed in some])
        numbers = group.hyperparameters([cell for cell, _ in some])
        loaded = load(setting, keys, silent, numbers)
        params = start(setting, loaded, model_keys, numbers)
        for index in range(len(setting.phases)):
            made = program(setting, index, loaded)
            steps = made.probe_steps[-1]
            first, again, state = _twice(partial(made.begin, params, loaded.splits, numbers, model_keys))
            compiling, running = compiling + first - again, running + again
            begin = time.perf_counter()
            state = jax.block_until_ready(made.advance(state, loaded.splits, numbers, jnp.int32(1)))
            compiling += time.perf_counter() - begin
            taken, spent = 0, 0.0
            while taken + 1 < steps and spent < TRIAL_S:
                block = min(max(1, taken), steps - 1 - taken)
                begin = time.perf_counter()
                state = jax.block_until_ready(made.advance(state, loaded.splits, numbers, jnp.int32(block)))
                spent, taken = spent + time.perf_counter() - begin, taken + block
            running += spent / taken * steps if taken else 0.0
            first, again, _ = _twice(partial(made.measure, state, loaded.splits, numbers))
            compiling, running = compiling + first - again, running + again * len(made.probe_steps)
            params = state.state.params
    # A last, narrower batch compiles once more.
    return compiling * (1 + (batches > 1)) + running * lanes / len(some)


def _twice(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """Time a function's first call, which compiles, and its second."""
    times, result = [], None
    for _ in range(2):
        begin = time.perf_counter()
        result = jax.block_until_ready(function())
        times.append(time.perf_counter() - begin)
    return times[0], times[1], result
