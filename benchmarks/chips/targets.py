"""Chips that are not here: their names, sizes and speeds, and compiling a program for one of them."""

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
    """Some chips of one kind, as a program sees them.

    Attributes:
        name: as it was asked for.
        platform: "gpu" or "tpu".
        topology: how many chips, or how they are wired: "1x1x4" on a GPU, "v5e:2x2" on a TPU.
        memory: bytes of one device.
        bandwidth: bytes a second between a device and its memory.
        flops: float32 operations a second of a device; on a TPU of products at the highest precision, which
            take six passes in bfloat16.
        launch_s: least seconds that an operation takes to start.
        config: how XLA describes a GPU; "" for a TPU, which libtpu knows.
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
# Of a device; a chip of v4 and v5p counts as one or two of them, as libtpu has it.
_TPUS = {
    "v4": _Tpu(16 * 2**30, 0.614e12, 137e12, 3, "2x2x1"),
    "v5e": _Tpu(16 * 2**30, 0.819e12, 197e12, 2, "1x1"),
    "v5p": _Tpu(95 * 2**30, 2.765e12, 459e12, 3, "2x2x1"),
    "v6e": _Tpu(32 * 2**30, 1.64e12, 918e12, 2, "1x1"),
}
_PASSES = 6
_LAUNCH_S = 2e-6


def read_target(name: str) -> Target:
    """Find a target by its name.

    Args:
        name: a GPU with the number of devices, 1 by default ("h200", "a100:4"); or a TPU with its shape, the
            smallest by default ("v5e", "v5e:2x2", "v4:2x2x1").

    Raises:
        InputError: no such chip, or a shape that it cannot have; with the known ones.
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
        f"target: {name!r}; known are {', '.join(_GPUS)} with a number of devices (h200:4), and "
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


# A loop that a float addition becomes where the chip has no instruction for it.
_COMPARE_AND_SWAP = re.compile(r"\batom\.[\w.:]*cas\b")


class Compiled(NamedTuple):
    """What came of a program.

    Attributes:
        error: why it does not compile; "" if it does, and nothing below counts otherwise.
        seconds: the compiler took.
        held: bytes that a device holds at once.
        temporaries: those of them that are neither arguments nor results.
        compare_and_swaps: loops around one in the kernels of a GPU.
        counted: what its text says.
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
        lowered: as `jax.jit(f).lower(...)` makes it of shapes on the chip's devices.
        target: the chip.
        keep: a file for the text of the compiled program.

    Returns:
        What the compiler says; a program that it refuses is a result too.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        # Only the kernels say how an addition to a place that others add to is done.
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
    """Bound the time of some work on a chip from below: by its memory, its arithmetic and its launches."""
    moving, computing = work.bytes / target.bandwidth, work.flops / target.flops
    return max(moving, computing, work.launches * target.launch_s)
