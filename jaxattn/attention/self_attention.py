"""Parameter-free self-attention before the read-out, in one of two forms, whichever takes less.

`row_attention` multiplies rows of tokens that meet in a sequence, as often as they meet; `gram_attention`
takes all V² products once, and looks up those of every pair.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn import backend
from jaxattn.attention import gram_attention, row_attention
from jaxattn.attention.bag_softmax import attend_entries
from jaxattn.attention.gram import gram_matrix
from jaxattn.data.corpus import Corpus

# Positions in the Gram matrix are 32-bit numbers.
MOST_TOKENS = 46_340
# What the forms cost on a CPU, in multiplications of a product of matrices, both directions together. The row
# form takes so many for every pair, some of them d times; the Gram form d times some for every number of the
# Gram matrix, and others to look up every pair and add to it, far fewer where frequent tokens are apart.
ROWS, ROWS_PER_DIM = 650, 4.0
GRAM_PER_DIM, LOOK_UP, LOOK_UP_IF_LARGE = 1.6, 2500, 800


@partial(jax.jit, static_argnames="residual")
def two_layer_attention(
    corpus: Corpus,
    queries: Float[Array, "V d"],
    keys: Float[Array, "V d"] | None,
    scores: Float[Array, "V"],
    values: Array,
    *,
    residual: bool,
) -> Array:
    """Mix scores and values by self-attention, x' = Softmax(Q_X K_Xᵀ) x_X, then attend to what was mixed.

    Args:
        corpus: n sequences over V tokens.
        queries: Q, (V, d); products with K may have any finite spread.
        keys: K, (V, d); Q if None.
        scores: a, (V,); any finite spread.
        values: γ, (V,) or (V, K).
        residual: add what was mixed, x' + x_X.

    Returns:
        f, (n,) or (n, K).
    """
    columns = (scores, values) if values.ndim == 1 else (scores, *values.T)
    if prefers_gram(corpus, queries.shape[1]):
        gram = gram_matrix(queries) if keys is None else queries @ keys.T
        score, *mixed = gram_attention.attend_within(corpus, gram, columns, keys is None, residual)
    else:
        score, *mixed = row_attention.attend_within(corpus, queries, keys, columns, residual)
    result = attend_entries(corpus.bags, score, tuple(mixed))
    return result[0] if values.ndim == 1 else jnp.stack(result, axis=1)


def prefers_gram(corpus: Corpus, dim: int) -> bool:
    """Tell whether all V² products cost less than those of the pairs of tokens that meet.

    An accelerator never does: its atomic additions to the Gram matrix cost more than the products.
    """
    if backend.platform() != "cpu" or corpus.vocab_size > MOST_TOKENS:
        return False
    look_up = LOOK_UP if corpus.bags.factors is None else LOOK_UP_IF_LARGE
    by_gram = corpus.vocab_size**2 * GRAM_PER_DIM * dim + corpus.num_pairs * look_up
    return by_gram < corpus.num_pairs * (ROWS + ROWS_PER_DIM * dim)
