"""Work over many items: some at a time as one compiled loop, one on each core, or as one product."""

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float
from threadpoolctl import ThreadpoolController

from jaxattn.core import backend


def map_in_equal_parts(function: Callable[[Any], Any], items: Any, most: int) -> Any:
    """Map a function over the leading axis of a pytree, at most so many items at a time.

    All parts have one size, for which the last items may be computed twice: a smaller part at the end, as
    `jax.lax.map` makes of a remainder, is the same function traced and compiled a second time.

    Args:
        function: pure function of one item.
        items: pytree of arrays (S, ...).
        most: items that are vmapped at a time, at least 1.

    Returns:
        pytree of arrays (S, ...).
    """
    size = jax.tree.leaves(items)[0].shape[0]
    parts = math.ceil(size / most)
    each = math.ceil(size / parts)
    again = parts * each - size
    if again:
        items = jax.tree.map(lambda x: jnp.concatenate([x, x[-again:]]), items)
    found = jax.lax.map(function, items, batch_size=each if each > 1 else None)
    return jax.tree.map(lambda x: x[:size], found) if again else found


def map_one_by_one(function: Callable[[Any], Any], items: Any) -> Any:
    """Map a function over the leading axis of a pytree, one after the other on each core.

    Inside jit; on an accelerator all at once.

    Args:
        function: pure function of one item, small enough for a core's cache.
        items: pytree of arrays (S, ...); as many cores work as S can be divided by.

    Returns:
        pytree of arrays (S, ...).
    """
    if backend.platform() != "cpu":
        return jax.vmap(function)(items)
    devices, size = backend.local_devices(), jax.tree.leaves(items)[0].shape[0]
    used = max(k for k in range(1, len(devices) + 1) if size % k == 0)
    # Batches of LAPACK's routines on several devices at once would wait for each other for ever.
    each = partial(jax.lax.map, function)
    if used == 1:
        return each(items)
    mesh, lanes = backend.mesh_of(tuple(devices[:used])), PartitionSpec("lanes")
    return jax.shard_map(each, mesh=mesh, in_specs=lanes, out_specs=lanes, check_vma=False)(items)


def map_on_cores(function: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
    """Map a function over items on threads, in order.

    NumPy and SciPy compute without Python's lock. Meanwhile BLAS has one thread, for small matrices are not
    worth two: these wait for each other, on a busy machine a hundred times as long as they compute.

    Args:
        function: called with one of each. It must not run programs of JAX: on a CPU two at once may wait for
            each other for ever.
        items: iterables of one length.

    Returns:
        What it returned.
    """
    with _controller().limit(limits=1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, *items))


def sum_of_outer_products(left: Float[Array, "n k"], right: Float[Array, "n m"]) -> Float[Array, "k m"]:
    """Compute Σ_i left_i right_iᵀ = leftᵀ right.

    XLA's product along the rows of both takes two to three times as long on a CPU as one with a copy.
    """
    columns = left.T
    return (jax.lax.optimization_barrier(columns) if backend.platform() == "cpu" else columns) @ right


@cache
def _controller() -> ThreadpoolController:
    # SciPy's BLAS is another library than NumPy's, and is loaded when it is first needed.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()
