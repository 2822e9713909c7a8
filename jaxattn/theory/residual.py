"""How a classification loss pulls at outputs far along a path, on the host, without underflow."""

from typing import NamedTuple

import numpy as np


class Residual(NamedTuple):
    """First and second derivatives of the loss ℓ(f) of n sequences with C columns of outputs.

        -∂ℓ/∂f = e^log_size · direction,    ∂²ℓ/∂f² = Σ_j e^log_weight_j modes_j modes_jᵀ.

    C is 1 for two classes, logistic loss, and K for K > 2, cross-entropy.

    Attributes:
        direction: (n, C); sizes of order one.
        log_size: (n,).
        modes: (n, M, C).
        log_weight: (n, M).
    """

    direction: np.ndarray
    log_size: np.ndarray
    modes: np.ndarray
    log_weight: np.ndarray


def residual(f: np.ndarray, labels: np.ndarray, num_classes: int) -> Residual:
    """Differentiate the loss of outputs.

    Logistic:       -∂ℓ/∂f = y σ(-y f),     ∂²ℓ/∂f² = σ(y f) σ(-y f).
    Cross-entropy:  -∂ℓ/∂f = e_y - π = (1 - π_y) (e_y - π'),   ∂²ℓ/∂f² = Σ_k π_k (e_k - π)(e_k - π)ᵀ,

    with π = softmax(f) and π' the softmax over the other classes than y.

    Args:
        f: (n, C) float64.
        labels: (n,) int; -1 and +1 for two classes, 0 .. K-1 for more.
        num_classes: K.

    Returns:
        Both derivatives.
    """
    if num_classes == 2:
        agreement = labels * f[:, 0]
        log_size = -np.logaddexp(0, agreement)
        log_weight = log_size - np.logaddexp(0, -agreement)
        return Residual(1.0 * labels[:, None], log_size, np.ones((len(f), 1, 1)), log_weight[:, None])
    own = np.eye(num_classes)[labels]
    log_pi = f - np.logaddexp.reduce(f, axis=1, keepdims=True)
    log_size = np.logaddexp.reduce(np.where(own > 0, -np.inf, log_pi), axis=1)
    others = np.where(own > 0, 0, np.exp(log_pi - log_size[:, None]))
    # e_k - π, where 1 - π_y is known without cancellation.
    missing = np.where(own > 0, np.exp(log_size)[:, None], 1 - np.exp(log_pi))
    identity = np.eye(num_classes)
    modes = np.where(identity > 0, missing[:, :, None], -np.exp(log_pi)[:, None, :])
    return Residual(own - others, log_size, modes, log_pi)
