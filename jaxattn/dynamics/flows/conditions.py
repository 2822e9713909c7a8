"""Conditional computation under vmap, and safe divisors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


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


def nonzero(x: Array) -> Array:
    """Replace 0 by 1, so that the result can be used as a divisor."""
    return jnp.where(x == 0, 1, x)
