"""How much memory a compile group will need, from two compiled probes instead of a rule of thumb."""

import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxattn import backend
from jaxattn.engine import devices
from jaxattn.engine.groups import CompileGroup
from jaxattn.engine.shapes import corpora, params, shaped
from jaxattn.errors import InputError
from jaxattn.study.setting import Setting

# What state and corpora grow to while a program works on them: gradients, moments, temporaries.
CERTAIN = 12
# Bytes of address space in which small studies were seen to compile; with three quarters some aborted.
ADDRESS_SPACE = 4 * 2**30


class Memory(NamedTuple):
    """What a device needs at its largest moment, in bytes: `base + lanes · per_lane`.

    Attributes:
        base: what does not depend on the lanes.
        per_lane: what every lane of the device adds.
        devices: how many devices share the lanes.
    """

    base: int
    per_lane: int
    devices: int

    def of(self, lanes: int) -> int:
        """Predict the memory of some lanes together; several devices share them."""
        return self.base + math.ceil(lanes / self.devices) * self.per_lane

    def fits(self, budget: int) -> int:
        """Tell how many lanes fit in so many bytes on every device."""
        each = (budget - self.base) // max(self.per_lane, 1)
        return max(0, each) * self.devices


def width(
    group: CompileGroup, seeds: int, budget: int, tell: Callable[[CompileGroup], None] = lambda group: None
) -> int:
    """Choose how many lanes of a group run together.

    Shapes are traced to find out only if sizes alone leave a doubt that all lanes fit, and programs are
    compiled only if shapes do.

    Args:
        group: cells that share a program.
        seeds: how many seeds of each are wanted.
        budget: bytes that may be used on every device.
        tell: called before programs are compiled, which takes seconds.

    Returns:
        The number of lanes; at most all of them.

    Raises:
        InputError: one lane alone does not fit, and how much it needs; or sizes that no array has.
    """
    lanes, used = len(group.cells) * seeds, devices.device_count(group.setting.data.shared)
    if CERTAIN * at_most(group.setting) * math.ceil(lanes / used) <= budget:
        return lanes
    try:
        # Traced for the lanes that run if all fit, corpora need not be traced again when they do.
        held, own = sizes(group, math.ceil(lanes / used) * used)
    except OverflowError as error:
        raise InputError(
            f"cell {group.cells[0].number}: its sizes are too large for programs ({error}); make them smaller"
        ) from None
    fitting = 0
    if (needed := held + own) <= budget:
        if held + CERTAIN * (own + largest(group)) * math.ceil(lanes / used) <= budget:
            return lanes
        tell(group)
        # The programs that run if all fit: compiled once, they are kept for the run.
        if peak(group, math.ceil(lanes / used) * used) <= budget:
            return lanes
        memory = predict(group)
        fitting, needed = memory.fits(budget), memory.of(1)
    if fitting == 0:
        raise InputError(
            f"cell {group.cells[0].number}: one seed needs {needed / 2**20:,.0f} MiB, but "
            f"{budget / 2**20:,.0f} MiB may be used; make it smaller (model.dim, the data), or raise "
            "--max-memory"
        )
    return min(fitting, lanes)


def predict(group: CompileGroup) -> Memory:
    """Predict the memory of a group: it is linear in the lanes that run together.

    Every phase is compiled, not run, for some lanes on every device and for twice as many, and XLA tells what
    the programs need. A few would not do: other buffers are shared then than with many.

    Args:
        group: cells that share a program.

    Returns:
        The prediction, of the phase that needs most.

    Raises:
        InputError: sizes that do not fit, texts that cannot be read.
    """
    used = devices.device_count(group.setting.data.shared)
    some = 4 * devices.lanes_per_core(sizes(group, used)[1])
    few, many = peak(group, used * some), peak(group, used * 2 * some)
    return Memory(max(0, 2 * few - many), max(many - few, 0) // some, used)


def peak(group: CompileGroup, lanes: int) -> int:
    """Compile every phase for some lanes and return what a device holds at once at most, in bytes.

    That is arguments, results and temporaries: parameters, optimiser, corpora, paths and gradients.
    """
    with backend.precision(group.setting.dtype):
        # Phases do their work when they begin or when they advance; after minibatches, measuring holds most.
        heavy = [made for made in shaped(group, lanes) if made.name in ("begin", "advance", "measure")]
        own = [made for made in heavy if not made.compiled.on_host]
        return max((held(made.compiled.lower(*made.arguments).compile()) for made in own), default=0)


def held(compiled: Any) -> int:
    """Tell how many bytes of a device a compiled program needs: arguments, results and temporaries."""
    found = compiled.memory_analysis()
    own = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return own + found.temp_size_in_bytes


def default_budget() -> int:
    """Bytes that may be used on a device: most of an accelerator's memory, a quarter of a computer's."""
    # A backend that knows its limit has memory of its own.
    if limit := (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"):
        return int(0.8 * limit)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
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


def at_most(setting: Setting) -> float:
    """Bound the bytes of parameters and corpora that a lane has for itself; infinite where nothing tells."""
    data, model = setting.data, setting.model
    if data.vocab_size is None:
        return math.inf
    numbers = model.numbers_at_most(data.vocab_size, data.num_classes)
    # Every token has statistics; an entry is three numbers of four bytes.
    numbers += 4 * data.vocab_size * (2 + data.num_classes)
    return float(jnp.dtype(setting.dtype).itemsize * numbers + 12 * data.entries_at_most())


def largest(group: CompileGroup) -> int:
    """Bytes of the largest array on the way from a lane's parameters to its outputs; nothing is compiled."""
    with backend.precision(group.setting.dtype):
        loaded = corpora(group, 1)
        own = _of_one(params(group, loaded, 1))
        splits = loaded.splits if loaded.shared else _of_one(loaded.splits)
        every = [each for each in (splits.train, splits.test, splits.validation) if each is not None]
        return max(_largest(jax.make_jaxpr(group.setting.model.outputs)(own, each).jaxpr) for each in every)


def _of_one(tree: Any) -> Any:
    """Take the axis of lanes from shapes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def _largest(jaxpr: Any) -> int:
    """Find the largest array of a jaxpr and of those that its operations hold."""
    most = 0
    for equation in jaxpr.eqns:
        most = max(most, *(_size(each.aval) for each in equation.outvars))
        within = jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns"))
        most = max([most, *(_largest(each) for each in within if hasattr(each, "eqns"))])
    return most


def sizes(group: CompileGroup, lanes: int) -> tuple[int, int]:
    """Bytes that all lanes share, and bytes of parameters and corpora that each has for itself."""
    with backend.precision(group.setting.dtype):
        loaded = corpora(group, lanes)
        own = _size(params(group, loaded, lanes)) // lanes
    return (_size(loaded.splits), own) if loaded.shared else (0, own + _size(loaded.splits) // lanes)


def _size(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
