"""Softmax attention in token space: everything the loss needs of E is two V-vectors.

f(X) = Σ_s q_s(X) γ_s,   q_s(X) = count_s(X) exp(a_s) / Σ_r count_r(X) exp(a_r),

with scores a = E p and values γ = E v. No array of shape (n, T, d) or (n, V) is ever formed, and both
directions are gathers over the corpus's two layouts.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.data.corpus import Corpus
from jaxattn.data.ragged import Ragged, take

# Below this many entries one path serves all scores; above it, choosing the cheap path pays.
LARGE = 1 << 18


@jax.jit
def attend(corpus: Corpus, scores: Float[Array, "V"], values: Array) -> Array:
    """Average values with softmax attention over every sequence, f = Σ_s q_s γ_s.

    Args:
        corpus: n sequences over V tokens.
        scores: a, (V,); any finite spread.
        values: γ, (V,) or (V, K).

    Returns:
        f, (n,) or (n, K). Its derivative is a hand-written gather in token space.
    """
    columns = (values,) if values.ndim == 1 else tuple(values.T)
    result = _attend(corpus, scores, columns)
    return result[0] if values.ndim == 1 else jnp.stack(result, axis=1)


@jax.custom_vjp
def _attend(corpus: Corpus, scores: Array, columns: tuple[Array, ...]) -> tuple[Array, ...]:
    return _forward(corpus, scores, columns)[0]


def _forward(corpus, scores, columns):
    if corpus.bags.index.size < LARGE:
        averages, shift, normaliser = _forward_any(corpus, scores, columns)
    else:
        highest = scores.max()
        weight = jnp.exp(scores - highest)
        # Computed outside the branches, these vectors cannot be fused into the gathers that read them.
        weighted = (weight, *(weight * x for x in columns))
        averages, shift, normaliser = jax.lax.cond(
            _is_narrow(scores),
            lambda *operands: _forward_narrow(corpus, *operands[2:]),
            lambda *operands: _forward_any(corpus, *operands[:2]),
            scores,
            columns,
            highest,
            weighted,
        )
    return averages, (corpus, scores, columns, averages, shift, normaliser)


def _backward(residuals, cotangents):
    """∂L/∂γ_s = Σ_X q_s ḡ_X and ∂L/∂a_s = Σ_X q_s ḡ_X (γ_s - f_X), per column and summed over columns."""
    corpus, scores, columns, averages, shift, normaliser = residuals
    flows = tuple(g / normaliser for g in cotangents)
    if corpus.bags.index.size < LARGE:
        d_scores, d_columns = _backward_any(corpus, scores, columns, averages, shift, flows)
    else:
        highest = scores.max()
        pull = sum(flow * average for flow, average in zip(flows, averages, strict=True))
        d_scores, d_columns = jax.lax.cond(
            _is_narrow(scores),
            lambda *operands: _backward_narrow(corpus, scores - highest, columns, *operands),
            lambda _, flows: _backward_any(corpus, scores, columns, averages, shift, flows),
            pull,
            flows,
        )
    return None, d_scores, d_columns


_attend.defvjp(_forward, _backward)


def _is_narrow(scores: Array) -> Array:
    """Whether one global shift keeps exp(a) in range for every sequence."""
    return scores.max() - scores.min() < 0.7 * math.log(jnp.finfo(scores.dtype).max)


def _forward_any(corpus, scores, columns):
    token = corpus.bags.index.astype(jnp.int32)
    return average(corpus.bags, take(scores, token), tuple(take(x, token) for x in columns))


def average(bags: Ragged, score: Array, columns: tuple[Array, ...]) -> tuple[tuple[Array, ...], Array, Array]:
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
def read_out(bags: Ragged, score: Array, columns: tuple[Array, ...]) -> tuple[Array, ...]:
    """Average entries with softmax attention, f = Σ_e q_e γ_e: `attend` where every entry has its own score.

    Args:
        bags: which tokens a sequence holds, R rows of W entries.
        score: a, (R, W); any finite spread.
        columns: γ, (R, W) each.

    Returns:
        One f, (n,), per column. Its derivative is hand-written and needs no scatter.
    """
    return average(bags, score, columns)[0]


def _read_forward(bags, score, columns):
    averages, top, normaliser = average(bags, score, columns)
    return averages, (bags, score, columns, averages, top, normaliser)


def _read_backward(residuals, cotangents):
    """∂L/∂γ_e = q_e ḡ and ∂L/∂a_e = q_e ḡ (γ_e - f), summed over columns."""
    bags, score, columns, averages, top, normaliser = residuals
    score = jnp.where(bags.count > 0, score, -jnp.inf)
    weight = bags.count.astype(score.dtype) * jnp.exp(score - bags.spread(top))
    d_columns = tuple(weight * bags.spread(g / normaliser) for g in cotangents)
    pulls = [
        flow * (value - bags.spread(mean))
        for flow, value, mean in zip(d_columns, columns, averages, strict=True)
    ]
    return None, sum(pulls[1:], pulls[0]), d_columns


read_out.defvjp(_read_forward, _read_backward)


def _backward_any(corpus, scores, columns, averages, top, flows):
    layout = corpus.occurrences
    sequence = layout.index.astype(jnp.int32)
    score = jnp.where(layout.count > 0, layout.spread(scores) - take(top, sequence), -jnp.inf)
    weight = layout.count.astype(scores.dtype) * jnp.exp(score)
    weighted = [weight * take(flow, sequence) for flow in flows]
    pulls = [
        flow * (layout.spread(value) - take(average, sequence))
        for flow, value, average in zip(weighted, columns, averages, strict=True)
    ]
    d_scores, *d_columns = layout.sum(sum(pulls[1:], pulls[0]), *weighted)
    return d_scores, tuple(d_columns)


def _forward_narrow(corpus, highest, weighted):
    normaliser, *sums = corpus.bags.dot(*weighted)
    return tuple(x / normaliser for x in sums), jnp.broadcast_to(highest, normaliser.shape), normaliser


def _backward_narrow(corpus, log_weight, columns, pull, flows):
    pulled, *d_columns = corpus.occurrences.dot(pull, *flows)
    weight = jnp.exp(log_weight)
    pushed = sum(value * flow for value, flow in zip(columns, d_columns, strict=True))
    return weight * (pushed - pulled), tuple(weight * x for x in d_columns)
