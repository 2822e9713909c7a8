"""Loops: maps over many items, compiled or on threads, and a condition that is a loop under vmap."""

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from threadpoolctl import ThreadpoolController


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


@cache
def _controller() -> ThreadpoolController:
    # SciPy loads its own BLAS library when scipy.linalg is first imported.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()


def cond_under_vmap(condition: Array, compute: Callable[..., Any], otherwise: Any, *given: Any) -> Any:
    """Return `compute(otherwise, *given)` if a condition holds, else `otherwise`.

    Under vmap, `lax.cond` computes both branches. A loop of at most one iteration avoids this. `given` must
    contain all arrays that `compute` uses, because XLA may process arrays from a closure before the loop.
    """

    def once(state: tuple[Array, Any]) -> tuple[Array, Any]:
        # The barrier makes `given` depend on the loop state, which is unknown before the loop, so that XLA
        # cannot move computations with `given` out of the loop.
        _, inside = jax.lax.optimization_barrier((state[0], given))
        return jnp.asarray(False), compute(state[1], *inside)

    return jax.lax.while_loop(lambda state: state[0], once, (condition, otherwise))[1]
