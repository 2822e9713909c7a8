"""Conditional computation under vmap, and safe divisors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def cond_under_vmap(condition: Array, compute: Callable[..., Any], otherwise: Any, *given: Any) -> Any:
    """Return `compute(otherwise, *given)` if a condition holds, else `otherwise`.

    Under vmap, `lax.cond` computes both branches. A loop of at most one iteration avoids this. Pass all
    arrays that `compute` uses as `given`, because XLA may compute with closed-over arrays before the
    loop.
    """

    def once(state: tuple[Array, Any]) -> tuple[Array, Any]:
        # The loop flag is unknown before the loop. The barrier makes `given` depend on the loop state.
        _, inside = jax.lax.optimization_barrier((state[0], given))
        return jnp.asarray(False), compute(state[1], *inside)

    return jax.lax.while_loop(lambda state: state[0], once, (condition, otherwise))[1]


def nonzero(x: Array) -> Array:
    """Replace 0 by 1, so that the result can be used as a divisor."""
    return jnp.where(x == 0, 1, x)
