"""Softmax attention in token space: everything the loss needs of E is two V-vectors.

f(X) = Σ_s q_s(X) γ_s,   q_s(X) = count_s(X) exp(a_s) / Σ_r count_r(X) exp(a_r),

with scores a = E p and values γ = E v. No array of shape (n, T, d) or (n, V) is ever formed, and both
directions are gathers over the corpus's two layouts or, on a large corpus, products with them. There all
lanes of a `jax.vmap` with scores and values of their own, seeds for example, share these products.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import LARGE
from jaxattn.models import alone, lanes


@jax.jit
def attend(corpus: Corpus, scores: Float[Array, "V"], values: Array) -> Array:
    """Average values with softmax attention over every sequence, f = Σ_s q_s γ_s.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,); any finite spread.
        values: γ, (V,) or (V, K).

    Returns:
        f, (n,) or (n, K). Its derivative is hand-written in token space, gathers only; a second derivative
        on a large corpus must be taken forward over reverse.
    """
    columns = (values,) if values.ndim == 1 else tuple(values.T)
    result = _attend(corpus, scores, columns)
    return result[0] if values.ndim == 1 else jnp.stack(result, axis=1)


@jax.custom_vjp
def _attend(corpus: Corpus, scores: Array, columns: tuple[Array, ...]) -> tuple[Array, ...]:
    return _forward(corpus, scores, columns)[0]


def _forward(corpus, scores, columns):
    if corpus.bags.index.size < LARGE:
        averages, shift, normaliser = alone.forward(corpus, scores, columns)
    else:
        lane = lanes.forward(corpus, scores[None], jnp.stack(columns)[None])
        averages, shift, normaliser = (x[0] for x in lane)
    return tuple(averages), (corpus, scores, columns, tuple(averages), shift, normaliser)


def _backward(residuals, cotangents):
    """∂L/∂γ_s = Σ_X q_s ḡ_X and ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X), per column and summed over columns."""
    corpus, scores, columns, averages, shift, normaliser = residuals
    flows = tuple(g / normaliser for g in cotangents)
    if corpus.bags.index.size < LARGE:
        d_scores, d_columns = alone.backward(corpus, scores, columns, averages, shift, flows)
    else:
        columns, averages, flows = (jnp.stack(x)[None] for x in (columns, averages, flows))
        lane = lanes.backward(corpus, scores[None], columns, averages, shift[None], flows)
        d_scores, d_columns = (x[0] for x in lane)
    return None, d_scores, tuple(d_columns)


_attend.defvjp(_forward, _backward)
