"""Softmax averages where every entry of a bag has a score and values of its own."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.ragged import Ragged


def softmax_average(
    bags: Ragged, score: Array, columns: tuple[Array, ...]
) -> tuple[tuple[Array, ...], Array, Array]:
    """Average the entries of every sequence with weights count · exp(score), whatever the spread of scores.

    Args:
        bags: which tokens a sequence holds, R rows of W entries.
        score: (R, W).
        columns: (R, W) each.

    Returns:
        One (n,) average per column; the shift of every sequence, its top score, (n,); and the sum of its
        shifted weights, (n,). The shift is kept apart from the sum: added up in logarithms they would round
        away what tells close scores of size 1e4 apart in float32.
    """
    score = jnp.where(bags.count > 0, score, -jnp.inf)
    top = bags.max(score)
    # A padding sequence has no token; a shift of 0 keeps its weights at exp(-inf) = 0.
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0))
    weight = bags.count.astype(score.dtype) * jnp.exp(score - bags.spread(top))
    normaliser, *sums = bags.sum(weight, *(weight * x for x in columns))
    return tuple(x / normaliser for x in sums), top, normaliser


@jax.custom_vjp
def attend_entries(bags: Ragged, score: Array, columns: tuple[Array, ...]) -> tuple[Array, ...]:
    """Average entries with softmax attention, f = Σ_e q_e γ_e: `attend` where every entry has its own score.

    Args:
        bags: which tokens a sequence holds, R rows of W entries.
        score: a, (R, W); any finite spread.
        columns: γ, (R, W) each.

    Returns:
        One f, (n,), per column. Its derivative is hand-written and needs no scatter.
    """
    return softmax_average(bags, score, columns)[0]


def _forward(bags, score, columns):
    averages, top, normaliser = softmax_average(bags, score, columns)
    return averages, (bags, score, columns, averages, top, normaliser)


def _backward(residuals, cotangents):
    """∂L/∂γ_e = q_e ḡ and ∂L/∂a_e = q_e ḡ (γ_e - f), summed over columns."""
    bags, score, columns, averages, top, normaliser = residuals
    score = jnp.where(bags.count > 0, score, -jnp.inf)
    weight = bags.count.astype(score.dtype) * jnp.exp(score - bags.spread(top))
    d_columns = tuple(weight * bags.spread(g / normaliser) for g in cotangents)
    d_score = [
        d_value * (value - bags.spread(average))
        for d_value, value, average in zip(d_columns, columns, averages, strict=True)
    ]
    return None, sum(d_score[1:], d_score[0]), d_columns


attend_entries.defvjp(_forward, _backward)
