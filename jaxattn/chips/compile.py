"""Compiling one program for a chip, and what the compiler says of it."""

import re
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxattn.chips.count import Counted, Work, count
from jaxattn.chips.targets import Target

# A loop that a float addition becomes where the chip has no instruction for it.
_COMPARE_AND_SWAP = re.compile(r"\batom\.[\w.:]*cas\b")


class Compiled(NamedTuple):
    """What came of a program.

    Attributes:
        error: why it does not compile; "" if it does, and nothing below counts otherwise.
        seconds: the compiler took.
        arguments, results, aliased, temporaries: bytes on every device; aliased results take the place of
            arguments.
        compare_and_swaps: loops around one in the kernels of a GPU.
        counted: what its text says.
    """

    error: str
    seconds: float
    arguments: int = 0
    results: int = 0
    aliased: int = 0
    temporaries: int = 0
    compare_and_swaps: int = 0
    counted: Counted = Counted(Work(), Work(), 0, 0, 0, 0, 0)

    @property
    def held(self) -> int:
        """Bytes that a device holds at once."""
        return self.arguments + self.results - self.aliased + self.temporaries


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
    text, memory = made.as_text(), made.memory_analysis()
    if keep is not None:
        keep.write_text(text, encoding="utf-8")
    return Compiled(
        error="",
        seconds=seconds,
        arguments=memory.argument_size_in_bytes,
        results=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        compare_and_swaps=sum(len(_COMPARE_AND_SWAP.findall(kernel)) for kernel in kernels),
        counted=count(text),
    )


def seconds_at_least(work: Work, target: Target) -> float:
    """Bound the time of some work on a chip from below: by its memory, its arithmetic and its launches."""
    moving, computing = work.bytes / target.bandwidth, work.flops / target.flops
    return max(moving, computing, work.launches * target.launch_s)
