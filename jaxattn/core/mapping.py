"""Work over many items: some at a time as one compiled loop, one on each core, or as one product."""

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
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
