"""Softmax attention in token space: the loss depends on E only through two vectors of length V.

    f(X) = Σ_s q_s(X) γ_s,   q_s(X) = count_s(X) exp(a_s) / Σ_r count_r(X) exp(a_r),

with scores a = E p and values γ = E v. No array of shape (n, T, d) is formed, and no array of shape (n, V),
except for the counts of a corpus that seeds share on a TPU. The forward and backward passes gather from the
corpus, which is stored by sequence and by token. On a large corpus, they use matrix products instead: one
product for the whole batch in a `jax.vmap`, such as a batch of seeds.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.attention import bands, batched
from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take


@jax.jit
def attend(corpus: Corpus, scores: Float[Array, " V"], values: Array) -> Array:
    """Average token values over each sequence with softmax attention, f = Σ_s q_s γ_s.

    To compute second derivatives on a large corpus, use forward-over-reverse mode.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,), of any finite spread.
        values: γ, (V,) or (V, K).

    Returns:
        f, (n,) or (n, K).

    Raises:
        InputError: scores or values do not have V rows.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.attention.attend(corpus, jnp.zeros(3), jnp.array([3.0, -1.0, 1.0])).tolist()
        [2.0, 0.0]
    """
    require_rows(corpus, scores=scores, values=values)
    columns = values[None] if values.ndim == 1 else values.T
    if backend.platform() == "cpu" and not corpus.bags.is_large:
        entries = tuple(per_entry(corpus, column) for column in columns)
        result = jnp.stack(attend_entries(corpus.bags, per_entry(corpus, scores), entries))
    else:
        result = _attend(corpus, scores, columns)
    return result[0] if values.ndim == 1 else result.T


def require_rows(corpus: Corpus, **arrays: Array) -> None:
    """Raise InputError unless the arrays have V rows, because gathers do not check bounds."""
    for name, x in arrays.items():
        if jnp.ndim(x) == 0 or len(x) != corpus.vocab_size:
            raise InputError(
                f"{name}: expected one row for each of {corpus.vocab_size} tokens, got shape {jnp.shape(x)}"
            )


@jax.custom_vjp
def _attend(corpus: Corpus, scores: Array, columns: Array) -> Array:
    return _forward(corpus, scores, columns)[0]


def _forward(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Any]:
    if not corpus.bags.is_large:
        averages, shift, normaliser = _forward_small(corpus, scores, columns)
    else:
        batch_of_one = batched.forward(corpus, scores[None], columns[None])
        averages, shift, normaliser = (x[0] for x in batch_of_one)
    return averages, (corpus, scores, columns, averages, shift, normaliser)


def _backward(residuals: Any, cotangents: Array) -> tuple[Any, ...]:
    corpus, *arrays, normaliser = residuals
    arrays.append(bands.divide(cotangents, normaliser))
    if not corpus.bags.is_large:
        return None, *_backward_small(corpus, *arrays)
    return None, *(x[0] for x in batched.backward(corpus, *(x[None] for x in arrays)))


_attend.defvjp(_forward, _backward)


# In the backward pass, an accelerator recomputes exponentials faster than it reads stored ones.
def _forward_small(corpus: Corpus, scores: Array, columns: Array) -> tuple[Array, Array, Array]:
    token = corpus.bags.index.astype(jnp.int32)
    columns_by_entry = (take(x, token) for x in columns)
    averages, top, normaliser, _ = corpus.bags.softmax(take(scores, token), *columns_by_entry)
    return jnp.stack(averages), top, normaliser


def _backward_small(
    corpus: Corpus, scores: Array, columns: Array, averages: Array, top: Array, d_sums: Array
) -> tuple[Array, Array]:
    """Compute ∂L/∂γ_s = Σ_X q_s ḡ_X and ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X), with attention q and ḡ = ∂L/∂f."""
    layout = corpus.occurrences
    sequence, weight = layout.index.astype(jnp.int32), occurrence_weights(corpus, scores, top)
    d_values = [weight * take(x, sequence) for x in d_sums]
    d_score = [
        d_value * (layout.spread(value) - take(average, sequence))
        for d_value, value, average in zip(d_values, columns, averages, strict=True)
    ]
    d_scores, *d_columns = layout.sum(sum(d_score[1:], d_score[0]), *d_values)
    return d_scores, jnp.stack(d_columns)


def occurrence_weights(corpus: Corpus, scores: Array, top: Array) -> Array:
    """Compute the unnormalised attention of each occurrence of a token, count · e^(a - top).

    `top` is the largest score in each sequence, as in `Ragged.softmax`.
    """
    layout = corpus.occurrences
    score = layout.spread(scores) - take(top, layout.index.astype(jnp.int32))
    return layout.count.astype(scores.dtype) * jnp.exp(jnp.where(layout.count > 0, score, -jnp.inf))


@jax.custom_vjp
def per_entry(corpus: Corpus, per_token: Array) -> Array:
    """Gather the per-token values, (V,), of all bag entries, (R, W).

    The derivative is summed over entries with a gather instead of a scatter.
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
    """Average entries with softmax attention, f = Σ_e q_e γ_e.

    Unlike in `attend`, each entry has its own score.

    Args:
        bags: bags of n sequences, with R rows of W entries.
        score: a, (R, W), of any finite spread.
        columns: γ, (R, W) each.

    Returns:
        One f, (n,), per column.
    """
    return bags.softmax(score, *columns)[0]


def _forward_entries(bags: Ragged, score: Array, columns: tuple[Array, ...]) -> tuple[Any, Any]:
    averages, _, normaliser, weight = bags.softmax(score, *columns)
    return averages, (bags, columns, averages, normaliser, weight)


def _backward_entries(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
    """Compute the cotangents of `attend_entries`, with attention q and ḡ = ∂L/∂f for each column γ.

    ∂L/∂γ_e = q_e ḡ,   ∂L/∂a_e = Σ_γ q_e ḡ (γ_e - f), summed over columns γ
    """
    bags, columns, averages, normaliser, weight = residuals
    d_columns = tuple(weight * bags.spread(g / normaliser) for g in cotangents)
    d_score = [
        d_value * (value - bags.spread(average))
        for d_value, value, average in zip(d_columns, columns, averages, strict=True)
    ]
    return None, sum(d_score[1:], d_score[0]), d_columns


attend_entries.defvjp(_forward_entries, _backward_entries)
