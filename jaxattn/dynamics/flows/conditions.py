"""What to compute where a condition holds, and what to divide by where a number may be zero."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def when(condition: Array, compute: Callable[[Any], Any], otherwise: Any) -> Any:
    """Compute something where it is needed: a loop, since vmap would compute both sides of a condition."""

    def once(state: tuple[Array, Any]) -> tuple[Array, Any]:
        return jnp.asarray(False), compute(state[1])

    return jax.lax.while_loop(lambda state: state[0], once, (condition, otherwise))[1]


def positive(x: Array) -> Array:
    """Replace 0 by 1, to divide by."""
    return jnp.where(x == 0, 1, x)
