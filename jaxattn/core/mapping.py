"""Maps over many items, in a compiled loop over equal chunks or on threads, and a sum of outer products."""

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


def map_in_equal_parts(function: Callable[[Any], Any], items: Any, maximum: int) -> Any:
    """Map a function over the leading axis of a pytree, vmapping at most `maximum` items at a time.

    Args:
        function: pure function of one item.
        items: pytree of arrays (S, ...).
        maximum: maximum number of items to vmap together, at least 1.

    Returns:
        Pytree of arrays (S, ...).
    """
    size = jax.tree.leaves(items)[0].shape[0]
    parts = math.ceil(size / maximum)
    each = math.ceil(size / parts)
    # Process some items twice to fill the last chunk: a smaller chunk would require a second compilation.
    again = parts * each - size
    if again:
        items = jax.tree.map(lambda x: jnp.concatenate([x, x[-again:]]), items)
    found = jax.lax.map(function, items, batch_size=each if each > 1 else None)
    return jax.tree.map(lambda x: x[:size], found) if again else found


def map_on_cores(function: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
    """Map a function over items using threads, and return the results in order.

    Threads suffice because NumPy and SciPy release Python's global interpreter lock. Each call uses a
    single BLAS thread: more threads do not speed up products of small matrices, and on a busy machine can
    slow them down a hundredfold.

    Args:
        function: function of one item from each iterable. It must not run JAX programs, because concurrent
            JAX programs may deadlock on a CPU.
        items: iterables of equal length.
    """
    with _controller().limit(limits=1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, *items))


def sum_of_outer_products(left: Float[Array, "n k"], right: Float[Array, "n m"]) -> Float[Array, "k m"]:
    """Compute Σ_i left_i right_iᵀ = leftᵀ right."""
    columns = left.T
    # On a CPU, XLA's matrix product is two to three times faster for an explicitly transposed copy.
    return (jax.lax.optimization_barrier(columns) if backend.platform() == "cpu" else columns) @ right


@cache
def _controller() -> ThreadpoolController:
    # SciPy loads its own BLAS library when scipy.linalg is first imported.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()
