"""Early stopping: a descent that ends where a held-out corpus is fitted best."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.custom_batching import custom_vmap

from jaxattn import losses
from jaxattn.base import Dataset, State
from jaxattn.core.pytrees import Leaf
from jaxattn.dynamics.descents.algorithm import Algorithm, Info
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer
from jaxattn.models.gradients import Outputs, loss


@struct.dataclass
class EarlyStopped:
    """A descent's state and what the held-out corpus has said of it.

    Attributes:
        inner: the state of the descent.
        best: the parameters with the smallest held-out loss so far.
        best_loss: () float; that loss.
        waited: () int32; checks since then.
    """

    inner: State
    best: Leaf
    best_loss: Leaf
    waited: Leaf

    @property
    def params(self) -> Any:
        """The parameters: where the descent is, or the best ones once it has stopped."""
        return self.inner.params

    @property
    def step(self) -> Array:
        """Steps taken or sat out."""
        return self.inner.step

    @property
    def failed_at(self) -> Array:
        """The first step that was not finite, -1 if none."""
        return self.inner.failed_at


def early_stop(
    algorithm: Algorithm,
    *,
    steps: int,
    every: int,
    patience: int,
    outputs: Outputs = one_layer.outputs,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Algorithm:
    """Let a descent stop when the loss on a held-out corpus no longer falls.

    Args:
        algorithm: the descent.
        steps: length of the phase; at its end the best parameters are taken in any case.
        every: steps between checks of the held-out loss.
        patience: checks without a new best after which it stops and goes back to the best parameters.
        outputs: the model.
        per_sequence: (outputs, targets) -> (n,), whose mean on the held-out corpus is watched.

    Returns:
        A descent whose steps take (training corpus, held-out corpus); a stopped one stays. Its `advance`
        looks at the held-out corpus between blocks of steps, where a vmapped `step` would compute its loss,
        and choose the best parameters, every time.
    """

    def init(params: Any, *key: Array) -> EarlyStopped:
        dtype = next(x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating))
        return EarlyStopped(
            algorithm.init(params, *key), params, jnp.full((), jnp.inf, dtype), jnp.zeros((), jnp.int32)
        )

    def move(state: EarlyStopped, train: Dataset) -> tuple[EarlyStopped, Info]:
        moved, info = algorithm.step(state.inner, train)
        inner = _where(state.waited >= patience, state.inner, moved)
        return replace(state, inner=replace(inner, step=moved.step)), info

    def is_due(state: EarlyStopped) -> Array:
        ends = (state.step % every == 0) | (state.step == steps)
        return ends & (state.waited < patience)

    def look(state: EarlyStopped, held_out: Dataset) -> EarlyStopped:
        """Look at the held-out loss if that is due."""
        due, params = is_due(state), state.params
        found = loss(params, held_out, outputs, None, per_sequence).astype(state.best_loss.dtype)
        better = due & (found < state.best_loss)
        best = _where(better, params, state.best)
        waited = jnp.where(better, 0, state.waited + due)
        ends = due & ((waited >= patience) | (state.step == steps))
        inner = replace(state.inner, params=_where(ends, best, params))
        return EarlyStopped(inner, best, jnp.where(better, found, state.best_loss), waited)

    def step(state: EarlyStopped, corpora: tuple[Dataset, Dataset]) -> tuple[EarlyStopped, Info]:
        train, held_out = corpora
        moved, info = move(state, train)
        return jax.lax.cond(is_due(moved), lambda: look(moved, held_out), lambda: moved), info

    def advance(state: EarlyStopped, corpora: tuple[Dataset, Dataset], number: int | Array) -> EarlyStopped:
        train, held_out = corpora

        def block(carried: tuple[Array, EarlyStopped]) -> tuple[Array, EarlyStopped]:
            left, state = carried
            until_end = jnp.where(state.step < steps, steps - state.step, every)
            until_check = jnp.minimum(every - state.step % every, until_end)
            taken = jnp.minimum(left, _of_members(until_check))
            state = jax.lax.fori_loop(0, taken, lambda _, here: move(here, train)[0], state)
            return left - taken, look(state, held_out)

        begin = jnp.asarray(number, jnp.int32), state
        return jax.lax.while_loop(lambda carried: carried[0] > 0, block, begin)[1]

    return Algorithm(init, step, advance)


def _where(condition: Array, new: Any, old: Any) -> Any:
    """Choose between two pytrees."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


@custom_vmap
def _of_members(number: Any) -> Any:
    """Take the least of a number over what `jax.vmap` runs over, so that a loop of as many is one loop."""
    return number


@_of_members.def_vmap
def _of_all_members(size: int, batched: list[bool], number: Any) -> tuple[Any, bool]:
    return _of_members(number.min(axis=0) if batched[0] else number), False
