"""Norms of the population gradient at the constructions for k-gram estimators, and their ratios."""

import numpy as np

from jaxattn.lab.results import judge


def norm(squares: np.ndarray) -> float:
    """Estimate a norm from unbiased estimates of its square, one per seed.

    Some of these estimates may be negative.
    """
    return float(np.sqrt(np.fmax(np.mean(squares), 0))) if len(squares) else np.nan


def left_out(function, *samples: np.ndarray) -> judge.Estimate:
    """Evaluate a function of samples that have one entry per seed, with a jackknife interval."""
    known = np.isfinite(samples).all(axis=0)
    samples = [np.asarray(x)[known] for x in samples]
    seeds = range(known.sum())
    return judge.jackknifed(
        [function(*samples), *(function(*(np.delete(x, s) for x in samples)) for s in seeds)]
    )


def ratio(squares: np.ndarray, others: np.ndarray) -> judge.Estimate:
    """Estimate the ratio of two norms from unbiased estimates of their squares, one per seed."""
    return left_out(lambda x, y: norm(x) / max(norm(y), 1e-4), squares, others)


def power(lengths: list[int], *squares: np.ndarray) -> judge.Estimate:
    """Estimate the exponent a of a gradient norm that is proportional to T^(-a) for sequence lengths T."""
    return left_out(lambda *xs: -np.polyfit(np.log(lengths), np.log([norm(x) for x in xs]), 1)[0], *squares)
