"""Descent on any subset of the parameters, as a pair of pure functions (init, step), and a loop over steps.

One full-batch step on E writes token importance into the embeddings. On p alone, SGD with small steps
approximates gradient flow.
"""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array
from jax.custom_batching import custom_vmap

from jaxattn import losses
from jaxattn.base import Dataset, State
from jaxattn.core import backend
from jaxattn.core.errors import InputError, first_line
from jaxattn.core.pytrees import Leaf, get, replaced, selected
from jaxattn.losses import PerSequence
from jaxattn.models import one_layer
from jaxattn.models.gradients import Outputs, loss, loss_and_gradients

_P = TypeVar("_P")
_LIBRARIES = tuple(os.path.dirname(str(module.__file__)) for module in (jax, optax))


@struct.dataclass
class Info:
    """Loss and gradient norm before a step, both as scalars."""

    loss: Leaf
    gradient_norm: Leaf


class Algorithm(NamedTuple):
    """Training algorithm: pure functions `init(params) -> state` and `step(state, corpus) -> (state, Info)`.

    A state has attributes `params`, `step` and `failed_at`, like `State`. With random batches, the signature
    is `init(params, key)`. The optional `advance(state, data, steps) -> state` takes several steps at once.
    """

    init: Callable[..., Any]
    step: Callable[[Any, Any], tuple[Any, Info]]
    advance: Callable[[Any, Any, int | Array], Any] | None = None


def loop(algorithm: Algorithm, state: Any, data: Any, steps: int | Array) -> Any:
    """Return the state after the given number of steps. In a traced function, use this instead of `run`."""
    if algorithm.advance is not None:
        return algorithm.advance(state, data, steps)
    return jax.lax.fori_loop(0, steps, lambda _, s: algorithm.step(s, data)[0], state)


@partial(jax.jit, static_argnames="algorithm")
def run(algorithm: Algorithm, state: Any, data: Any, steps: int | Array) -> Any:
    """Return the state after the given number of steps, taken in one loop.

    The loop is compiled once per algorithm for any number of steps. Pass the same `algorithm` object in
    every call, because a new object triggers a new compilation. `data` is the second argument of
    `algorithm.step`. One call with k + l steps is equivalent to a call with k steps followed by one with l
    steps.
    """
    return loop(algorithm, state, data, steps)


def descent(
    optimizer: optax.GradientTransformation,
    *,
    train: Sequence[str],
    outputs: Outputs = one_layer.outputs,
    batch_size: int | None = None,
    cuts_batches: bool = False,
    fresh: Callable[[Array], Dataset] | None = None,
    per_sequence: PerSequence = losses.DEFAULT,
) -> Algorithm:
    """Build a descent algorithm that minimises the mean loss over some of the parameters.

    Args:
        optimizer: any optax transformation. Its extra arguments `value` (for Polyak steps), `grad` and
            `value_fn` (for line searches), if any, are the loss, its gradient, and the loss as a function
            of the trained parameters.
        train: names or patterns of the trained parameters; see `ja.Phase.train`.
        outputs: the model, a function (params, data) -> (n, ...).
        batch_size: number of examples per step; defaults to the full batch. Examples are reshuffled in
            every epoch, and an incomplete last batch is dropped.
        cuts_batches: True to extract the batch from the data in every step. By default, a minibatch is
            the full data with weights on the examples, which requires a loss that is a sum over examples.
            Such a step costs as much as a full-batch step, which in token space is cheaper than
            building a new corpus.
        fresh: function (key -> data) that samples a new batch for each step, in place of the training
            data.
        per_sequence: loss of each example, (outputs, targets) -> (n,). Default: logistic for two classes,
            cross-entropy for more.

    Returns:
        The pair (init, step). Both raise InputError if a trained parameter does not exist.
    """
    transformation = optax.with_extra_args_support(optimizer)
    is_full = batch_size is None and fresh is None

    def init(params: Any, key: Array | None = None) -> State:
        trained = selected(params, train)
        with _stepping():
            carried = transformation.init(trained)
        return State(
            params,
            carried,
            jnp.zeros((), jnp.int32),
            -jnp.ones((), jnp.int32),
            None if is_full or key is None else jax.random.key_data(key),
        )

    def step(state: State, data: Dataset) -> tuple[State, Info]:
        weights = None
        if fresh is not None:
            data = fresh(jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step))
        elif batch_size is not None:
            data, weights = _minibatch(state, data, batch_size, cuts_batches)
        value, gradients = loss_and_gradients(state.params, data, train, outputs, weights, per_sequence)
        trained = selected(state.params, train)

        def value_fn(trained: dict[str, Array]) -> Array:
            return loss(replaced(state.params, **trained), data, outputs, weights, per_sequence)

        with _stepping():
            updates, carried = transformation.update(
                gradients, state.optimizer, trained, value=value, grad=gradients, value_fn=value_fn
            )
        updates, fails = _checked(updates, value, gradients)
        moved = State(
            params=replaced(state.params, **optax.apply_updates(trained, updates)),
            optimizer=carried,
            step=state.step + 1,
            failed_at=jnp.where((state.failed_at < 0) & fails, state.step, state.failed_at),
            key=state.key,
        )
        return moved, Info(value, optax.tree.norm(gradients))

    return Algorithm(init, step)


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


def one_step(
    params: _P,
    data: Any,
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
    """
    _, gradients = loss_and_gradients(params, data, train, outputs, per_sequence=per_sequence)
    moved = {name: get(params, name) - step_size * g for name, g in gradients.items()}
    return replaced(params, **moved)


@struct.dataclass
class EarlyStopped:
    """State of a descent with early stopping.

    Attributes:
        inner: state of the wrapped descent.
        best: the parameters with the smallest held-out loss so far.
        best_loss: () float; the smallest held-out loss so far.
        waited: () int32; number of checks since `best_loss` was reached.
        evaluations: () int32; number of gradients computed before the early stop.
    """

    inner: State
    best: Leaf
    best_loss: Leaf
    waited: Leaf
    evaluations: Leaf

    @property
    def params(self) -> Any:
        """Current parameters, or, after the descent has stopped, the best parameters."""
        return self.inner.params

    @property
    def step(self) -> Array:
        """Number of steps taken, including steps after the early stop, which have no effect."""
        return self.inner.step

    @property
    def failed_at(self) -> Array:
        """First step with a non-finite loss or gradient, or -1 if there is none."""
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
    """Build a descent that stops when the loss on a held-out corpus no longer decreases.

    Args:
        algorithm: the descent to wrap.
        steps: length of the phase. The phase always ends with the best parameters.
        every: number of steps between checks of the held-out loss.
        patience: number of consecutive checks without a new best loss after which the descent stops.
        outputs: the model, a function (params, data) -> (n, ...).
        per_sequence: (outputs, targets) -> (n,); its mean on the held-out corpus is monitored.

    Returns:
        The descent. Its steps take a pair (training corpus, held-out corpus) and have no effect after
        stopping. `advance` evaluates the held-out loss only between blocks of steps; a vmapped `step`
        evaluates it in every step.
    """

    def init(params: Any, *key: Array) -> EarlyStopped:
        dtype = next(x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating))
        none = jnp.zeros((), jnp.int32)
        return EarlyStopped(algorithm.init(params, *key), params, jnp.full((), jnp.inf, dtype), none, none)

    def move(state: EarlyStopped, train: Dataset) -> tuple[EarlyStopped, Info]:
        moved, info = algorithm.step(state.inner, train)
        stopped = state.waited >= patience
        inner = replace(_where(stopped, state.inner, moved), step=moved.step)
        return replace(state, inner=inner, evaluations=state.evaluations + ~stopped), info

    def is_due(state: EarlyStopped) -> Array:
        ends = (state.step % every == 0) | (state.step == steps)
        return ends & (state.waited < patience)

    def check(state: EarlyStopped, held_out: Dataset) -> EarlyStopped:
        due, params = is_due(state), state.params
        found = loss(params, held_out, outputs, None, per_sequence).astype(state.best_loss.dtype)
        better = due & (found < state.best_loss)
        best = _where(better, params, state.best)
        waited = jnp.where(better, 0, state.waited + due)
        ends = due & ((waited >= patience) | (state.step == steps))
        inner = replace(state.inner, params=_where(ends, best, params))
        best_loss = jnp.where(better, found, state.best_loss)
        return replace(state, inner=inner, best=best, best_loss=best_loss, waited=waited)

    def step(state: EarlyStopped, corpora: tuple[Dataset, Dataset]) -> tuple[EarlyStopped, Info]:
        train, held_out = corpora
        moved, info = move(state, train)
        return jax.lax.cond(is_due(moved), lambda: check(moved, held_out), lambda: moved), info

    def advance(state: EarlyStopped, corpora: tuple[Dataset, Dataset], number: int | Array) -> EarlyStopped:
        train, held_out = corpora

        def block(carried: tuple[Array, EarlyStopped]) -> tuple[Array, EarlyStopped]:
            left, state = carried
            until_end = jnp.where(state.step < steps, steps - state.step, every)
            until_check = jnp.minimum(every - state.step % every, until_end)
            taken = jnp.minimum(left, _of_members(until_check))
            state = jax.lax.fori_loop(0, taken, lambda _, here: move(here, train)[0], state)
            return left - taken, check(state, held_out)

        begin = jnp.asarray(number, jnp.int32), state
        return jax.lax.while_loop(lambda carried: carried[0] > 0, block, begin)[1]

    return Algorithm(init, step, advance)


def _minibatch(
    state: State, data: Dataset, batch_size: int, cuts_batches: bool
) -> tuple[Dataset, Array | None]:
    size = min(batch_size, data.num_examples)
    position = assign_minibatches(jax.random.wrap_key_data(state.key), state.step, size, data.num_examples)
    if not cuts_batches:
        return data, jnp.where(position < size, 1 / size, 0.0)
    own = jnp.zeros(size, jnp.int32).at[position]
    every = jnp.arange(data.num_examples, dtype=jnp.int32)
    return data.take(own.set(every, mode="drop", unique_indices=True)), None


def _checked(updates: Any, value: Array, gradients: dict[str, Array]) -> tuple[Any, Array]:
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


def assign_minibatches(key: Array, step: Array, size: int, sequences: int) -> Array:
    """Return each sequence's position in the random order of an epoch, relative to this step's minibatch.

    Each epoch of n // size steps uses a new random order.

    Returns:
        (n,) int32, all distinct; the sequences with values below `size` form the minibatch of this step.
    """
    epoch, number = jnp.divmod(step, sequences // size)
    position = jax.random.permutation(jax.random.fold_in(key, epoch), sequences)
    return (position - number * size) % sequences


def _where(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


@custom_vmap
def _of_members(number: Any) -> Any:
    """Return the minimum of `number` over a vmapped axis, so that a loop with this bound is not batched."""
    return number


@_of_members.def_vmap
def _of_all_members(size: int, batched: list[bool], number: Any) -> tuple[Any, bool]:
    return _of_members(number.min(axis=0) if batched[0] else number), False
