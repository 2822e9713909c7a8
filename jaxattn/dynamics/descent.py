"""Descent on any subset of the parameters, full batch or minibatches: an optax loop as an (init, step) pair.

Small-step sgd on p is the loop's approximation of gradient flow.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array

from jaxattn import losses, trees
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.one_step import Logits, loss, loss_and_gradients
from jaxattn.losses import PerSequence
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
        key: (2,) uint32; data of the PRNG key that minibatches are drawn with, None for the full batch.
    """

    params: Leaf
    optimizer: Leaf
    step: Leaf
    failed_at: Leaf
    key: Leaf = None


@struct.dataclass
class Info:
    """What one step reports: the loss and gradient norm before the step, both scalars."""

    loss: Leaf
    gradient_norm: Leaf


class Descent(NamedTuple):
    """A descent: `init(params) -> state` and `step(state, corpus) -> (state, Info)`, both pure.

    A state has `params`, `step` and `failed_at`, as `State` does. Where batches are drawn at random,
    `init(params, key)` takes a PRNG key too; an early-stopped descent takes two corpora.
    """

    init: Callable[..., Any]
    step: Callable[[Any, Any], tuple[Any, Info]]


def descent(
    optimizer: optax.GradientTransformation,
    *,
    train: Sequence[str],
    logits: Logits = one_layer.logits,
    batch_size: int | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Descent:
    """Make a descent of the mean loss on the named parameters.

    Args:
        optimizer: any optax transformation; one that takes `value` (a Polyak step), `grad` or `value_fn` (a
            line search) is given the loss, its gradient, and the loss as a function of what is trained.
        train: names of the parameters that move, a subset of the model's.
        logits: the model.
        batch_size: sequences per step, dealt out anew in every epoch (the last ones that do not fill a batch
            sit it out); all of them by default. A batch is a matter of weights in token space, so its step
            costs what a full one does.
        per_sequence: (logits, labels) -> (n,); logistic for two classes and cross-entropy for K by default.

    Returns:
        The (init, step) pair; both raise InputError for a name that the parameters do not have.
    """
    transformation = optax.with_extra_args_support(optimizer)

    def init(params: Any, key: Array | None = None) -> State:
        trained = {name: trees.get(params, name) for name in train}
        return State(
            params,
            transformation.init(trained),
            jnp.zeros((), jnp.int32),
            -jnp.ones((), jnp.int32),
            None if batch_size is None or key is None else jax.random.key_data(key),
        )

    def step(state: State, corpus: Corpus) -> tuple[State, Info]:
        weights = None
        if batch_size is not None:
            key = jax.random.wrap_key_data(state.key)
            weights = batch(key, state.step, batch_size, corpus.num_sequences)
        value, gradients = loss_and_gradients(state.params, corpus, train, logits, weights, per_sequence)
        trained = {name: trees.get(state.params, name) for name in train}

        def value_fn(trained: dict[str, Array]) -> Array:
            return loss(trees.replaced(state.params, **trained), corpus, logits, weights, per_sequence)

        updates, carried = transformation.update(
            gradients, state.optimizer, trained, value=value, grad=gradients, value_fn=value_fn
        )
        norm = optax.tree.norm(gradients)
        fails = ~(jnp.isfinite(value) & jnp.isfinite(norm))
        moved = State(
            params=trees.replaced(state.params, **optax.apply_updates(trained, updates)),
            optimizer=carried,
            step=state.step + 1,
            failed_at=jnp.where((state.failed_at < 0) & fails, state.step, state.failed_at),
            key=state.key,
        )
        return moved, Info(value, norm)

    return Descent(init, step)


def batch(key: Array, step: Array, batch_size: int, sequences: int) -> Array:
    """Weigh the sequences of a step's minibatch: 1/B for B of them, 0 for the others, (n,).

    Every epoch of n // B steps deals the sequences out in an order of its own.
    """
    size = min(batch_size, sequences)
    epoch, number = jnp.divmod(step, sequences // size)
    position = jax.random.permutation(jax.random.fold_in(key, epoch), sequences)
    return jnp.where(position // size == number, 1 / size, 0.0)


def run(algorithm: Descent, state: Any, corpus: Any, steps: int | Array) -> Any:
    """Take a number of steps, which may be traced, in one compiled loop.

    Args:
        algorithm: a descent.
        state: where to start.
        corpus: what the descent's step takes: n sequences.
        steps: how many.

    Returns:
        The state after the steps; one call with k + l steps equals two with k and l.
    """
    return jax.lax.fori_loop(0, steps, lambda _, s: algorithm.step(s, corpus)[0], state)
