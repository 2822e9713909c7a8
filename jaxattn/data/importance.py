"""Token importance, such as the average signed frequency that one gradient step on E adds to E·v."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxattn.core.fractions import fraction, rounding
from jaxattn.data.corpus import Corpus


@jax.jit
def average_signed_frequency(corpus: Corpus) -> Float[Array, " V"] | Float[Array, "V K"]:
    """Compute the average signed frequency of each token, (V,) for two classes, else (V, K).

        K = 2:  α_s = (1/n) Σ_X y count_s(X) / T(X)
        K > 2:  α_{s,k} = (1/n) Σ_X count_s(X)/T(X) ((K-1)/K 1[y=k] - (1/K) 1[y≠k]).

    The result is exactly 0 if the contributions cancel. If no length divides the longest one, they cancel up
    to the tolerance `jaxattn.core.fractions.rounding`, relative to Σ_X count_s(X) / T(X).

    Source:
        Definition of α_s in arXiv 2505.17282; for K classes, its public review thread.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.average_signed_frequency(corpus).tolist()
        [0.25, -0.25, 0.0]
    """
    longest = corpus.lengths.max()
    # Weights are relative to the longest sequence. If all lengths are equal, weights are exactly 1 and sums
    # of counts are exact.
    weight = longest / corpus.lengths.astype(float)
    scale = 1 / (corpus.num_examples * longest.astype(float))
    exact = (weight == jnp.round(weight)).all()
    (frequency,) = corpus.occurrences.dot(weight)
    rounded = jnp.where(exact, 0, rounding(weight.dtype)) * frequency * scale
    if corpus.num_classes == 2:
        alpha = corpus.occurrences.dot(corpus.targets * weight)[0] * scale
        return jnp.where(jnp.abs(alpha) <= rounded, 0, alpha)
    by_class = jnp.stack(corpus.occurrences.dot(*(_indicators(corpus) * weight)), axis=1)
    differences = by_class[:, :, None] - by_class[:, None, :]
    alpha = differences.mean(axis=2) * scale
    return jnp.where(jnp.abs(alpha) <= rounded[:, None], 0, alpha)


@jax.jit
def class_counts(corpus: Corpus) -> Float[Array, "V K"]:
    """Count the occurrences of each token in each class, (V, K). For two classes, class -1 comes first.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.class_counts(corpus).tolist()
        [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    return jnp.stack(corpus.occurrences.dot(*_indicators(corpus)), axis=1)


@jax.jit
def token_counts(corpus: Corpus) -> Float[Array, " V"]:
    """Count the occurrences of each token.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.token_counts(corpus).tolist()
        [1.0, 1.0, 2.0]
    """
    return corpus.occurrences.dot(jnp.ones(corpus.num_examples))[0]


@jax.jit
def posterior_difference(corpus: Corpus) -> Float[Array, " V"] | Float[Array, "V K"]:
    """Compute the posterior difference of each token from its occurrences, (V,) for two classes, else (V, K).

        K = 2:  P(1|s) - P(-1|s) = (n⁺_s - n⁻_s) / (n⁺_s + n⁻_s)
        K > 2:  P(k|s) - mean_{j≠k} P(j|s).

    Here n⁺_s and n⁻_s count the occurrences of s in sequences with label +1 and -1. The result is a single
    division of two integers, so equal fractions are equal floats. It is NaN for a token that never occurs.

    Source:
        x-axis of the figures in the experiments of arXiv 2505.17282. The extension to K classes is
        original to this library.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.posterior_difference(corpus).tolist()
        [1.0, -1.0, 0.0]
    """
    counts = class_counts(corpus)
    classes = corpus.num_classes
    total = counts.sum(axis=1, keepdims=True)
    against_rest = fraction(classes * counts - total, (classes - 1) * total)
    return against_rest[:, 1] if classes == 2 else against_rest


@jax.jit
def completely_relevant(corpus: Corpus) -> Bool[Array, "V K"]:
    """Return a mask of the tokens that occur in only one class, (V, K).

    For two classes, class -1 comes first.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.completely_relevant(corpus).tolist()
        [[False, True], [True, False], [False, False]]
    """
    counts = class_counts(corpus)
    return (counts > 0) & (counts == counts.sum(axis=1, keepdims=True))


@jax.jit
def irrelevant(corpus: Corpus) -> Bool[Array, " V"]:
    """Return a mask of the tokens with an average signed frequency of exactly 0 for every class.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> ja.data.irrelevant(corpus).tolist()
        [False, False, True]
    """
    alpha = average_signed_frequency(corpus)
    return alpha == 0 if alpha.ndim == 1 else (alpha == 0).all(axis=1)


def _indicators(corpus: Corpus) -> Float[Array, "K n"]:
    return jax.nn.one_hot(corpus.class_index, corpus.num_classes, dtype=float).T
