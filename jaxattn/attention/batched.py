"""Attention on a large corpus for many lanes at once: seeds, or whatever else `jax.vmap` runs over.

One pass over the corpus costs much the same for one lane as for sixteen. Lanes of a vmap are therefore taken
together into products with the count matrix, one for every band of scores; what needs too many bands for
that is computed lane after lane.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap, sequential_vmap

from jaxattn.attention import banded_softmax, single
from jaxattn.data.corpus import Corpus

# Products with more columns outgrow the cache.
COLUMNS = 64


def shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let vmapped calls of a function with an axis of lanes be one call with more lanes.

    Args:
        function: (corpus, *arrays) -> arrays; the first axis of all arrays is that of lanes.

    Returns:
        The function, with a rule of its own for `jax.vmap`. Corpora of their own are taken in turn.
    """
    merging = custom_vmap(function)

    @merging.def_vmap
    def rule(size: int, batched: list[Any], corpus: Corpus, *arrays: Array) -> Any:
        if any(jax.tree.leaves(batched[0])):
            axes = jax.tree.map(lambda mapped: 0 if mapped else None, tuple(batched))
            result = jax.vmap(sequential_vmap(function), in_axes=axes)(corpus, *arrays)
        elif any(batched[1:]):
            pairs = zip(arrays, batched[1:], strict=True)
            full = [x if mapped else jnp.broadcast_to(x, (size, *x.shape)) for x, mapped in pairs]
            merged = merging(corpus, *(x.reshape(-1, *x.shape[2:]) for x in full))
            result = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), merged)
        else:
            # A derivative asks for the plain function and batches it afterwards.
            result = function(corpus, *arrays)
            return result, jax.tree.map(lambda _: False, result)
        return result, jax.tree.map(lambda _: True, result)

    return merging


def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let vmapped calls of a function (corpus, *arrays) take a large corpus one lane after the other.

    For functions with arrays of one number for every entry of the corpus, which would not fit for all lanes.
    """
    one_by_one = sequential_vmap(function)

    @wraps(function)
    def chosen(corpus: Corpus, *arrays: Any) -> Any:
        return (one_by_one if corpus.bags.is_large else function)(corpus, *arrays)

    return chosen


@shared
def forward(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Average values over every sequence of one large corpus.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (S, V); any finite spread.
        columns: γ, (S, K, V).

    Returns:
        f (S, K, n); what the scores of each sequence were shifted by, (S, n); the normaliser, (S, n).
    """
    if len(scores) > _most_lanes(columns):
        return _in_parts(forward, corpus, scores, columns)
    if len(scores) == 1:
        return _one_lane(partial(single.forward, corpus), scores, columns)
    together, apart = _plan(scores)
    found = banded_softmax.forward(corpus, scores, columns, together)
    return _redo(partial(single.forward_anywhere, corpus), apart, found, scores, columns)


@shared
def backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, flows: Array
) -> tuple[Array, Array]:
    """Carry flows back to scores and values.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (S, V).
        columns: γ, (S, K, V).
        averages: f, (S, K, n).
        shift: as `forward` returns it, (S, n).
        flows: ∂L/∂f over the normaliser, (S, K, n).

    Returns:
        ∂L/∂a (S, V), and ∂L/∂γ (S, K, V).
    """
    lanes = (scores, columns, averages, shift, flows)
    if len(scores) > _most_lanes(columns):
        return _in_parts(backward, corpus, *lanes)
    if len(scores) == 1:
        return _one_lane(partial(single.backward, corpus), *lanes)
    together, apart = _plan(scores)
    *found, cancelled = banded_softmax.backward(corpus, *lanes, together)
    return _redo(partial(single.backward_anywhere, corpus), apart | cancelled, tuple(found), *lanes)


def _redo(function: Callable[..., Any], which: Array, found: Any, *arrays: Array) -> Any:
    """Replace the results of some lanes by those of a function of one lane."""

    def one(lane: Any) -> Any:
        again, found, arrays = lane
        return jax.lax.cond(again, lambda: function(*arrays), lambda: found)

    every = lambda: jax.lax.map(one, (which, found, arrays))  # noqa: E731
    return jax.lax.cond(which.any(), every, lambda: found)


def _one_lane(function: Callable[..., Any], *arrays: Array) -> Any:
    return jax.tree.map(lambda x: x[None], function(*(x[0] for x in arrays)))


def _plan(scores: Array) -> tuple[Array, Array]:
    """Choose how many bands to go through together, (), and which lanes to leave out of it, (S,)."""
    lanes = len(scores)
    # What a band of all lanes costs, where one lane by itself costs 1.
    price = (1 + lanes / 16) / 2
    most = int(lanes / price)
    needed = banded_softmax.number(scores, most)
    together = jnp.arange(most + 1)
    cost = price * together.astype(jnp.float32) + (needed > together[:, None]).sum(axis=1)
    best = jnp.argmin(cost)
    return best, needed > best


def _most_lanes(columns: Array) -> int:
    return max(1, COLUMNS // (columns.shape[1] + 1))


def _in_parts(function: Callable[..., Any], corpus: Corpus, *arrays: Array) -> Any:
    def one(lane: Any) -> Any:
        return jax.tree.map(lambda x: x[0], function(corpus, *(x[None] for x in lane)))

    lanes = len(arrays[0])
    parts = -(-lanes // _most_lanes(arrays[1]))
    return jax.lax.map(one, arrays, batch_size=-(-lanes // parts))
