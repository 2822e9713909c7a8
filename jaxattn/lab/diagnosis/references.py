"""References for the statistics of a model: random models, one gradient step, and bootstrap intervals."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxattn.dynamics import one_step
from jaxattn.lab.diagnosis.model_statistics import (
    TokenImportance,
    pair_correlations,
    selected_fractions,
    token_correlations,
)
from jaxattn.lab.diagnosis.quantities import PAIRS
from jaxattn.lab.diagnosis.read_inputs import ModelWeights
from jaxattn.lab.results.correlations import CORRELATIONS, Floats
from jaxattn.lab.results.intervals import bca, resamples
from jaxattn.models import one_layer

_BLOCK = 1_000_000
# Number of groups of tokens in the jackknife estimate of the acceleration for BCa bootstrap intervals.
GROUPS = 40


class Settings(NamedTuple):
    """Arguments of `diagnose`, together with the dtype of the scores."""

    min_count: int
    important: float
    draws: int
    resampled: int
    seed: int
    precision: Any


def random_model_statistics(
    importance: TokenImportance, weights: ModelWeights, settings: Settings
) -> list[Floats]:
    """Compute the statistics of random models: (draws, 18) and, if K > 2, (draws, 16) per class."""
    (size, dim), classes = weights.embedding.shape, weights.heads.shape[2]
    points, shares = [], []
    for scores, values in _random_models(size, dim, classes, settings.draws, settings.seed):
        points.append(token_correlations(importance, scores, values))
        shares.append(selected_fractions(importance, scores, np.float64)[0])
    together, *alone = np.stack(points, axis=1)
    return [np.column_stack([together, shares]), *alone]


def _random_models(
    vocab_size: int, dim: int, classes: int, number: int, seed: int
) -> Iterable[tuple[Floats, Floats]]:
    """Yield E p, (V,), and E v, (V, C), for untrained models.

    Let (p, v) = QR be the d × (1 + C) matrix with columns p and v. Given p and v, the rows of E (p, v) are
    independent normal vectors with covariance RᵀR/d. They are sampled as the rows of Z R/√d with standard
    normal Z, so E itself is not sampled.
    """
    for key in jax.random.split(jax.random.key(seed), number):
        start = one_layer.init(key, vocab_size=1, dim=dim, num_classes=max(classes, 2))
        both = np.column_stack([np.asarray(start.p), np.asarray(start.v)]).astype(np.float64)
        R = np.linalg.qr(both, mode="r")
        Z = np.asarray(jax.random.normal(jax.random.fold_in(key, 1), (vocab_size, len(R))), np.float64)
        projected = Z @ R / np.sqrt(dim)
        yield projected[:, 0], projected[:, 1:]


def one_step_statistics(importance: TokenImportance, dim: int, seed: int) -> list[Floats]:
    """Compute the statistics of the change in E·v after one gradient step.

    The format is that of one random model in `random_model_statistics`. The statistics for E·p are NaN,
    because a step on E does not change E·p.
    """
    corpus = importance.corpus
    start = one_layer.init(
        jax.random.key(seed), vocab_size=corpus.vocab_size, dim=dim, num_classes=corpus.num_classes
    )
    # In float32, rounding errors in E would swamp a small step, so take a large one.
    largest = float(np.abs(importance.alpha).max())
    moved = one_step(start, corpus, step_size=1 / largest if largest > 0 else 1.0)
    added = np.asarray((moved.E - start.E) @ start.v, np.float64).reshape(corpus.vocab_size, -1)
    together, *alone = token_correlations(importance, np.zeros(len(added)), added)
    return [np.append(together, [np.nan] * 2), *alone]


def bootstrap_intervals(
    importance: TokenImportance, scores: Floats, values: Floats, settings: Settings
) -> Floats:
    """Compute bootstrap intervals for the correlations over tokens, (2, 16); NaN for correlations over bins.

    Bin means of resampled tokens are noisier than those of all tokens, so they provide no valid interval.
    """
    axes, points = importance.axes(), int(importance.used.sum())
    number, rng = settings.resampled, np.random.default_rng(settings.seed)
    block = max(1, min(number, _BLOCK // points))

    def correlated(weights: Floats) -> Floats:
        return pair_correlations(axes, scores[importance.used], values[importance.used], weights)

    sizes = [min(block, number - first) for first in range(0, number, block)]
    draws = np.concatenate([correlated(resamples(points, size, rng)) for size in sizes], axis=1)
    groups = rng.permutation(points) % min(points, GROUPS)
    left_out = correlated((groups != np.arange(groups.max() + 1)[:, None]).astype(float))
    point = correlated(np.ones((1, points)))[:, 0]
    low, high = bca(point, draws.T, left_out.T)
    over_tokens = np.array([name.endswith("tokens") for _ in PAIRS for name in CORRELATIONS])
    # A correlation of 1 is the same in every resample, and therefore has no interval.
    moves = np.ptp(draws, axis=1) > 1e-9
    return np.where(over_tokens & moves, np.stack([low, high]), np.nan)
