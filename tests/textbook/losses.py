"""Losses of one example and their derivatives, for a label from the smoothed distribution.

Two classes have one output f, (1,), and labels ±1. K classes have outputs f, (K,), and labels 0 to K - 1.
"""

import numpy as np


def loss(name, f, label, smoothing=0.0):
    """Return the expected loss and its derivative, (C,), for a label from (1 - ε) δ_y + ε/K."""
    two = len(f) == 1
    classes = (-1, 1) if two else range(len(f))
    value, derivative = 0.0, np.zeros_like(f)
    for c in classes:
        weight = (1 - smoothing) * (c == label) + smoothing / len(classes)
        if weight:
            one, d_one = (of_margin if two else of_classes)(name, f, c)
            value, derivative = value + weight * one, derivative + weight * d_one
    return value, derivative


def of_margin(name, f, y):
    """Return the loss as a function of the margin m = y f, and its derivative in f."""
    m = y * f[0]
    value, d_margin = {
        "logistic": lambda: (np.logaddexp(0, -m), -np.exp(-np.logaddexp(0, m))),
        "exponential": lambda: (np.exp(-m), -np.exp(-m)),
        "squared": lambda: ((1 - m) ** 2 / 2, m - 1),
        "hinge": lambda: (max(0.0, 1 - m), -float(m < 1)),
    }["logistic" if name == "classification" else name]()
    return value, np.array([y * d_margin])


def of_classes(name, f, y):
    """Return the loss for class y of K, and its derivative in f."""
    own = np.eye(len(f))[y]
    others = np.where(own == 1, -np.inf, f)
    if name in ("classification", "cross_entropy"):
        q = np.exp(f - f.max()) / np.exp(f - f.max()).sum()
        return f.max() + np.log(np.exp(f - f.max()).sum()) - f[y], q - own
    if name == "exponential":
        terms = np.exp(others - f[y])
        return terms.sum(), terms - terms.sum() * own
    if name == "squared":
        return ((f - own) ** 2).sum() / 2, f - own
    rival = np.eye(len(f))[others.argmax()]
    excess = 1 + others.max() - f[y]
    return max(0.0, excess), (excess > 0) * (rival - own)
