"""Self-attention on a large corpus with one shift per token, for scores that exp can span.

    w_sr = count_r(X) P_sr b_r / A_Xs,   P_sr = exp(G_sr - u_s - h_r),   b_r = exp(h_r - max h),

whatever the shifts u and h. The kernel P, one exponential for every pair of tokens of the vocabulary, then
serves all sequences, and what is left are sums of products. With u = h = diag(G) / 2 a symmetric G makes P
symmetric, and P ≤ 1 if G = E Eᵀ: P_sr = exp(-|E_s - E_r|² / 2), the Gaussian kernel. Otherwise u is the
largest score of a row, and h = 0.

A token attends to itself, so that A_Xs ≥ P_ss b_s. The factors are safe if that is never much less than one.
"""

import jax.numpy as jnp
from jax import Array

from jaxattn.attention import bands, frequent_tokens
from jaxattn.attention.frequent_tokens import FrequentTokens
from jaxattn.data.corpus import Corpus


def is_safe(gram: Array, symmetric: bool) -> Array:
    """Say whether one shift per token is enough: what underflows is then lost to rounding anyway. () bool.

    Args:
        gram: G, (V, V).
        symmetric: G is symmetric.
    """
    own, other = _shifts(gram, symmetric)
    itself = jnp.diagonal(gram) - own - other.max()
    return (itself.min() > -bands.width(gram.dtype)) & ((gram - own[:, None] - other).max() < 1)


def factors(gram: Array, symmetric: bool) -> tuple[Array, Array]:
    """Compute P, (V, V), and b, (V,), from G, (V, V)."""
    own, other = _shifts(gram, symmetric)
    return jnp.exp(gram - own[:, None] - other), jnp.exp(other - other.max())


def forward(
    corpus: Corpus,
    frequent: FrequentTokens,
    kernel: Array,
    key_weight: Array,
    columns: tuple[Array, ...],
    symmetric: bool,
) -> tuple[tuple[Array, ...], Array]:
    """Compute x'_s(X) = Σ_r w_sr x_r.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        frequent: its most frequent tokens.
        kernel: P, (V, V).
        key_weight: b, (V,).
        columns: x, (V,) each.
        symmetric: P is symmetric.

    Returns:
        One x', (R, W), per column, and A, (R, W), 1 at padding.
    """
    weighted = (key_weight, *(key_weight * x for x in columns))
    normaliser, *sums = frequent_tokens.forward(corpus, frequent, kernel, weighted, symmetric)
    normaliser = jnp.where(corpus.bags.count > 0, normaliser, 1)
    return tuple(x / normaliser for x in sums), normaliser


def backward(
    corpus: Corpus,
    frequent: FrequentTokens,
    kernel: Array,
    key_weight: Array,
    columns: tuple[Array, ...],
    d_sums: tuple[Array, ...],
    delta: Array,
    symmetric: bool,
) -> tuple[Array, tuple[Array, ...]]:
    """Compute the cotangents of G and x.

    Args:
        corpus: n sequences over V tokens, R rows of W entries.
        frequent: its most frequent tokens.
        kernel: P, (V, V).
        key_weight: b, (V,).
        columns: x, (V,) each.
        d_sums: x̄' / A, (R, W) per column; 0 at padding.
        delta: Σ_x x' x̄' / A, (R, W), minus the cotangent of A; 0 at padding.
        symmetric: P is symmetric; ∂L/∂G is then right only up to an antisymmetric matrix.

    Returns:
        ∂L/∂G, (V, V), and one ∂L/∂x, (V,), per column.
    """
    weighted = (key_weight, *(key_weight * x for x in columns))
    cotangents = (-delta, *d_sums)
    d_kernel, d_weighted = frequent_tokens.backward(corpus, frequent, kernel, weighted, cotangents, symmetric)
    return d_kernel * kernel, tuple(key_weight * x for x in d_weighted[1:])


def _shifts(gram: Array, symmetric: bool) -> tuple[Array, Array]:
    if symmetric:
        half = jnp.diagonal(gram) / 2
        return half, half
    return gram.max(axis=1), jnp.zeros(len(gram), gram.dtype)
