"""How much memory a group will need, from two compiled probes instead of a rule of thumb."""

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxattn.data.ragged import WIDTH
from jaxattn.errors import InputError
from jaxattn.study import corpora, devices
from jaxattn.study.config import ExactFlow, OneLayer, Sweep, Synthetic
from jaxattn.study.corpora import Loaded
from jaxattn.study.groups import Group
from jaxattn.study.program import init_params, program

# What state and corpora grow to while a program works on them: gradients, moments, temporaries.
CERTAIN = 12


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


def width(group: Group, seeds: int, budget: int) -> int:
    """Choose how many lanes of a group run together.

    Shapes are traced to find out only if sizes alone leave a doubt that all lanes fit, and programs are
    compiled only if shapes do.

    Args:
        group: cells that share a program.
        seeds: how many seeds of each are wanted.
        budget: bytes that may be used on every device.

    Returns:
        The number of lanes; at most all of them.

    Raises:
        InputError: one lane alone does not fit; says how much it needs.
    """
    lanes, used = len(group.cells) * seeds, devices.number(corpora.is_text(group.config.data))
    if CERTAIN * at_most(group.config) * math.ceil(lanes / used) <= budget:
        return lanes
    # Traced for the lanes that run if all fit, corpora need not be traced again when they do.
    held, own = _sizes(group, math.ceil(lanes / used) * used)
    if held + CERTAIN * own * math.ceil(lanes / used) <= budget:
        return lanes
    memory = predict(group)
    if (fitting := memory.fits(budget)) == 0:
        raise InputError(
            f"cell {group.cells[0].number}: one seed needs {memory.of(1) / 2**20:,.0f} MiB, but "
            f"{budget / 2**20:,.0f} MiB may be used; make it smaller (model.dim, the data), or raise "
            "--max-memory"
        )
    return min(fitting, lanes)


def predict(group: Group) -> Memory:
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
    used = devices.number(corpora.is_text(group.config.data))
    some = 4 * devices.together(_sizes(group, used)[1])
    few, many = peak(group, used * some), peak(group, used * 2 * some)
    return Memory(max(0, 2 * few - many), max(many - few, 0) // some, used)


def peak(group: Group, lanes: int) -> int:
    """Compile every phase for some lanes and return what a device holds at once at most, in bytes.

    That is arguments, results and temporaries: parameters, optimiser, corpora, paths and gradients.
    """
    sweep = group.config
    with jax.enable_x64(sweep.dtype == "float64"), jax.default_matmul_precision("highest"):
        loaded = abstract(group, lanes)
        params, numbers, keys = _params(group, loaded, lanes), _numbers(group, lanes), _keys(lanes)
        step = jax.ShapeDtypeStruct((), jnp.int32)
        peaks = []
        for index in range(len(sweep.phases)):
            made = program(sweep, index, loaded)
            state = jax.eval_shape(made.init, params, loaded.corpora, numbers, keys)
            # The exact flow is float64 in every study.
            with jax.enable_x64(isinstance(sweep.phases[index], ExactFlow) or sweep.dtype == "float64"):
                # It does its work when it is set up, descents when they advance.
                peaks.append(_bytes(made.init, params, loaded.corpora, numbers, keys))
                peaks.append(_bytes(made.advance, state, loaded.corpora, numbers, step))
            params = state.params
    return max(peaks)


def default_budget() -> int:
    """Bytes that may be used on a device: most of an accelerator's memory, a quarter of a computer's."""
    # A backend that knows its limit has memory of its own.
    if limit := (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"):
        return int(0.8 * limit)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    contained = Path("/sys/fs/cgroup/memory.max")
    allowed = contained.read_text().strip() if contained.is_file() else "max"
    return min(physical, int(allowed) if allowed.isdecimal() else physical) // 4


def abstract(group: Group, lanes: int) -> Loaded:
    """Shapes of the corpora of some lanes; texts are read."""
    if corpora.is_text(group.config.data):
        loaded = corpora.load(group.config.data, corpora.seed_keys([0])[0], _silent)
        shapes: Any = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), loaded.corpora)
        return Loaded(shapes, True, loaded.names)

    def draw(keys: Any, numbers: Any) -> Any:
        return corpora.load(group.config.data, keys, _silent, numbers).corpora

    return Loaded(jax.eval_shape(draw, _keys(lanes), _numbers(group, lanes)), False, [])


def at_most(sweep: Sweep) -> float:
    """Bound the bytes of parameters and corpora that a lane has for itself; infinite for texts."""
    data, dim = sweep.data, sweep.model.dim
    if not isinstance(data, Synthetic):
        return math.inf
    vocab, classes = data.vocab_size, getattr(data, "num_classes", 2)
    numbers = vocab * dim + (2 + classes) * (dim + 4 * vocab)
    if not isinstance(sweep.model, OneLayer):
        numbers += vocab**2 + (4 + classes) * dim**2
    # Entries by sequence and by token, in rows that need not be full; three numbers of four bytes each.
    sequences, width = data.sequences + data.test_sequences + data.validation_sequences, WIDTH
    entries = sequences * (2 * data.length + (width if data.length > width else 1)) + 3 * vocab * width
    return float(jnp.dtype(sweep.dtype).itemsize * numbers + 12 * entries)


def _sizes(group: Group, lanes: int) -> tuple[int, int]:
    """Bytes that all lanes share, and bytes of parameters and corpora that each has for itself."""
    with jax.enable_x64(group.config.dtype == "float64"):
        loaded = abstract(group, lanes)
        own = _size(_params(group, loaded, lanes)) // lanes
    return (_size(loaded.corpora), own) if loaded.shared else (0, own + _size(loaded.corpora) // lanes)


def _params(group: Group, loaded: Loaded, lanes: int) -> Any:
    return jax.eval_shape(
        lambda keys, numbers: init_params(group.config, loaded, keys, numbers),
        _keys(lanes),
        _numbers(group, lanes),
    )


def _keys(lanes: int) -> Any:
    return jax.eval_shape(lambda: corpora.seed_keys(list(range(lanes)))[0])


def _numbers(group: Group, lanes: int) -> Any:
    return jax.eval_shape(lambda: group.numbers([group.cells[0]] * lanes))


def _size(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _bytes(function: Any, *arguments: Any) -> int:
    found: Any = jax.jit(function).lower(*arguments).compile().memory_analysis()
    held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return held + found.temp_size_in_bytes


def _silent(description: str, done: int, total: int | None) -> None:
    pass
