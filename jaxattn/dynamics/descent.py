"""Full-batch descent on any subset of the parameters: an optax loop as an (init, step) pair.

Small-step sgd on p is the loop's approximation of gradient flow.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.one_step import Logits, loss_and_gradients
from jaxattn.models import one_layer
from jaxattn.trees import Leaf


@struct.dataclass
class State:
    """What a descent carries.

    Attributes:
        params: the model's parameters.
        optimizer: optax's state.
        step: () int32; steps taken.
        failed_at: () int32; the first step whose loss or gradient was not finite, -1 if none.
    """

    params: Leaf
    optimizer: Leaf
    step: Leaf
    failed_at: Leaf


@struct.dataclass
class Info:
    """What one step reports: the loss and gradient norm before the step, both scalars."""

    loss: Leaf
    gradient_norm: Leaf


class Descent(NamedTuple):
    """A descent: `init(params) -> State` and `step(state, corpus) -> (State, Info)`, both pure."""

    init: Callable[[Any], State]
    step: Callable[[State, Corpus], tuple[State, Info]]


def descent(
    optimizer: optax.GradientTransformation, *, train: Sequence[str], logits: Logits = one_layer.logits
) -> Descent:
    """Make a descent of the mean loss on the named parameters.

    Args:
        optimizer: any optax transformation; one that takes `value` (a Polyak step) is given the loss.
        train: names of the parameters that move, a subset of the model's.
        logits: the model.

    Returns:
        The (init, step) pair.
    """
    transformation = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> State:
        trained = {name: getattr(params, name) for name in train}
        return State(params, transformation.init(trained), jnp.zeros((), jnp.int32), -jnp.ones((), jnp.int32))

    def step(state: State, corpus: Corpus) -> tuple[State, Info]:
        loss, gradients = loss_and_gradients(state.params, corpus, train, logits)
        trained = {name: getattr(state.params, name) for name in train}
        updates, carried = transformation.update(gradients, state.optimizer, trained, value=loss)
        norm = optax.tree.norm(gradients)
        fails = ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        moved = State(
            params=state.params.replace(**optax.apply_updates(trained, updates)),
            optimizer=carried,
            step=state.step + 1,
            failed_at=jnp.where((state.failed_at < 0) & fails, state.step, state.failed_at),
        )
        return moved, Info(loss, norm)

    return Descent(init, step)


def run(algorithm: Descent, state: State, corpus: Corpus, steps: int | Array) -> State:
    """Take a number of steps, which may be traced, in one compiled loop.

    Args:
        algorithm: a descent.
        state: where to start.
        corpus: n sequences.
        steps: how many.

    Returns:
        The state after the steps; one call with k + l steps equals two with k and l.
    """
    return jax.lax.fori_loop(0, steps, lambda _, s: algorithm.step(s, corpus)[0], state)
