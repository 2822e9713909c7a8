"""What to compute where a condition holds, and what to divide by where a number may be zero."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def cond_under_vmap(condition: Array, compute: Callable[..., Any], otherwise: Any, *given: Any) -> Any:
    """Return `compute(otherwise, *given)` if a condition holds, else `otherwise`.

    Under vmap, `lax.cond` computes both branches; a loop of at most one step computes only if it has to.

    Args:
        condition: whether it is needed, ().
        compute: (otherwise, *given) -> a pytree like `otherwise`.
        otherwise: what is returned where it is not.
        given: all that it computes with. With what it only closes over XLA may compute before the loop,
            needed or not.
    """

    def once(state: tuple[Array, Any]) -> tuple[Array, Any]:
        # Of the loop's own flag nothing is known before the loop, nor then of what comes with it.
        _, inside = jax.lax.optimization_barrier((state[0], given))
        return jnp.asarray(False), compute(state[1], *inside)

    return jax.lax.while_loop(lambda state: state[0], once, (condition, otherwise))[1]


def nonzero(x: Array) -> Array:
    """Replace 0 by 1, to divide by."""
    return jnp.where(x == 0, 1, x)
