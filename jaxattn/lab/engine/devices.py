"""Distribute vmapped runs over devices; each run is one (cell, seed) pair.

On an accelerator, all runs on a device are vmapped together. On a CPU, each core counts as a device and
computes as many runs at a time as fit in its cache. Runs that share a large corpus always form one batch,
because they are computed jointly, as products with the count matrix.
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
from jaxattn.core.loops import map_in_equal_parts

# Size in bytes of one core's first-level cache. If the data of vmapped runs exceed it, the runs take up to
# twice as long as in sequence. Otherwise, vmapping is faster, because every operation has an overhead.
CACHE = 2**15
# Value of `per_core` for which each core vmaps all of its runs.
EVERY = sys.maxsize


def use_all_cores(count: int | None = None) -> None:
    """Make each CPU core a separate device, or `count` of them, unless the number of devices is already set.

    This must be called before JAX initialises its devices; later calls have no effect.
    """
    is_set = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    with suppress(RuntimeError):
        if not is_set:
            jax.config.update("jax_num_cpu_devices", count or os.cpu_count() or 1)


def use_one_gpu(number: int) -> None:
    """Make the GPU with this number the only one that this process sees, if the machine has GPUs.

    This must be called before JAX initialises its devices.
    """
    for platform in ("cuda", "rocm"):
        jax.config.update(f"jax_{platform}_visible_devices", str(number))


def describe_devices() -> dict[str, Any]:
    """Return the platform, kind and number of devices.

    The number of devices affects the last digits of results.
    """
    device = backend.local_devices()[0]
    return {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()}


def known_bug(platform: str, jaxlib: str = "") -> str:
    """Return a one-line warning about known JAX bugs on a platform, or "" if there are none.

    Args:
        platform: "cpu", "gpu" or "tpu".
        jaxlib: version of jaxlib; if empty, the installed version.

    Source:
        jax#36958 (wrong results), jax#38806 and xla#46225 (slow scatter-adds), jax#40101 (slow writes).
    """
    version = jaxlib or metadata.version("jaxlib")
    number = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if platform == "cpu" and number == (0, 11, 1):
        slow = "loops that write a few bytes of an array copy the whole array"
        return f"jaxlib {version} on a CPU: {slow}; use another version of jax"
    if platform != "gpu" or number >= (0, 11, 1):
        return ""
    found = "scans under vmap, which every study uses, may compute wrong numbers"
    if number >= (0, 10, 2):
        found += ", and float32 scatter-adds in custom code are up to 2,000 times slower"
    return f"jaxlib {version} on a GPU: {found}; use Python 3.12 or later and jax 0.11.2 or later"


def vmap_over_devices(
    function: Callable[..., Any],
    in_axes: Sequence[int | None],
    shared: bool,
    per_core: int | None,
) -> Callable[..., Any]:
    """Turn a function for one run into a function for many runs, vmapped and sharded over the local devices.

    Args:
        function: pure function for one run.
        in_axes: for each argument, 0 if it has a leading axis of runs, None if all runs share it.
        shared: True if the vmapped runs share a corpus.
        per_core: number of runs to vmap on each CPU core, or `EVERY` for all runs. None means as many runs as
            fit in the cache, or all runs if they share a corpus.

    Returns:
        The vmapped function. It requires a number of runs that `pad_to_devices` leaves unchanged.
    """
    every = jax.vmap(function, in_axes=tuple(in_axes))

    def few_at_a_time(*arguments: Any) -> Any:
        # Decide this during tracing, because one study may compile programs for both the accelerator and the
        # host.
        if (shared and per_core is None) or backend.platform() != "cpu":
            return every(*arguments)
        own = _own(arguments, in_axes)
        runs = jax.tree.leaves(own)[0].shape[0]
        few = per_core or max(1, CACHE // max(size_of(own) // runs, 1))
        if few >= runs:
            return every(*arguments)

        def one(run: tuple[Any, ...]) -> Any:
            each = iter(run)
            return function(
                *(x if axis is None else next(each) for x, axis in zip(arguments, in_axes, strict=True))
            )

        return map_in_equal_parts(one, own, few)

    return _shard(few_at_a_time, in_axes, shared)


def _shard(function: Callable[..., Any], in_axes: Sequence[int | None], shared: bool) -> Callable[..., Any]:
    specs = tuple(P() if axis is None else P("runs") for axis in in_axes)

    def call(*arguments: Any) -> Any:
        runs = jax.tree.leaves(_own(arguments, in_axes))[0].shape[0]
        if (mesh := _mesh(runs, shared)) is None:
            return function(*arguments)
        # Each device runs its own loops, which differ in length. Nothing is reduced over runs, so replication
        # need not be tracked. With tracking, gradients of inner parameters would be summed over runs.
        every = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("runs"), check_vma=False)
        return every(*arguments)

    return call


class BatchedFunction:
    """Compiled function that applies a function for one run to many runs on all devices.

    If the devices do not support float64, a float64 function runs on the host, and its arguments are moved
    there.
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
        """Lift a function; see `vmap_over_devices` for the arguments and `jax.jit` for the options.

        `dtype="float64"` compiles in float64 regardless of the session's precision. `view` is applied to the
        first argument before it is passed to the function.
        """
        self._jitted = jax.jit(vmap_over_devices(function, in_axes, shared, per_core), **options)
        self._in_axes, self._shared, self._view = tuple(in_axes), shared, view
        self._double = dtype == "float64"

    def __call__(self, first: Any, *others: Any) -> Any:
        """Compute the results for all runs."""
        with self.precision():
            arguments = _round((self._view(first), *others))
            if backend.has_host():
                arguments = moved(arguments, self._in_axes, self._shared)
            return self._jitted(*arguments)

    def shapes(self, first: Any, *others: Any) -> Any:
        """Return the shapes of the results for the given arguments, which may themselves be shapes."""
        with self.precision():
            return jax.eval_shape(self, *_round((first, *others)))

    def lower(self, first: Any, *others: Any) -> Any:
        """Lower the function for arrays or their shapes, like the `lower` method of a `jax.jit` function."""
        with self.precision():
            return self._jitted.lower(*_round((self._view(first), *others)))

    @property
    def on_host(self) -> bool:
        """Return True if the function runs on the host because the devices do not support float64."""
        return self._double and backend.platform() in backend.WITHOUT_FLOAT64

    def precision(self) -> Any:
        """Return a context manager that sets the function's precision and devices."""
        return backend.float64() if self._double else nullcontext()


def _round(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Round arrays of the host, or their shapes, to the precision of the current program.

    Numeric settings are float64 arrays of the host, so that programs in float64 get them unrounded.
    """

    is_double = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

    def rounded(x: Any) -> Any:
        if is_double or getattr(x, "dtype", None) != np.float64:
            return x
        return (
            x.update(dtype=np.float32) if isinstance(x, jax.ShapeDtypeStruct) else np.asarray(x, np.float32)
        )

    return jax.tree.map(rounded, arguments)


def pad_to_devices(runs: Sequence[Any], shared: bool) -> list[Any]:
    """Repeat the last run until all devices in use have the same number of vmapped runs."""
    used, each = _shape(len(runs), shared)
    return [*runs, *[runs[-1]] * (used * each - len(runs))]


def chosen_runs(tree: Any, lanes: Sequence[int], padded: int) -> Any:
    """Return some of the runs of a tree of arrays with a leading axis of runs, padded for the current
    devices.

    Args:
        tree: the arrays.
        lanes: positions of the runs in the arrays.
        padded: number of runs with padding, which repeats the last run.
    """
    run = np.asarray(lanes)[np.minimum(np.arange(padded), len(lanes) - 1)]

    def choose(x: Any) -> Any:
        return x if len(x) == padded and np.array_equal(run, np.arange(padded)) else np.asarray(x)[run]

    return jax.tree.map(choose, tree)


def put(tree: Any, shared: bool) -> Any:
    """Transfer arrays with a leading axis of vmapped runs to the devices on which these runs are computed."""
    if backend.has_host():
        return tree  # Programs transfer their arguments themselves.
    mesh = _mesh(jax.tree.leaves(tree)[0].shape[0], shared)
    with jax.enable_x64(True):  # Preserve float64 arrays.
        return jax.device_put(tree, None if mesh is None else NamedSharding(mesh, P("runs")))


def moved(arguments: Sequence[Any], in_axes: Sequence[int | None], shared: bool) -> tuple[Any, ...]:
    """Transfer the arguments of a vmapped function to the devices for which it is compiled."""
    runs = jax.tree.leaves(_own(arguments, in_axes))[0].shape[0]
    shardings = [_place(runs, axis, shared) for axis in in_axes]
    with jax.enable_x64(True):  # Preserve float64 arrays.
        return tuple(jax.device_put(x, to) for x, to in zip(arguments, shardings, strict=True))


def shape_structs(tree: Any, runs: int, in_axis: int | None, shared: bool, computed: bool = False) -> Any:
    """Convert an argument, given as arrays or shapes, to `jax.ShapeDtypeStruct`s for compilation.

    `in_axis` is 0 if the argument has a leading axis of runs, None if all runs share it. `shared` is True if
    the runs share a corpus. `computed` is True if the argument is the output of another program and therefore
    already on the devices that compute the runs. Shardings are included if they are known before the call,
    and always when compiling for a chip that is not present.
    """
    sharding = None
    if backend.are_described() or backend.has_host() or (computed and _mesh(runs, shared) is not None):
        sharding = _place(runs, in_axis, shared)

    def shape(x: Any) -> Any:
        weak = getattr(x, "weak_type", False)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=weak)

    return jax.tree.map(shape, tree)


def device_count(shared: bool) -> int:
    """Return the number of devices for vmapped runs.

    A CPU counts as one device if the runs share a corpus.
    """
    return 1 if shared and backend.platform() == "cpu" else len(backend.local_devices())


def _shape(runs: int, shared: bool) -> tuple[int, int]:
    each = math.ceil(runs / device_count(shared))
    return math.ceil(runs / each), each


def _mesh(runs: int, shared: bool) -> Mesh | None:
    used, each = _shape(runs, shared)
    if used * each != runs and backend.is_host():
        # The number of runs was padded for the accelerator. On the host, use the largest number of devices
        # that divides the number of runs.
        used = max(k for k in range(1, used + 1) if runs % k == 0)
    elif used * each != runs:
        raise ValueError(
            f"{runs} runs cannot be divided evenly among {used} devices; pad them with pad_to_devices"
        )
    return None if used == 1 else backend.mesh_of(tuple(backend.local_devices()[:used]))


def _place(runs: int, in_axis: int | None, shared: bool) -> Any:
    if (mesh := _mesh(runs, shared)) is None:
        return SingleDeviceSharding(backend.local_devices()[0])
    return NamedSharding(mesh, P() if in_axis is None else P("runs"))


def _own(arguments: Sequence[Any], in_axes: Sequence[int | None]) -> tuple[Any, ...]:
    return tuple(x for x, axis in zip(arguments, in_axes, strict=True) if axis is not None)


def size_of(tree: Any) -> int:
    """Return the total size in bytes of a tree of arrays or shapes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
