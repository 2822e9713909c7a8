"""Softmax attention over the rows M_s of a table with many columns: h_X = Σ_s q_s(X) M_s."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.attention.softmax import occurrence_weights, require_rows
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import MAX_POSITIONS, Ragged, take

# Maximum ratio of matrix size to number of entries at which a dense product is faster than gathering rows.
DENSE_FACTOR = 16
# Maximum number of table entries gathered at a time, so that memory use does not grow with the corpus.
GATHERED = 1 << 22
# Maximum number of row sums stored at a time. A segment may consist of multiple rows.
HELD = 1 << 25


@jax.jit
def pool(corpus: Corpus, scores: Float[Array, " V"], table: Float[Array, "V m"]) -> Float[Array, "n m"]:
    """Average the rows of a table over each sequence with softmax attention.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,), of any finite spread.
        table: M, (V, m).

    Returns:
        h, (n, m).

    Raises:
        InputError: scores or table do not have V rows.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.attention.pool(corpus, jnp.zeros(3), jnp.eye(3)).tolist()
        [[0.5, 0.0, 0.5], [0.0, 0.5, 0.5]]
    """
    require_rows(corpus, scores=scores, table=table)
    return _pool(corpus, scores, table)


@jax.custom_vjp
def _pool(corpus: Corpus, scores: Array, table: Array) -> Array:
    return _forward(corpus, scores, table)[0]


def _forward(corpus: Corpus, scores: Array, table: Array) -> tuple[Array, Any]:
    bags = corpus.bags
    top, normaliser, weight = _attention(bags, scores)
    pooled = (
        _matrix(bags, weight, len(table)) @ table if _is_dense(corpus) else weighted_sums(bags, weight, table)
    )
    return pooled, (corpus, scores, table, pooled, top, normaliser)


def _backward(residuals: Any, cotangent: Array) -> tuple[Any, ...]:
    """Compute the cotangents of the table M and the scores a in `pool`, with h̄ = ∂L/∂h and attention q.

    ∂L/∂M_s = Σ_X q_s h̄_X,   ∂L/∂a_s = M_s·∂L/∂M_s - Σ_X q_s (h̄_X·h_X)
    """
    corpus, scores, table, pooled, top, normaliser = residuals
    by_sequence = (cotangent * pooled).sum(axis=1)
    if _is_dense(corpus):
        attention = _matrix(corpus.bags, _attention(corpus.bags, scores)[2], len(table))
        d_table, delta = attention.T @ cotangent, by_sequence @ attention
    else:
        layout = corpus.occurrences
        sequence = layout.index.astype(jnp.int32)
        weight = occurrence_weights(corpus, scores, top) / take(normaliser, sequence)
        d_table = weighted_sums(layout, weight, cotangent)
        (delta,) = layout.sum(weight * take(by_sequence, sequence))
    return None, (table * d_table).sum(axis=1) - delta, d_table


_pool.defvjp(_forward, _backward)


def _is_dense(corpus: Corpus) -> bool:
    size = corpus.num_examples * corpus.vocab_size
    return size <= min(DENSE_FACTOR * corpus.bags.index.size, MAX_POSITIONS)


def _matrix(bags: Ragged, weight: Array, num_indices: int) -> Array:
    size = bags.num_segments * num_indices
    position = bags.owner[:, None] * num_indices + bags.index.astype(jnp.int32)
    position = jnp.where(bags.count > 0, position, size).ravel()
    flat = jnp.zeros(size, weight.dtype).at[position].set(weight.ravel(), mode="drop", unique_indices=True)
    return flat.reshape(-1, num_indices)


def _attention(bags: Ragged, scores: Array) -> tuple[Array, Array, Array]:
    """Return the shift and normaliser of each sequence, (n,) each, and each entry's attention, (R, W)."""
    _, top, normaliser, weight = bags.softmax(take(scores, bags.index.astype(jnp.int32)))
    return top, normaliser, weight / bags.spread(normaliser)


@jax.jit
def weighted_sums(layout: Ragged, weight: Array, table: Float[Array, "I m"]) -> Float[Array, "S m"]:
    """Compute the weighted sum of table rows in each segment, (S, m), block by block.

        Σ_e weight_e M[index_e], summed over the entries e of the segment

    Args:
        layout: S segments, with entries that index the I rows of the table.
        weight: (R, W); weight of each entry.
        table: M, (I, m).
    """
    columns = table.shape[1]
    each = max(1, HELD // weight.shape[0])
    if each >= columns:
        return _sums(layout, weight, table)
    blocks = -(-columns // each)
    padded = jnp.pad(table, ((0, 0), (0, blocks * each - columns)))
    tables = jnp.moveaxis(padded.reshape(-1, blocks, each), 1, 0)
    sums = jax.lax.map(lambda block: _sums(layout, weight, block), tables)
    return jnp.moveaxis(sums, 0, 1).reshape(-1, blocks * each)[:, :columns]


def _sums(layout: Ragged, weight: Array, table: Array) -> Array:
    rows, width = weight.shape
    size = max(1, min(rows, GATHERED // (width * table.shape[1])))
    entries = (layout.index.astype(jnp.int32), weight)
    sums = jax.lax.map(
        lambda entry: jnp.einsum("w,wm->m", entry[1], take(table, entry[0])), entries, batch_size=size
    )
    for level in layout.tree:
        padded = jnp.concatenate([sums, jnp.zeros((1, sums.shape[1]), sums.dtype)])
        sums = jax.lax.map(lambda row, padded=padded: take(padded, row).sum(axis=0), level, batch_size=size)
    return sums
