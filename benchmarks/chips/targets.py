"""Specifications of chips that are not installed, and compilation of programs for these chips."""

import re
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from chips.count import Counted, Work, count
from jaxattn.core.errors import InputError
from jaxattn.lab.engine.memory import held_bytes


class Target(NamedTuple):
    """One or more identical chips for which programs are compiled.

    Attributes:
        name: the requested name.
        platform: "gpu" or "tpu".
        topology: number or arrangement of chips: "1x1x4" on a GPU, "v5e:2x2" on a TPU.
        memory: memory of one device in bytes.
        bandwidth: bytes per second between a device and its memory.
        flops: float32 operations per second of a device; on a TPU, the rate of matrix products at the highest
            precision, which take six passes in bfloat16.
        launch_s: minimum time to start an operation, in seconds.
        config: description of a GPU for XLA; "" for a TPU, because libtpu contains its description.
    """

    name: str
    platform: str
    topology: str
    memory: int
    bandwidth: float
    flops: float
    launch_s: float
    config: str = ""


class _Gpu(NamedTuple):
    memory: int
    bandwidth: float
    flops: float
    cores: int
    lanes: int
    clock_ghz: float
    l2: int
    shared_per_core: int
    major: int
    description: str


class _Tpu(NamedTuple):
    memory: int
    bandwidth: float
    bfloat16: float
    axes: int
    smallest: str


_GPUS = {
    "a100": _Gpu(85_899_345_920, 2.039e12, 19.5e12, 108, 64, 1.41, 41_943_040, 167_936, 8, "NVIDIA A100"),
    "h100": _Gpu(85_899_345_920, 3.35e12, 66.9e12, 132, 128, 1.98, 52_428_800, 233_472, 9, "NVIDIA H100"),
    "h200": _Gpu(150_110_011_392, 4.8e12, 66.9e12, 132, 128, 1.98, 52_428_800, 233_472, 9, "NVIDIA H200"),
}
# Specifications per device, as counted by libtpu: a v4 chip is two devices, and a v5p chip is one.
_TPUS = {
    "v4": _Tpu(16 * 2**30, 0.614e12, 137e12, 3, "2x2x1"),
    "v5e": _Tpu(16 * 2**30, 0.819e12, 197e12, 2, "1x1"),
    "v5p": _Tpu(95 * 2**30, 2.765e12, 459e12, 3, "2x2x1"),
    "v6e": _Tpu(32 * 2**30, 1.64e12, 918e12, 2, "1x1"),
}
_PASSES = 6
_LAUNCH_S = 2e-6


def read_target(name: str) -> Target:
    """Return the target with a given name.

    Args:
        name: a GPU and a number of devices, 1 by default ("h200", "a100:4"), or a TPU and a shape, the
            smallest by default ("v5e", "v5e:2x2", "v4:2x2x1").

    Raises:
        InputError: the chip or its shape is unknown; the message lists the known chips.
    """
    kind, _, shape = name.lower().partition(":")
    if kind in _GPUS and re.fullmatch(r"([1-9]\d?)?", shape):
        return _gpu(name, _GPUS[kind], shape or "1")
    if kind in _TPUS:
        chip = _TPUS[kind]
        shape = shape or chip.smallest
        if re.fullmatch(r"[1-9]\d?(x[1-9]\d?)*", shape) and shape.count("x") == chip.axes - 1:
            speeds = chip.memory, chip.bandwidth, chip.bfloat16 / _PASSES
            return Target(name, "tpu", f"{kind}:{shape}", *speeds, launch_s=0.0)
    raise InputError(
        f"target: {name!r} is unknown; use {', '.join(_GPUS)} with a number of devices (h200:4), or "
        f"{', '.join(_TPUS)} with a shape (v5e:2x2, v4:2x2x1)"
    )


def _gpu(name: str, chip: _Gpu, devices: str) -> Target:
    config = f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared_per_core}
  threads_per_core_limit: 2048
  core_count: {chip.cores}
  fpus_per_core: {chip.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {chip.bandwidth:.0f}
  l2_cache_size: {chip.l2}
  clock_rate_ghz: {chip.clock_ghz}
  device_memory_size: {chip.memory}
  shared_memory_per_block_optin: {chip.shared_per_core - 1024}
  cuda_compute_capability {{ major: {chip.major} minor: 0 }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{chip.description}"
"""
    speeds = chip.memory, chip.bandwidth, chip.flops, _LAUNCH_S
    return Target(name, "gpu", f"1x1x{devices}", *speeds, config)


# Compare-and-swap loop, which implements atomic float addition on chips without an instruction for it.
_COMPARE_AND_SWAP = re.compile(r"\batom\.[\w.:]*cas\b")


class Compiled(NamedTuple):
    """Result of compiling a program.

    Attributes:
        error: reason why the program does not compile, or "". After an error, only `seconds` is set.
        seconds: compile time.
        held: peak memory of a device in bytes.
        temporaries: the part of `held` that is neither arguments nor results.
        compare_and_swaps: number of compare-and-swap loops in the kernels of a GPU.
        counted: counts for the text of the compiled program.
    """

    error: str
    seconds: float
    held: int = 0
    temporaries: int = 0
    compare_and_swaps: int = 0
    counted: Counted = Counted(Work(), Work(), 0, 0, 0, 0, 0)


def compile_lowered(lowered: Any, target: Target, keep: Path | None = None) -> Compiled:
    """Compile a program for a chip.

    Args:
        lowered: the result of `jax.jit(f).lower(...)` with shapes on the chip's devices.
        target: the chip.
        keep: file to which the text of the compiled program is written.

    Returns:
        The compilation result. If the compiler rejects the program, `error` contains the reason.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # Only the compiled kernels show whether scatter-adds with repeated indices use atomics.
        options = {"xla_dump_to": folder} if target.platform == "gpu" else {}
        try:
            made = lowered.compile(compiler_options=options)
        except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
            return Compiled(str(error).strip().partition("\n")[0], time.monotonic() - begin)
        seconds = time.monotonic() - begin
        kernels = [path.read_text() for path in Path(folder).glob("*.ptx")]
    text = made.as_text()
    if keep is not None:
        keep.write_text(text, encoding="utf-8")
    return Compiled(
        error="",
        seconds=seconds,
        held=held_bytes(made),
        temporaries=made.memory_analysis().temp_size_in_bytes,
        compare_and_swaps=sum(len(_COMPARE_AND_SWAP.findall(kernel)) for kernel in kernels),
        counted=count(text),
    )


def seconds_at_least(work: Work, target: Target) -> float:
    """Return a lower bound on the time in seconds that a chip needs for the given work."""
    moving, computing = work.bytes / target.bandwidth, work.flops / target.flops
    return max(moving, computing, work.launches * target.launch_s)
