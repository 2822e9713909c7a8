"""A dynamics as an (init, step) pair of pure functions, what it carries, and the loop over its steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import struct
from jax import Array

from jaxattn.core.pytrees import Leaf


@struct.dataclass
class Info:
    """What one step reports: the loss and gradient norm before the step, both scalars."""

    loss: Leaf
    gradient_norm: Leaf


class Algorithm(NamedTuple):
    """A dynamics: `init(params) -> state` and `step(state, corpus) -> (state, Info)`, both pure.

    A state has `params`, `step` and `failed_at`, as `State` does. Where batches are drawn at random,
    `init(params, key)` takes a PRNG key too; an early-stopped descent takes two corpora, and has
    `advance(state, corpora, steps) -> state` for many steps at once.
    """

    init: Callable[..., Any]
    step: Callable[[Any, Any], tuple[Any, Info]]
    advance: Callable[[Any, Any, int | Array], Any] | None = None


def loop(algorithm: Algorithm, state: Any, data: Any, steps: int | Array) -> Any:
    """Take a number of steps inside a program, see `run`."""
    if algorithm.advance is not None:
        return algorithm.advance(state, data, steps)
    return jax.lax.fori_loop(0, steps, lambda _, s: algorithm.step(s, data)[0], state)


_compiled = jax.jit(loop, static_argnames="algorithm")


def run(algorithm: Algorithm, state: Any, data: Any, steps: int | Array) -> Any:
    """Take a number of steps in one loop, which is compiled once for an algorithm and any number of steps.

    Args:
        algorithm: a descent, say; the same object in every call, as another one is compiled anew.
        state: where to start.
        data: what the algorithm's step takes.
        steps: how many; may be traced.

    Returns:
        The state after the steps; one call with k + l steps equals two with k and l.
    """
    return _compiled(algorithm, state, data, steps)
