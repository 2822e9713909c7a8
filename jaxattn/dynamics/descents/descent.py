"""Gradient steps on any subset of the parameters, with an optax transformation, on all data or a minibatch.

One full-batch step on E writes token importance into the embeddings. On p alone, SGD with small steps
approximates gradient flow.
"""

import dataclasses
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jaxattn import losses
from jaxattn.base import Dataset, State
from jaxattn.base.model import Params
from jaxattn.core import backend
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError, first_line
from jaxattn.core.pytrees import get, gradients_by_name, replace, selected
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer
from jaxattn.models.gradients import Outputs, loss, loss_and_gradients

_P = TypeVar("_P")
_LIBRARIES = tuple(os.path.dirname(str(module.__file__)) for module in (jax, optax))


def initial_state(
    optimizer: optax.GradientTransformation, params: Params, train: Sequence[str], key: Array | None = None
) -> State:
    """Return the state of a descent at its start.

    Args:
        optimizer: any optax transformation.
        params: the parameters.
        train: names or patterns of the trained parameters.
        key: () PRNG key for sampling minibatches or new examples; None for full-batch training.

    Raises:
        InputError: a name or pattern matches no parameter.
    """
    trained = selected(params, train)
    with _stepping():
        carried = optax.with_extra_args_support(optimizer).init(trained)
    return State(
        params,
        carried,
        jnp.zeros((), jnp.int32),
        -jnp.ones((), jnp.int32),
        None if key is None else jax.random.key_data(key),
    )


def gradient_step(
    optimizer: optax.GradientTransformation,
    state: State,
    data: Dataset,
    weights: Array | None = None,
    *,
    train: Sequence[str],
    outputs: Outputs,
    per_sequence: PerSequence,
) -> State:
    """Return the state after one step that decreases the mean loss.

    Args:
        optimizer: any optax transformation. Its extra arguments `value` (for Polyak steps), `grad` and
            `value_fn` (for line searches), if any, are the loss, its gradient, and the loss as a function
            of the trained parameters.
        state: the state before the step.
        data: n examples.
        weights: (n,); weights of the examples, 1/n each by default.
        train: names or patterns of the trained parameters.
        outputs: the model, a function (params, data) -> (n, ...).
        per_sequence: loss of each example, (outputs, targets) -> (n,).
    """

    def objective(params: Any) -> Array:
        return loss(params, data, outputs, weights, per_sequence)

    return objective_step(optimizer, state, objective, train=train)


def objective_step(
    optimizer: optax.GradientTransformation,
    state: State,
    objective: Callable[[Any], Array],
    *,
    train: Sequence[str],
) -> State:
    """Return the state after one step that decreases an objective.

    Args:
        optimizer: see `gradient_step`.
        state: the state before the step.
        objective: params -> (), the function to minimise.
        train: names or patterns of the trained parameters.
    """
    value, gradients = gradients_by_name(objective, state.params, train)
    trained = selected(state.params, train)

    def value_fn(trained: dict[str, Array]) -> Array:
        return objective(replace(state.params, **trained))

    with _stepping():
        updates, carried = optax.with_extra_args_support(optimizer).update(
            gradients, state.optimizer, trained, value=value, grad=gradients, value_fn=value_fn
        )
    updates, fails = _check_gradients(updates, value, gradients)
    return dataclasses.replace(
        state,
        params=replace(state.params, **optax.apply_updates(trained, updates)),
        optimizer=carried,
        step=state.step + 1,
        failed_at=jnp.where((state.failed_at < 0) & fails, state.step, state.failed_at),
    )


@contextmanager
def _stepping() -> Iterator[None]:
    """Convert exceptions that optax raises about the way in which it is called to one-line errors."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        # Leave errors in custom transformations and models unchanged, because their line is reported.
        if any(not file.startswith((*_LIBRARIES, __file__)) for file in files):
            raise
        raise InputError(
            f"optimizer: this optax transformation cannot take a step ({first_line(error)}); it may use "
            "only one gradient, the parameters, and the arguments value, grad and value_fn"
        ) from error


@checked
def one_step(
    params: _P,
    data: Dataset,
    *,
    step_size: float | Array,
    train: Sequence[str] = ("E",),
    outputs: Outputs = one_layer.outputs,
    per_sequence: PerSequence = losses.DEFAULT,
) -> _P:
    """Return the parameters after one full-batch gradient step, θ¹ = θ⁰ - η0 ∂L/∂θ, by default only on E.

    Args:
        params: E (V, d), p (d,), v (d,) or (d, K), or the parameters of another model.
        data: n examples.
        step_size: η0.
        train: names or patterns of the trained parameters.
        outputs: the model, a function (params, data) -> (n, ...).
        per_sequence: loss of each example, (outputs, targets) -> (n,).

    Raises:
        InputError: a name or pattern in `train` matches no parameter.

    Source:
        Lemma 4.1 of arXiv 2505.17282: after the step, E_s ≈ E_s⁰ + (η0/2) α_s v.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> after = ja.dynamics.one_step(params, corpus, step_size=1.0)
        >>> bool((after.p == params.p).all()), bool((after.E == params.E).all())
        (True, False)
    """
    _, gradients = loss_and_gradients(params, data, train, outputs, per_sequence=per_sequence)
    moved = {name: get(params, name) - step_size * g for name, g in gradients.items()}
    return replace(params, **moved)


def minibatch(state: State, data: Dataset, batch_size: int, extract: bool) -> tuple[Dataset, Array | None]:
    """Return the minibatch of the current step as data and weights.

    Args:
        state: the state, whose key determines the order of the examples in each epoch.
        data: n examples.
        batch_size: number of examples in a minibatch. An incomplete last batch of an epoch is dropped.
        extract: True to build data that contain only the minibatch. By default, a minibatch is the full data
            with weights on the examples, which requires a loss that is a sum over examples. Such a step costs
            as much as a full-batch step, which in token space is cheaper than building a new corpus.

    Returns:
        The data, and weights of the examples, (n,), or None for 1/n each.
    """
    size = min(batch_size, data.num_examples)
    position = assign_minibatches(jax.random.wrap_key_data(state.key), state.step, size, data.num_examples)
    if not extract:
        return data, jnp.where(position < size, 1 / size, 0.0)
    own = jnp.zeros(size, jnp.int32).at[position]
    every = jnp.arange(data.num_examples, dtype=jnp.int32)
    return data.take(own.set(every, mode="drop", unique_indices=True)), None


def assign_minibatches(key: Array, step: Array, size: int, sequences: int) -> Array:
    """Return each sequence's position in the random order of an epoch, relative to this step's minibatch.

    Each epoch of n // size steps uses a new random order.

    Returns:
        (n,) int32, all distinct; the sequences with values below `size` form the minibatch of this step.
    """
    epoch, number = jnp.divmod(step, sequences // size)
    position = jax.random.permutation(jax.random.fold_in(key, epoch), sequences)
    return (position - number * size) % sequences


def _check_gradients(updates: Any, value: Array, gradients: dict[str, Array]) -> tuple[Any, Array]:
    """Return the updates, and whether the loss or a checked gradient is non-finite in this step.

    Gradients of matrices are checked only if no vector is trained, because computing their norm would require
    ∂L/∂E in memory. On a CPU, the update of E is made to depend on the gradients of p and v, because XLA
    would otherwise copy E in every step.
    """
    leaves = jax.tree.leaves(gradients)
    vectors = [leaf for leaf in leaves if leaf.ndim < 2]
    fails = ~(jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(vectors or leaves)))
    if vectors and backend.platform() == "cpu":
        updates = jax.tree.map(
            lambda leaf: jnp.where(fails, jnp.nan, leaf) if leaf.ndim > 1 else leaf, updates
        )
    return updates, fails
