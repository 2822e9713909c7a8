"""Measuring a case on the devices that are here."""

import hashlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from jaxattn.bench.cases import Case
from jaxattn.core import backend
from jaxattn.core.errors import RunError
from jaxattn.data.encodings import first_line
from jaxattn.engine import devices, memory
from jaxattn.engine.groups import compile_groups
from jaxattn.engine.lift import ProgramCache, seed_keys
from jaxattn.storage import origin

# A copy of so many bytes tells how fast memory is, on any machine that jaxattn runs on.
_COPIED = 2**28


class Measured(msgspec.Struct, frozen=True):
    """What a case took.

    Attributes:
        case: its name.
        seeds: seeds side by side.
        first_s: seconds of the first pass, compilation included.
        step_us: microseconds of a step of one seed, median over passes; of a whole path for exact flows.
        passes: how many passes the median is of.
        same_bits: whether all passes gave the same bits.
        planned_mib: memory that `plan` predicts for a device.
        peak_mib: most memory that a device has used so far, cases before included; None where it does not
            tell.
    """

    case: str
    seeds: int
    first_s: float
    step_us: float
    passes: int
    same_bits: bool
    planned_mib: float
    peak_mib: float | None


class Machine(msgspec.Struct, frozen=True):
    """What it was measured on.

    Attributes:
        device: the kind of its devices.
        platform: "cpu", "gpu" or "tpu".
        devices: how many there are; cores, on a CPU.
        copied_gb_s: 10^9 bytes that one device reads and writes a second, copying a large array.
        python: version of Python.
        jax: version of JAX.
        made_by: version, commit and hash of jaxattn.
    """

    device: str
    platform: str
    devices: int
    copied_gb_s: float
    python: str
    jax: str
    made_by: dict[str, str | None]


def machine() -> Machine:
    """Describe the devices that are here."""
    local = jax.local_devices()
    return Machine(
        device=local[0].device_kind if local[0].platform != "cpu" else platform.machine(),
        platform=local[0].platform,
        devices=len(local),
        copied_gb_s=bandwidth() / 1e9,
        python=platform.python_version(),
        jax=jax.__version__,
        made_by=origin.installed(),
    )


def bandwidth(repeats: int = 5) -> float:
    """Measure how fast one device copies a large array, bytes read and written a second."""
    copied = jax.jit(lambda x: x + 1)
    x = jax.block_until_ready(copied(jnp.zeros(_COPIED // 4, jnp.float32)))
    return 2 * _COPIED / min(_timed(lambda: copied(x))[0] for _ in range(repeats))


def measure(case: Case, seeds: int, repeats: int) -> Measured:
    """Measure a case.

    Args:
        case: the case.
        seeds: seeds side by side.
        repeats: passes after the first, at least 1.

    Returns:
        What it took.

    Raises:
        RunError: it does not fit in memory.
    """
    try:
        with backend.precision(case.study.dtype):
            return _measure(case, seeds, repeats)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        raise RunError(f"{case.name}, {seeds} seeds: {first_line(error)}") from None


def _measure(case: Case, seeds: int, repeats: int) -> Measured:
    (group,) = compile_groups(case.study.cells)
    shared = group.setting.data.shared
    lanes = devices.pad_to_devices([(group.cells[0], seed) for seed in range(seeds)], shared)
    data_keys, keys = seed_keys([seed for _, seed in lanes])
    numbers = group.hyperparameters([cell for cell, _ in lanes])
    programs = ProgramCache().of(group)
    loaded = programs.draw(data_keys, numbers)
    params = programs.start(loaded, keys, numbers)
    made = programs.phase(0, loaded)
    steps = made.probe_steps[-1]

    def once() -> Any:
        carried = made.begin(params, loaded.splits, numbers, keys)
        return made.advance(carried, loaded.splits, numbers, jnp.int32(steps)).state.params

    (first_s, bits), *passes = [_timed(once) for _ in range(1 + repeats)]
    return Measured(
        case=case.name,
        seeds=seeds,
        first_s=first_s,
        step_us=1e6 * statistics.median(seconds for seconds, _ in passes) / case.steps / seeds,
        passes=repeats,
        same_bits=all(again == bits for _, again in passes),
        planned_mib=memory.peak(group, programs, len(lanes)) / 2**20,
        peak_mib=_peak(),
    )


def _timed(function: Callable[[], Any]) -> tuple[float, list[str]]:
    """Time a call until its result is ready; seconds, and hashes of the bits of its arrays."""
    begin = time.perf_counter()
    found = jax.block_until_ready(function())
    took = time.perf_counter() - begin
    return took, [hashlib.sha256(np.asarray(x).tobytes()).hexdigest() for x in jax.tree.leaves(found)]


def _peak() -> float | None:
    every = [device.memory_stats() for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in every if stats and "peak_bytes_in_use" in stats]
    return max(peaks) / 2**20 if peaks else None
