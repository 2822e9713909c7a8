"""Lanes over devices: each device works on its own ones.

On an accelerator the lanes of a device are vmapped. On a CPU every core counts as a device, and takes as few
lanes at a time as its cache holds: a lane's arrays then stay there for many steps. Lanes that share a large
corpus are one batch in either case, since they share its products with counts.
"""

import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from jaxattn.core import backend
from jaxattn.core.mapping import map_in_equal_parts

# Bytes of a core's first cache. Several lanes that outgrow it together take up to twice as long as one after
# the other; below it, a lane alone is over before the overhead of its operations.
CACHE = 2**15
# All lanes of a core at a time.
EVERY = sys.maxsize


def use_all_cores() -> None:
    """Let every core of a CPU count as a device, unless told how many; too late once JAX works."""
    told = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    with suppress(RuntimeError):
        if not told:
            jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)


def here() -> dict[str, Any]:
    """Describe the devices of this process: how lanes are divided among them decides last digits."""
    device = jax.devices()[0]
    return {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()}


def trouble(platform: str, jaxlib: str = "") -> str:
    """Describe what is known to go wrong on a platform.

    Args:
        platform: "cpu", "gpu" or "tpu".
        jaxlib: the version of jaxlib; the installed one if empty.

    Returns:
        One line, empty if nothing is known.

    Source:
        jax#36958 (wrong numbers), jax#38806 and xla#46225 (scatter-adds).
    """
    version = jaxlib or metadata.version("jaxlib")
    number = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if platform != "gpu" or number >= (0, 11, 1):
        return ""
    found = "scans under vmap, of which every study consists, are suspected of wrong numbers"
    if number >= (0, 10, 2):
        found += ", and float32 scatter-adds are up to 2,000 times slower (those of your own code)"
    return f"jaxlib {version} on a GPU: {found}; use Python 3.12 or later and jax 0.11.1 or later"


def vmap_over_devices(
    function: Callable[..., Any],
    in_axes: Sequence[int | None],
    shared: bool,
    per_core: int | None,
) -> Callable[..., Any]:
    """Lift a function of one lane to lanes on a leading axis, sharded over the local devices.

    Args:
        function: pure function of one lane.
        in_axes: for every argument 0 if each lane has its own, None if all lanes share it.
        shared: whether lanes share a corpus.
        per_core: how many lanes a core of a CPU takes at a time, such as `EVERY`; as many as its cache holds
            if None, all of them if they share a corpus.

    Returns:
        The function of all lanes; their number is one that `pad_to_devices` leaves as it is.
    """
    every = jax.vmap(function, in_axes=tuple(in_axes))

    def few_at_a_time(*arguments: Any) -> Any:
        # Asked when it is traced: where float64 needs the host, one study has programs for both.
        if (shared and per_core is None) or backend.platform() != "cpu":
            return every(*arguments)
        own = _own(arguments, in_axes)
        lanes = jax.tree.leaves(own)[0].shape[0]
        few = per_core or max(1, CACHE // max(size_of(own) // lanes, 1))
        if few >= lanes:
            return every(*arguments)

        def one(lane: tuple[Any, ...]) -> Any:
            each = iter(lane)
            return function(
                *(x if axis is None else next(each) for x, axis in zip(arguments, in_axes, strict=True))
            )

        return map_in_equal_parts(one, own, few)

    return _shard(few_at_a_time, in_axes, shared)


def _shard(function: Callable[..., Any], in_axes: Sequence[int | None], shared: bool) -> Callable[..., Any]:
    """Shard the lanes of a function that takes many at once over the local devices."""
    specs = tuple(P() if axis is None else P("lanes") for axis in in_axes)

    def call(*arguments: Any) -> Any:
        lanes = jax.tree.leaves(_own(arguments, in_axes))[0].shape[0]
        if (mesh := _mesh(lanes, shared)) is None:
            return function(*arguments)
        # Every device runs its own loops to its own ends. Nothing is reduced over lanes, so nothing need be
        # tracked as replicated; tracking would sum gradients of parameters made inside over lanes.
        every = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("lanes"), check_vma=False)
        return every(*arguments)

    return call


class Lifted:
    """A function of one lane as one of many lanes over the devices, compiled for what it is called with.

    Where float64 needs the host, what it is called with is moved to where it runs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        in_axes: Sequence[int | None],
        shared: bool = False,
        per_core: int | None = None,
        dtype: str | None = None,
        view: Callable[[Any], Any] = lambda first: first,
        **options: Any,
    ) -> None:
        """Wrap a function.

        Args:
            function: pure function of one lane, of pytrees of arrays.
            in_axes: for every argument 0 if each lane has its own, None if all lanes share it.
            shared: whether lanes share a corpus.
            per_core: how many lanes a core of a CPU takes at a time; see `vmap_over_devices`.
            dtype: with "float64" it is compiled in float64 whatever the session's setting.
            view: the part of its first argument that it is given.
            options: those of `jax.jit`.
        """
        self._jitted = jax.jit(vmap_over_devices(function, in_axes, shared, per_core), **options)
        self._in_axes, self._shared, self._view = tuple(in_axes), shared, view
        self._double = dtype == "float64"

    def __call__(self, first: Any, *others: Any) -> Any:
        """Call it."""
        with self.precision():
            arguments = self._view(first), *others
            if backend.has_host():
                arguments = moved(arguments, self._in_axes, self._shared)
            return self._jitted(*arguments)

    def shapes(self, first: Any, *others: Any) -> Any:
        """Return the shapes of what it returns, given those of its arguments."""
        return jax.eval_shape(self, first, *others)

    def lower(self, first: Any, *others: Any) -> Any:
        """Lower it for arguments or their shapes, as `jax.jit` does."""
        with self.precision():
            return self._jitted.lower(self._view(first), *others)

    @property
    def on_host(self) -> bool:
        """Whether it runs on the host, as the devices lack float64."""
        return self._double and backend.platform() in backend.WITHOUT_FLOAT64

    def precision(self) -> Any:
        """Make the precision, and choose the devices, that it is compiled for."""
        return backend.float64() if self._double else nullcontext()


def pad_to_devices(lanes: Sequence[Any], shared: bool) -> list[Any]:
    """Repeat the last lane until every device that is used has as many."""
    used, each = _shape(len(lanes), shared)
    return [*lanes, *[lanes[-1]] * (used * each - len(lanes))]


def padded_anew(tree: Any, lanes: int, padded: int) -> Any:
    """Repeat the last of some lanes as often as these devices want, whatever others wanted.

    Args:
        tree: arrays with a leading axis of lanes, those that others were padded with too.
        lanes: how many are no repetitions.
        padded: how many `pad_to_devices` makes of them here.
    """
    lane = np.minimum(np.arange(padded), lanes - 1)
    return jax.tree.map(lambda x: x if len(x) == padded else np.asarray(x)[lane], tree)


def put(tree: Any, shared: bool) -> Any:
    """Put arrays with a leading lane axis where their lanes run."""
    if backend.has_host():
        return tree  # a program moves what it is called with
    mesh = _mesh(jax.tree.leaves(tree)[0].shape[0], shared)
    with jax.enable_x64(True):  # what is in float64 stays so
        return jax.device_put(tree, None if mesh is None else NamedSharding(mesh, P("lanes")))


def moved(arguments: Sequence[Any], in_axes: Sequence[int | None], shared: bool) -> tuple[Any, ...]:
    """Move the arguments of a lifted function to the devices that it is made for."""
    lanes = jax.tree.leaves(_own(arguments, in_axes))[0].shape[0]
    places = [_place(lanes, axis, shared) for axis in in_axes]
    with jax.enable_x64(True):  # what is in float64 stays so
        return tuple(jax.device_put(x, to) for x, to in zip(arguments, places, strict=True))


def shapes(tree: Any, lanes: int, in_axis: int | None, shared: bool, computed: bool = False) -> Any:
    """Make shapes of an argument that a program can be compiled for.

    Args:
        tree: arrays or their shapes.
        lanes: how many lanes the program has.
        in_axis: 0 if each lane has its own, None if all lanes share it.
        shared: whether lanes share a corpus.
        computed: whether another program computed it, on the devices of its lanes.

    Returns:
        Shapes, with what arrays are known to lie on when the program is called. Those for a described chip
        name its devices, as nothing else tells whom a program is for.
    """
    sharding = None
    if backend.are_described() or backend.has_host() or (computed and _mesh(lanes, shared) is not None):
        sharding = _place(lanes, in_axis, shared)

    def shape(x: Any) -> Any:
        weak = getattr(x, "weak_type", False)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=weak)

    return jax.tree.map(shape, tree)


def device_count(shared: bool) -> int:
    """Count the devices that lanes are sharded over; a CPU is one for lanes that share a corpus."""
    return 1 if shared and backend.platform() == "cpu" else len(backend.local_devices())


def _shape(lanes: int, shared: bool) -> tuple[int, int]:
    """How many devices are used, and how many lanes each of them has."""
    each = math.ceil(lanes / device_count(shared))
    return math.ceil(lanes / each), each


def _mesh(lanes: int, shared: bool) -> Mesh | None:
    used, each = _shape(lanes, shared)
    if used * each != lanes and backend.is_host():
        # Lanes are padded for the chips; the host takes them as they are.
        used = max(k for k in range(1, used + 1) if lanes % k == 0)
    elif used * each != lanes:
        raise ValueError(f"{lanes} lanes are not what pad_to_devices makes for {used} devices")
    return None if used == 1 else backend.mesh_of(tuple(backend.local_devices()[:used]))


def _place(lanes: int, in_axis: int | None, shared: bool) -> Any:
    """Say where an argument of a program of some lanes lies."""
    if (mesh := _mesh(lanes, shared)) is None:
        return SingleDeviceSharding(backend.local_devices()[0])
    return NamedSharding(mesh, P() if in_axis is None else P("lanes"))


def _own(arguments: Sequence[Any], in_axes: Sequence[int | None]) -> tuple[Any, ...]:
    return tuple(x for x, axis in zip(arguments, in_axes, strict=True) if axis is not None)


def size_of(tree: Any) -> int:
    """Count the bytes of arrays, or of their shapes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
