"""Calling a function of NumPy for many items, one core for each."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


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


@cache
def _controller() -> ThreadpoolController:
    # SciPy's BLAS is another library than NumPy's, and is loaded when it is first needed.
    import scipy.linalg  # noqa: F401

    return ThreadpoolController()
