"""Softmax attention in token space: everything the loss needs of E is two V-vectors.

f(X) = Σ_s q_s(X) γ_s,   q_s(X) = count_s(X) exp(a_s) / Σ_r count_r(X) exp(a_r),

with scores a = E p and values γ = E v. No array of shape (n, T, d) or (n, V) is ever formed, and both
directions are gathers over the corpus's two layouts or, on a large corpus, products with them. There all
scores and values that a `jax.vmap` runs over, those of many seeds for example, share these products.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.attention import bands, batched
from jaxattn.attention.entries import attend_entries, per_entry
from jaxattn.data.corpus import Corpus


@jax.jit
def attend(corpus: Corpus, scores: Float[Array, "V"], values: Array) -> Array:
    """Average values with softmax attention over every sequence, f = Σ_s q_s γ_s.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,); any finite spread.
        values: γ, (V,) or (V, K).

    Returns:
        f, (n,) or (n, K). Its derivative is hand-written in token space and has no scatter. On a large
        corpus a second derivative must be taken forward over reverse.
    """
    columns = values[None] if values.ndim == 1 else values.T
    if corpus.bags.is_large:
        result = _attend_large(corpus, scores, columns)
    else:
        entries = tuple(per_entry(corpus, column) for column in columns)
        result = jnp.stack(attend_entries(corpus.bags, per_entry(corpus, scores), entries))
    return result[0] if values.ndim == 1 else result.T


@jax.custom_vjp
def _attend_large(corpus: Corpus, scores: Array, columns: Array) -> Array:
    return _forward(corpus, scores, columns)[0]


def _forward(corpus, scores, columns):
    batch_of_one = batched.forward(corpus, scores[None], columns[None])
    averages, shift, normaliser = (x[0] for x in batch_of_one)
    return averages, (corpus, scores, columns, averages, shift, normaliser)


def _backward(residuals, cotangents):
    corpus, *arrays, normaliser = residuals
    arrays.append(bands.divide(cotangents, normaliser))
    return None, *(x[0] for x in batched.backward(corpus, *(x[None] for x in arrays)))


_attend_large.defvjp(_forward, _backward)
