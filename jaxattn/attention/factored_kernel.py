"""Self-attention on a large corpus with one shift per token, for scores that exp can span.

    w_sr = count_r(X) P_sr b_r / A_Xs,   P_sr = exp(G_sr - u_s - h_r),   b_r = exp(h_r - max h),

whatever the shifts u and h. One exponential for every pair of tokens of the vocabulary then serves all
sequences, and what is left are sums of products. With u = h = diag(G) / 2 a symmetric G makes P symmetric,
and P ≤ 1 if G = E Eᵀ: P_sr = exp(-|E_s - E_r|² / 2). Otherwise u is the largest score of a row, and h = 0.

A token attends to itself, so that A_Xs ≥ P_ss b_s. Scores are narrow if that is never much less than one.
"""

import jax.numpy as jnp
from jax import Array

from jaxattn.attention import banded_softmax, frequent_tokens
from jaxattn.data.corpus import Corpus


def is_narrow(gram: Array, symmetric: bool) -> Array:
    """Say whether one shift per token is enough: what underflows is then lost to rounding anyway. () bool.

    Args:
        gram: G, (V, V).
        symmetric: G is symmetric.
    """
    own, other = _shifts(gram, symmetric)
    itself = jnp.diagonal(gram) - own - other.max()
    return (itself.min() > -banded_softmax.width(gram.dtype)) & ((gram - own[:, None] - other).max() < 1)


def table(gram: Array, symmetric: bool) -> tuple[Array, Array]:
    """Compute P, (V, V), and b, (V,), from G, (V, V)."""
    own, other = _shifts(gram, symmetric)
    return jnp.exp(gram - own[:, None] - other), jnp.exp(other - other.max())


def forward(
    corpus: Corpus,
    window: frequent_tokens.Window,
    pairs: Array,
    key: Array,
    columns: tuple[Array, ...],
    symmetric: bool,
) -> tuple[tuple[Array, ...], Array]:
    """Compute x'_s(X) = Σ_r w_sr x_r for narrow scores.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        window: its window.
        pairs: P, (V, V).
        key: b, (V,).
        columns: x, (V,) each.
        symmetric: P is symmetric.

    Returns:
        One x', (R, W), per column, and A, (R, W), 1 at padding.
    """
    weighed = (key, *(key * x for x in columns))
    normaliser, *parts = frequent_tokens.forward(corpus, window, pairs, weighed, symmetric)
    normaliser = jnp.where(corpus.bags.count > 0, normaliser, 1)
    return tuple(x / normaliser for x in parts), normaliser


def backward(
    corpus: Corpus,
    window: frequent_tokens.Window,
    pairs: Array,
    key: Array,
    columns: tuple[Array, ...],
    pushes: tuple[Array, ...],
    drag: Array,
    symmetric: bool,
) -> tuple[Array, tuple[Array, ...]]:
    """Carry back what flows into x'.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        window: its window.
        pairs: P, (V, V).
        key: b, (V,).
        columns: x, (V,) each.
        pushes: x̄' / A, (R, W) per column; 0 at padding.
        drag: Σ_x x' x̄' / A, (R, W); 0 at padding.
        symmetric: P is symmetric; ∂L/∂G is then right only up to an antisymmetric matrix.

    Returns:
        ∂L/∂G, (V, V), and one ∂L/∂x, (V,), per column.
    """
    weighed = (key, *(key * x for x in columns))
    d_pairs, d_columns = frequent_tokens.backward(corpus, window, pairs, weighed, (-drag, *pushes), symmetric)
    return d_pairs * pairs, tuple(key * x for x in d_columns[1:])


def _shifts(gram: Array, symmetric: bool) -> tuple[Array, Array]:
    if symmetric:
        half = jnp.diagonal(gram) / 2
        return half, half
    return gram.max(axis=1), jnp.zeros(len(gram), gram.dtype)
