"""Early stopping of a descent: pure functions of a step, a held-out loss and a state.

The loss is checked after every `every` steps and at the end. After `patience` consecutive checks without a
new best loss, the descent ends with its best parameters.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.custom_batching import custom_vmap

from jaxattn.base import State
from jaxattn.base.model import Params


@no_type_check
@struct.dataclass
class EarlyStop:
    """State of early stopping, which is the field `early_stop` of a `State`.

    Attributes:
        best: the parameters with the smallest held-out loss so far.
        best_loss: () float; the smallest held-out loss so far.
        waited: () int32; number of checks since `best_loss` was reached.
        evaluations: () int32; number of gradients computed before the early stop.
    """

    best: Params
    best_loss: Array
    waited: Array
    evaluations: Array


class Stopping(NamedTuple):
    """Descent with early stopping.

    Attributes:
        move: function (state -> state) that takes one step.
        held_out_loss: function (params -> ()) whose value is monitored.
        steps: length of the phase, which always ends with the best parameters.
        every: number of steps between checks of the held-out loss.
        patience: number of consecutive checks without a new best loss after which the descent stops.
    """

    move: Callable[[State], State]
    held_out_loss: Callable[[Any], Array]
    steps: int
    every: int
    patience: int


def begin(state: State) -> State:
    """Return the state at the start, given the state of the descent."""
    leaves = jax.tree.leaves(state.params)
    dtype = next(x.dtype for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))
    none = jnp.zeros((), jnp.int32)
    return replace(state, early_stop=EarlyStop(state.params, jnp.full((), jnp.inf, dtype), none, none))


def step(stopping: Stopping, state: State) -> State:
    """Return the state after one step. If vmapped, the held-out loss is evaluated in every step."""
    moved = _move(stopping, state)
    return jax.lax.cond(_is_due(stopping, moved), lambda: _check(stopping, moved), lambda: moved)


def advance(stopping: Stopping, state: State, number: int | Array) -> State:
    """Return the state after a number of steps; the held-out loss is evaluated only between blocks of steps.

    Steps after the early stop have no effect except on `state.step`.
    """
    steps, every = stopping.steps, stopping.every

    def block(carried: tuple[Array, State]) -> tuple[Array, State]:
        left, state = carried
        until_end = jnp.where(state.step < steps, steps - state.step, every)
        until_check = jnp.minimum(every - state.step % every, until_end)
        taken = jnp.minimum(left, _of_members(until_check))
        state = jax.lax.fori_loop(0, taken, lambda _, here: _move(stopping, here), state)
        return left - taken, _check(stopping, state)

    start = jnp.asarray(number, jnp.int32), state
    return jax.lax.while_loop(lambda carried: carried[0] > 0, block, start)[1]


def _move(stopping: Stopping, state: State) -> State:
    moved, stops = stopping.move(state), state.early_stop
    stopped = stops.waited >= stopping.patience
    kept = _where(stopped, replace(state, early_stop=None), replace(moved, early_stop=None))
    return replace(kept, step=moved.step, early_stop=replace(stops, evaluations=stops.evaluations + ~stopped))


def _is_due(stopping: Stopping, state: State) -> Array:
    ends = (state.step % stopping.every == 0) | (state.step == stopping.steps)
    return ends & (state.early_stop.waited < stopping.patience)


def _check(stopping: Stopping, state: State) -> State:
    due, params, stops = _is_due(stopping, state), state.params, state.early_stop
    found = stopping.held_out_loss(params).astype(stops.best_loss.dtype)
    better = due & (found < stops.best_loss)
    best = _where(better, params, stops.best)
    waited = jnp.where(better, 0, stops.waited + due)
    ends = due & ((waited >= stopping.patience) | (state.step == stopping.steps))
    best_loss = jnp.where(better, found, stops.best_loss)
    return replace(
        state,
        params=_where(ends, best, params),
        early_stop=replace(stops, best=best, best_loss=best_loss, waited=waited),
    )


def _where(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


@custom_vmap
def _of_members(number: Any) -> Any:
    """Return the minimum of `number` over a vmapped axis, so that a loop with this bound is not batched."""
    return number


@_of_members.def_vmap
def _of_all_members(size: int, batched: list[bool], number: Any) -> tuple[Any, bool]:
    return _of_members(number.min(axis=0) if batched[0] else number), False
