"""Attention on the entries of a corpus, each with a score and values: an exponential for every entry."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take


@jax.custom_vjp
def per_entry(corpus: Corpus, per_token: Array) -> Array:
    """Give every entry of the bags the number of its token.

    Args:
        corpus: n sequences over V tokens; bags of R rows of W entries.
        per_token: (V,).

    Returns:
        (R, W). Its derivative sums entries by token with one gather and no scatter.
    """
    return _per_entry(corpus, per_token)


def _per_entry(corpus: Corpus, per_token: Array) -> Array:
    return take(per_token, corpus.bags.index.astype(jnp.int32))


def _per_entry_backward(corpus: Corpus, cotangent: Array) -> tuple[Any, ...]:
    occurrences = corpus.occurrences
    gathered = take(cotangent.ravel(), corpus.occurrence_to_bag)
    return None, *occurrences.sum(jnp.where(occurrences.count > 0, gathered, 0))


per_entry.defvjp(lambda corpus, per_token: (_per_entry(corpus, per_token), corpus), _per_entry_backward)


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
    return bags.softmax(score, *columns)[0]


def _forward(bags: Ragged, score: Array, columns: tuple[Array, ...]) -> tuple[Any, Any]:
    averages, _, normaliser, weight = bags.softmax(score, *columns)
    return averages, (bags, columns, averages, normaliser, weight)


def _backward(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    """∂L/∂γ_e = q_e ḡ and ∂L/∂a_e = q_e ḡ (γ_e - f), summed over columns."""
    bags, columns, averages, normaliser, weight = residuals
    d_columns = tuple(weight * bags.spread(g / normaliser) for g in cotangents)
    d_score = [
        d_value * (value - bags.spread(average))
        for d_value, value, average in zip(d_columns, columns, averages, strict=True)
    ]
    return None, sum(d_score[1:], d_score[0]), d_columns


attend_entries.defvjp(_forward, _backward)
