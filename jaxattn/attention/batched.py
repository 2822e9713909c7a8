"""Attention on a large corpus for a batch of scores: those of many seeds, or whatever `jax.vmap` runs over.

One pass over the corpus costs much the same for one member of the batch as for sixteen. All members are
therefore taken together into products with the count matrix, one for every band of scores; members that need
too many bands for that are computed one after another.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap, sequential_vmap

from jaxattn.attention import banded_softmax, bands, single
from jaxattn.data.corpus import Corpus
from jaxattn.parts import map_in_equal_parts

# Products with more columns outgrow the cache; a TPU multiplies with 128 in the time of one.
COLUMNS, COLUMNS_OF_DENSE = 64, 256


def merged_vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let vmapped calls of a function with a batch axis be one call with a larger batch.

    Args:
        function: (corpus, *arrays) -> arrays; the first axis of all arrays is the batch axis.

    Returns:
        The function, with a rule of its own for `jax.vmap`. Vmapped corpora are taken one after another.
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


def sequential_vmap_if_large(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `jax.vmap` of a function (corpus, *arrays) loop over the batch if the corpus is large.

    For functions with arrays of one number for every entry of the corpus, which would not fit for a batch.
    """
    sequential = sequential_vmap(function)

    @wraps(function)
    def chosen(corpus: Corpus, *arrays: Any) -> Any:
        return (sequential if corpus.bags.is_large else function)(corpus, *arrays)

    return chosen


@merged_vmap
def forward(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Average values over every sequence of one large corpus.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (S, V); any finite spread.
        columns: γ, (S, K, V).

    Returns:
        f (S, K, n); what the scores of each sequence were shifted by, (S, n); the normaliser, (S, n).
    """
    if len(scores) > _max_batch(corpus, columns):
        return _in_chunks(forward, corpus, scores, columns)
    if len(scores) == 1:
        return _batch_of_one(partial(single.forward, corpus), scores, columns)
    num_bands, apart = _plan_bands(scores)
    averages = banded_softmax.forward(corpus, scores, columns, num_bands)
    in_bands = partial(single.forward_in_bands, corpus)
    return _recompute(in_bands, apart, averages, *jax.vmap(single.split)(scores, columns))


@merged_vmap
def backward(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, shift: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Compute the cotangents of scores and values.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (S, V).
        columns: γ, (S, K, V).
        averages: f, (S, K, n).
        shift: as `forward` returns it, (S, n).
        d_sums: ∂L/∂f over the normaliser, (S, K, n).

    Returns:
        ∂L/∂a (S, V), and ∂L/∂γ (S, K, V).
    """
    arrays = (scores, columns, averages, shift, d_sums)
    if len(scores) > _max_batch(corpus, columns):
        return _in_chunks(backward, corpus, *arrays)
    if len(scores) == 1:
        return _batch_of_one(partial(single.backward, corpus), *arrays)
    num_bands, apart = _plan_bands(scores)
    *cotangents, cancelled = banded_softmax.backward(corpus, *arrays, num_bands)
    in_bands = partial(single.backward_in_bands, corpus)
    tables = jax.vmap(bands.split)(scores)
    return _recompute(in_bands, apart | cancelled, tuple(cotangents), *tables, *arrays[1:])


def _recompute(function: Callable[..., Any], which: Array, results: Any, *arrays: Array) -> Any:
    """Replace the results of some members of the batch by those of an unbatched function."""

    def one(member: Any) -> Any:
        again, results, arrays = member
        return jax.lax.cond(again, lambda: function(*arrays), lambda: results)

    every = lambda: jax.lax.map(one, (which, results, arrays))  # noqa: E731
    return jax.lax.cond(which.any(), every, lambda: results)


def _batch_of_one(function: Callable[..., Any], *arrays: Array) -> Any:
    return jax.tree.map(lambda x: x[None], function(*(x[0] for x in arrays)))


def _plan_bands(scores: Array) -> tuple[Array, Array]:
    """Choose how many bands the batch goes through, (), and which members to compute apart, (S,) bool."""
    size = len(scores)
    # What a band of the whole batch costs, where one member by itself costs 1.
    price = (1 + size / 16) / 2
    most = int(size / price)
    needed = bands.count(scores, most)
    num_bands = jnp.arange(most + 1)
    cost = price * num_bands.astype(jnp.float32) + (needed > num_bands[:, None]).sum(axis=1)
    best = jnp.argmin(cost)
    return best, needed > best


def _max_batch(corpus: Corpus, columns: Array) -> int:
    most = COLUMNS_OF_DENSE if corpus.bags.dense else COLUMNS
    return max(1, most // (columns.shape[1] + 1))


def _in_chunks(function: Callable[..., Any], corpus: Corpus, *arrays: Array) -> Any:
    def one(member: Any) -> Any:
        return jax.tree.map(lambda x: x[0], function(corpus, *(x[None] for x in member)))

    return map_in_equal_parts(one, arrays, _max_batch(corpus, arrays[1]))
