"""How many lanes fit in memory, from compiled programs instead of a rule of thumb."""

import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.lab.engine import devices
from jaxattn.lab.engine.groups import CompileGroup
from jaxattn.lab.engine.lift import Programs
from jaxattn.lab.storage import files

# Gradients, moments, averages of every sequence and temporaries, in parameters and corpora: more than any
# model here was seen to need. What outgrows it runs out of memory, and goes on in halves.
AMPLE = 100
# Bytes of address space in which small studies were seen to compile; with three quarters some aborted.
ADDRESS_SPACE = 4 * 2**30


def width(
    group: CompileGroup,
    programs: Programs,
    lanes: int,
    budget: int,
    note: Callable[[CompileGroup], None] = lambda group: None,
) -> int:
    """Choose how many lanes of a group run together.

    Programs are compiled to find out only where shapes of parameters and corpora leave a doubt.

    Args:
        group: cells that share programs.
        programs: these.
        lanes: how many are wanted.
        budget: bytes that may be used on every device.
        note: called before programs are compiled, which takes seconds.

    Returns:
        The number of lanes; at most those that are wanted.

    Raises:
        InputError: one lane alone does not fit, and how much it needs; or sizes that no array has.
    """
    used = devices.device_count(group.setting.data.shared)
    each = math.ceil(lanes / used)
    try:
        held, own = sizes(group, programs, each * used)
    except OverflowError as error:
        raise InputError(
            f"cell {group.cells[0].number}: its sizes are too large for programs ({error}); make them smaller"
        ) from None
    if held + AMPLE * own * each <= budget:
        return lanes
    each, needed = min(each, (budget - held) // max(own, 1)), float(held + own)
    if each > 0:
        note(group)
        each, needed = fit(lambda n: peak(group, programs, n * used), each, budget)
    if each < 1:
        raise InputError(
            f"cell {group.cells[0].number}: one seed needs {needed / 2**20:,.0f} MiB, but "
            f"{budget / 2**20:,.0f} MiB may be used; make it smaller (model.dim, the data), or raise "
            "--max-memory"
        )
    return min(each * used, lanes)


def fit(peak: Callable[[int], int | float], most: int, budget: int | float) -> tuple[int, float]:
    """Find how many lanes a device holds: memory is a line in the lanes, through two compiled programs.

    Args:
        peak: compiles for a number of lanes and returns the bytes that they need; infinite if it cannot.
        most: lanes to begin with; they are halved until they fit, and the line through the last two tells
            how many more do.
        budget: bytes of the device.

    Returns:
        The number of lanes, 0 if none fits; and the bytes that the last program needs.
    """
    lanes, needed = most, float(peak(most))
    more, needed_by_more = 0, 0.0
    while needed > budget and lanes > 1:
        more, needed_by_more = lanes, needed
        lanes //= 2
        needed = float(peak(lanes))
    if needed > budget:
        return 0, needed
    per_lane = (needed_by_more - needed) / (more - lanes) if more else 0.0
    return lanes + (math.floor((budget - needed) / per_lane) if per_lane > 0 else 0), needed


def peak(group: CompileGroup, programs: Programs, lanes: int) -> int:
    """Compile every phase for some lanes and return what a device holds at once at most, in bytes.

    That is arguments, results and temporaries: parameters, optimiser, corpora, paths and gradients.
    """
    with backend.precision(group.setting.dtype):
        # Phases do their work when they begin or when they advance; after minibatches, measuring holds most.
        heavy = [x for x in programs.shaped(group, lanes) if x.name in ("begin", "advance", "measure")]
        own = [x for x in heavy if not x.lifted.on_host]
        return max((held_bytes(x.lifted.lower(*x.arguments).compile()) for x in own), default=0)


def held_bytes(compiled: Any) -> int:
    """Return the bytes of a device that a compiled program needs: arguments, results and temporaries."""
    found = compiled.memory_analysis()
    own = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return int(own + found.temp_size_in_bytes)


def default_budget() -> int:
    """Bytes that may be used on a device: most of an accelerator's memory, a quarter of a computer's."""
    # A backend that knows its limit has memory of its own.
    if limit := (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"):
        return int(0.8 * limit)
    physical = files.memory()
    return min([physical, address_space() or physical, *_of_control_groups()]) // 4


def address_space() -> int | None:
    """Bytes of address space that this process may have (`ulimit -v`), None if there is no limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def check_address_space(note: Callable[[str], None]) -> None:
    """Say that address space is short before XLA finds out, which ends the process whatever catches it.

    Raises:
        InputError: no program can be compiled in so little.
    """
    if (limit := address_space()) is None or limit >= ADDRESS_SPACE:
        return
    words = f"address space is limited to {limit / 2**30:.1f} GiB (ulimit -v)"
    remedy = f"allow {ADDRESS_SPACE / 2**30:.0f} GiB or more"
    if limit < ADDRESS_SPACE // 2:
        raise InputError(f"{words}, too little to compile programs; {remedy}")
    note(f"{words}: if programs need more, XLA ends the process without a message; {remedy}")


def _of_control_groups(
    root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")
) -> list[int]:
    """Limits of the control groups that this process is in, of containers and of batch systems."""
    own = process.read_text().partition("0::")[2].partition("\n")[0] if process.is_file() else ""
    group = root / own.strip("/")
    folders = [folder for folder in (group, *group.parents) if folder.is_relative_to(root)]
    texts = [path.read_text().strip() for folder in folders if (path := folder / "memory.max").is_file()]
    return [int(text) for text in texts if text.isdecimal()]


def sizes(group: CompileGroup, programs: Programs, lanes: int) -> tuple[int, int]:
    """Bytes that all lanes share, and bytes of parameters and corpora that each has for itself."""
    with backend.precision(group.setting.dtype):
        loaded = programs.corpora(group, lanes)
        own = devices.size_of(programs.params(group, lanes)) // lanes
    corpora = devices.size_of(loaded.splits)
    return (corpora, own) if loaded.shared else (0, own + corpora // lanes)
