"""Products with the rows of a table that belong to the tokens a minibatch holds, a few thousand of V."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jaxtyping import Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import take

# Rows multiplied at once.
ROWS = 512


def product(corpus: Corpus, table: Float[Array, "V d"], matrix: Float[Array, "d m"]) -> Float[Array, "V m"]:
    """Multiply the rows of tokens that a corpus holds with a matrix, E W.

    Args:
        corpus: n sequences over V tokens.
        table: E, (V, d).
        matrix: W, (d, m).

    Returns:
        (V, m), 0 for tokens that a minibatch does not hold. All rows are multiplied for other corpora, which
        hold most tokens, and for small tables.
    """
    if corpus.mean_entries is None or len(table) <= ROWS:
        return table @ matrix
    return _product(corpus, table, matrix)


@jax.custom_vjp
def _product(corpus, table, matrix):
    return _forward(corpus, table, matrix)[0]


def _forward(corpus, table, matrix):
    @sequential_vmap
    def compute(corpus, table, matrix):
        def visit(tokens: Array, own: Array, result: Array) -> Array:
            return result.at[tokens].set(take(table, own) @ matrix, mode="drop", unique_indices=True)

        return _fold(corpus, visit, jnp.zeros((len(table), matrix.shape[1]), table.dtype))

    return compute(corpus, table, matrix), (corpus, table, matrix)


def _backward(residuals, cotangent):
    """∂L/∂E_s = Ḡ_s Wᵀ and ∂L/∂W = Σ_s E_s Ḡ_sᵀ, for tokens s of the corpus."""

    @sequential_vmap
    def compute(corpus, table, matrix, cotangent):
        def visit(tokens: Array, own: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            d_table, d_matrix = carry
            held = jnp.where((tokens < len(table))[:, None], take(cotangent, own), 0)
            d_rows = held @ matrix.T
            d_table = d_table.at[tokens].set(d_rows, mode="drop", unique_indices=True)
            return d_table, d_matrix + take(table, own).T @ held

        return _fold(corpus, visit, (jnp.zeros_like(table), jnp.zeros_like(matrix)))

    return None, *compute(*residuals, cotangent)


_product.defvjp(_forward, _backward)


def _fold(corpus: Corpus, visit: Any, carry: Any) -> Any:
    """Fold over the tokens of a corpus, some at a time, carry = visit(tokens, existing ones, carry)."""
    bags, size = corpus.bags, corpus.vocab_size
    token = jnp.where(bags.count > 0, bags.index.astype(jnp.int32), size)
    # As numbers: a GPU has no atomic operation on booleans, and would compare and swap.
    is_held = jnp.zeros(size, jnp.int32).at[token].set(1, mode="drop") > 0
    # Filled up with a token that does not exist, which scatters drop.
    held = jnp.full(-(-size // ROWS) * ROWS, size, jnp.int32)
    place = jnp.where(is_held, jnp.cumsum(is_held, dtype=jnp.int32) - 1, len(held))
    held = held.at[place].set(jnp.arange(size, dtype=jnp.int32), mode="drop", unique_indices=True)

    def step(number: Array, carry: Any) -> Any:
        tokens = jax.lax.dynamic_slice_in_dim(held, number * ROWS, ROWS)
        return visit(tokens, jnp.minimum(tokens, size - 1), carry)

    return jax.lax.fori_loop(0, -(-is_held.sum() // ROWS), step, carry)
