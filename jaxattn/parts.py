"""Mapping a function over many items, some at a time, as one compiled loop."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


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
