"""Losses of logits and labels, averaged over sequences, evenly or with weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Weights = Float[Array, "n"] | None


def logistic(logits: Float[Array, "n"], labels: Int[Array, "n"], weights: Weights = None) -> Float[Array, ""]:
    """Compute the mean logistic loss, L = (1/n) Σ log(1 + exp(-y f)).

    Args:
        logits: f, (n,).
        labels: y ∈ {-1, +1}, (n,).
        weights: of the sequences, (n,), instead of 1/n for each.

    Returns:
        The loss, a scalar of the logits' dtype.
    """
    return _mean(jax.nn.softplus(-labels * logits), weights)


def cross_entropy(
    logits: Float[Array, "n K"], labels: Int[Array, "n"], weights: Weights = None
) -> Float[Array, ""]:
    """Compute the mean K-class cross-entropy, L = (1/n) Σ (logsumexp_k f_k - f_y).

    Args:
        logits: f, (n, K).
        labels: y ∈ {0 .. K-1}, (n,).
        weights: of the sequences, (n,), instead of 1/n for each.

    Returns:
        The loss, a scalar of the logits' dtype.
    """
    of_label = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return _mean(jax.nn.logsumexp(logits, axis=1) - of_label, weights)


def classification(logits: Array, labels: Int[Array, "n"], weights: Weights = None) -> Float[Array, ""]:
    """Compute the logistic loss of logits (n,) or the cross-entropy of logits (n, K)."""
    return (logistic if logits.ndim == 1 else cross_entropy)(logits, labels, weights)


def _mean(x: Float[Array, "n"], weights: Weights) -> Float[Array, ""]:
    return x.mean() if weights is None else x @ weights.astype(x.dtype)


def accuracy(logits: Array, labels: Int[Array, "n"]) -> Float[Array, ""]:
    """Compute the share of right predictions: sign of logits (n,), largest of logits (n, K).

    A logit of exactly 0 counts as wrong.
    """
    right = labels * logits > 0 if logits.ndim == 1 else logits.argmax(axis=1) == labels
    return right.mean(dtype=logits.dtype)
