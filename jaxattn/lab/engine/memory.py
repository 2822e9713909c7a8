"""Number of vmapped runs that fit in memory, determined from the compiled programs."""

import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.programs import Programs
from jaxattn.lab.storage import files
from jaxattn.lab.study.groups import CompileGroup

# Upper bound on memory use, as a multiple of the size of parameters and data. It covers gradients, moments,
# per-sequence averages and temporary arrays. The built-in models need less. If a batch needs more, it runs
# out of memory and is split in half.
AMPLE = 100
# Address space in bytes that is enough to compile small studies. With three quarters of this size, some
# compilations aborted.
ADDRESS_SPACE = 4 * 2**30


def fitting_width(
    group: CompileGroup,
    programs: Programs,
    runs: int,
    budget: int,
    note: Callable[[CompileGroup], None] = lambda group: None,
) -> int:
    """Return how many of a group's runs to vmap together, at most `runs`.

    If the sizes of the parameters and data alone do not determine this number, call `note` and compile the
    programs. `budget` is the memory limit in bytes per device.

    Raises:
        InputError: a single run does not fit in memory, or the arrays are too large to compile.
    """
    used = devices.device_count(group.setting.data.shared)
    each = math.ceil(runs / used)
    try:
        common, own = program_sizes(group, programs, each * used)
    except OverflowError as error:
        raise InputError(
            f"cell {group.cells[0].number}: compilation failed because the arrays are too large ({error}); "
            "reduce "
            "model.dim, or use fewer sequences"
        ) from None
    if common + AMPLE * own * each <= budget:
        return runs
    each, needed = min(each, (budget - common) // max(own, 1)), float(common + own)
    if each > 0:
        note(group)
        each, needed = fit(lambda n: peak(group, programs, n * used), each, budget)
    if each < 1:
        raise InputError(
            f"cell {group.cells[0].number}: one seed needs {needed / 2**20:,.0f} MiB, but the "
            f"limit is {budget / 2**20:,.0f} MiB; reduce model.dim, use less data, or raise --max-memory"
        )
    return min(each * used, runs)


def fit(peak: Callable[[int], int | float], maximum: int, budget: int | float) -> tuple[int, float]:
    """Return how many vmapped runs fit on a device (0 if none), and the memory of the last program tried.

    `peak` compiles for a number of runs and returns the memory in bytes, or infinity if compilation fails.
    The search starts at `maximum` runs, halves the number until the runs fit, and then interpolates between
    the last two results.
    """
    runs, needed = maximum, float(peak(maximum))
    more, needed_by_more = 0, 0.0
    while needed > budget and runs > 1:
        more, needed_by_more = runs, needed
        runs //= 2
        needed = float(peak(runs))
    if needed > budget:
        return 0, needed
    per_lane = (needed_by_more - needed) / (more - runs) if more else 0.0
    return runs + (math.floor((budget - needed) / per_lane) if per_lane > 0 else 0), needed


def peak(group: CompileGroup, programs: Programs, runs: int) -> int:
    """Compile each phase for `runs` vmapped runs, and return the peak memory per device in bytes."""
    programs.compiled = True
    with backend.precision(group.setting.dtype):
        # Programs that can need the most memory in a phase. In minibatch training, `measure` needs the most,
        # because it uses all data.
        heavy = [x for x in programs.phase_programs(group, runs) if x.name in ("begin", "advance", "measure")]
        own = [x for x in heavy if not x.function.on_host]
        return max((held_bytes(x.function.lower(*x.arguments).compile()) for x in own), default=0)


def held_bytes(compiled: Any) -> int:
    """Return the device memory in bytes that a compiled program needs.

    This includes arguments, results and temporary arrays.
    """
    found = compiled.memory_analysis()
    own = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return int(own + found.temp_size_in_bytes)


def default_budget() -> int:
    """Return the default memory limit in bytes: 80 % of accelerator memory, or a quarter of host memory."""
    # Only backends with separate device memory report a limit.
    if limit := (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"):
        return int(0.8 * limit)
    physical = files.memory()
    return min([physical, address_space() or physical, *_of_control_groups()]) // 4


def address_space() -> int | None:
    """Return this process's address space limit in bytes (`ulimit -v`), or None if there is no limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(note: Callable[[str], None]) -> None:
    """Warn if the address space limit is low, because XLA may then end the process without an exception.

    Raises:
        InputError: the limit is too low to compile any program.
    """
    if (limit := address_space()) is None or limit >= ADDRESS_SPACE:
        return
    words = f"address space is limited to {limit / 2**30:.1f} GiB (ulimit -v)"
    remedy = f"allow {ADDRESS_SPACE / 2**30:.0f} GiB or more"
    if limit < ADDRESS_SPACE // 2:
        raise InputError(f"{words}, which is not enough to compile programs; {remedy}")
    note(f"{words}: if programs need more, XLA ends the process without a message; {remedy}")


def _of_control_groups(
    root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")
) -> list[int]:
    """Return the memory limits of this process's control groups, as set by containers and batch systems."""
    own = process.read_text().partition("0::")[2].partition("\n")[0] if process.is_file() else ""
    group = root / own.strip("/")
    folders = [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    texts = [path.read_text().strip() for folder in folders if (path := folder / "memory.max").is_file()]
    return [int(text) for text in texts if text.isdecimal()]


def program_sizes(group: CompileGroup, programs: Programs, runs: int) -> tuple[int, int]:
    """Return the size in bytes of the data shared by all runs, and of the parameters and data of each run."""
    with backend.precision(group.setting.dtype):
        loaded = programs.corpora(group, runs)
        own = devices.size_of(programs.params(group, runs)) // runs
    corpora = devices.size_of(loaded.splits)
    return (corpora, own) if loaded.shared else (0, own + corpora // runs)
