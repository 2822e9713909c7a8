"""Parameter-free self-attention from rows of E: only tokens that meet in a sequence are multiplied.

A block of sequences gathers its rows E_X and takes G_X = Q_X K_Xᵀ, a product of matrices for every sequence.
Scalars x are mixed by it, and never rows. The backward pass takes G_X again, and

    ∂L/∂Q_X = D K_X,   ∂L/∂K_X = Dᵀ Q_X,   D_sr = w_sr Σ_x x̄'_s (x_r - x'_s),

are products again, whose rows are summed by token. No array of V² numbers, or of one for every pair of the
corpus, is ever formed, and on accelerators nothing is added by a scatter.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jax.lax import optimization_barrier

from jaxattn import backend
from jaxattn.attention import sequence_blocks
from jaxattn.attention.sequence_blocks import Block
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import ragged, take

# Entries in a row of the layout that sums by token: most tokens are in few of the sequences of a block.
WIDTH = 8


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend_within(
    corpus: Corpus, queries: Array, keys: Array | None, columns: tuple[Array, ...], residual: bool
) -> tuple[Array, ...]:
    """Attend from every distinct token of every sequence to all of its tokens, x' = Softmax(G_X) x_X (+ x_X).

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        queries: Q, (V, d); G = Q Kᵀ, of any finite spread.
        keys: K, (V, d); Q if None.
        columns: x, (V,) each.
        residual: add x_s.

    Returns:
        One x', (R, W), per column; any finite number at padding.
    """
    return _forward(corpus, queries, keys, columns, residual)[0]


def _forward(corpus, queries, keys, columns, residual):
    compute = _one_by_one_if_many_blocks(partial(_mixed, residual=residual), corpus, queries)
    return compute(corpus, queries, keys, columns), (corpus, queries, keys, columns)


def _backward(residual, residuals, cotangents):
    corpus, queries, keys, columns = residuals
    compute = _one_by_one_if_many_blocks(partial(_cotangents, residual=residual), corpus, queries)
    return None, *compute(corpus, queries, keys, columns, cotangents)


attend_within.defvjp(_forward, _backward)


def _one_by_one_if_many_blocks(function, corpus, queries):
    """Let `jax.vmap` loop where there are loops already, which would all end with the longest."""
    return function if sequence_blocks.is_one(corpus.bags, queries.shape[1]) else sequential_vmap(function)


def _mixed(corpus, queries, keys, columns, *, residual):
    def visit(carry: tuple[Array, ...], block: Block) -> tuple[Array, ...]:
        _, _, _, values, mixed = _attention(block, queries, keys, columns)
        mixed = mixed + values if residual else mixed
        return tuple(block.put(x, mixed[:, :, k]) for k, x in enumerate(carry))

    start = tuple(jnp.zeros(corpus.bags.index.shape, x.dtype) for x in columns)
    return sequence_blocks.fold(corpus.bags, queries.shape[1], visit, start)


def _cotangents(corpus, queries, keys, columns, cotangents, *, residual):
    def visit(carry: Any, block: Block) -> Any:
        present = block.counts[:, :, None] > 0
        d_mixed = jnp.where(present, jnp.stack([block.take(x) for x in cotangents], axis=2), 0)
        q, k, weight, values, mixed = _attention(block, queries, keys, columns)
        d_weight = jnp.einsum("bsk,brk->bsr", d_mixed, values)
        d_gram = weight * (d_weight - (d_mixed * mixed).sum(axis=2, keepdims=True))
        d_values = jnp.einsum("bsr,bsk->brk", weight, d_mixed)
        if residual:
            d_values += d_mixed
        if keys is None:
            d_gram = optimization_barrier(d_gram)
            d_rows = [jnp.einsum("bsr,brd->bsd", d_gram + jnp.swapaxes(d_gram, 1, 2), q)]
        else:
            d_rows = [jnp.einsum("bsr,brd->bsd", d_gram, k), jnp.einsum("bsr,bsd->brd", d_gram, q)]
        return _add_by_token(carry, block, (*d_rows, d_values))

    tables = (queries,) if keys is None else (queries, keys)
    start = (*map(jnp.zeros_like, tables), jnp.zeros((corpus.vocab_size, len(columns)), queries.dtype))
    *d_tables, d_columns = sequence_blocks.fold(corpus.bags, queries.shape[1], visit, start)
    return d_tables[0], d_tables[1] if keys is not None else None, tuple(d_columns.T)


def _attention(block: Block, queries, keys, columns):
    """Gather rows (B, U, d) of Q and K, and compute w, (B, U, U), and x and x', (B, U, columns)."""
    q = optimization_barrier(take(queries, block.tokens))
    k = q if keys is None else optimization_barrier(take(keys, block.tokens))
    count = block.counts[:, None, :].astype(q.dtype)
    logit = jnp.where(count > 0, jnp.einsum("bsd,brd->bsr", q, k), -jnp.inf)
    # A sequence that is not there has no top.
    top = jnp.maximum(logit.max(axis=2, keepdims=True), jnp.finfo(q.dtype).min)
    weight = optimization_barrier(count * jnp.exp(logit - top))
    normaliser = weight.sum(axis=2, keepdims=True)
    weight = weight / jnp.where(normaliser > 0, normaliser, 1)
    values = jnp.stack([take(x, block.tokens) for x in columns], axis=2)
    return q, k, weight, values, jnp.einsum("bsr,brk->bsk", weight, values)


def _add_by_token(totals: tuple[Array, ...], block: Block, rows: tuple[Array, ...]) -> tuple[Array, ...]:
    """Add rows (B, U, .) to the rows (V, .) of their tokens."""
    vocab_size = len(totals[0])
    token = jnp.where(block.counts > 0, block.tokens, vocab_size).ravel()
    flat = [x.reshape(len(token), -1) for x in rows]
    if backend.platform() == "cpu":
        return tuple(x.at[token].add(y, mode="drop") for x, y in zip(totals, flat, strict=True))
    order = jnp.argsort(token)
    by_token, _ = ragged(
        token[order],
        order,
        (token[order] < vocab_size).astype(jnp.int32),
        segments=vocab_size,
        indices=len(token),
        longest=len(block.tokens),
        width=WIDTH,
    )
    return tuple(x + by_token.gathered_sums(y) for x, y in zip(totals, flat, strict=True))
