"""Statistics for a diagnosis: correlations with token importance, fractions of sequences, and references."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.core import backend
from jaxattn.core.errors import InputError
from jaxattn.core.fractions import bin_numbers, tied
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import token_statistics
from jaxattn.dynamics import one_step
from jaxattn.lab.diagnosis.quantities import OF_VALUES, PAIRS, SELECTED, quantity_table, verdict_lines
from jaxattn.lab.diagnosis.read_inputs import ModelWeights
from jaxattn.lab.results.correlations import (
    BINS,
    CORRELATIONS,
    Binned,
    Floats,
    correlations,
    quantile_bins,
    quantile_edges,
)
from jaxattn.lab.results.intervals import bca, clopper_pearson, resamples
from jaxattn.models import one_layer
from jaxattn.theory import Scores, selection

_BLOCK = 1_000_000
# Number of tokens below which a lower min_count is suggested.
_ENOUGH = 20
# Number of groups of tokens in the jackknife estimate of the acceleration for BCa bootstrap intervals.
GROUPS = 40


@dataclass(frozen=True)
class Measurements:
    """Statistics that relate a model's scores and values to token importance.

    Attributes:
        quantities: one row per attention head, quantity and statistic, with columns value; low and high
            (95 % interval; NaN if there is none); null_low and null_high (range of 95 % of random models);
            healthy (value after one gradient step; NaN for E·p, which a step on E does not change);
            verdict; and head (0 to H - 1).
        by_class: for K > 2 classes, the rows for E·v of each class separately, with a column `class`;
            empty for two classes.
        verdicts: one line per quantity.
        tokens: one row per attention head and token that occurs; for K > 2 classes, also per class. Columns
            id, token, count, class, alpha, posterior_difference, Ep, Ev, head, and selected: the number of
            sequences in which the token has the highest score, not counting sequences in which all tokens
            are tied.
        facts: sizes and settings, keyed by name.
        over: description of the tokens used for the correlations.
        class_names: names of the classes, with the negative class first for two classes; may be empty.
        shared: True if all attention heads share the same v, so that the rows for E·v are the same for each
            head.
    """

    quantities: pd.DataFrame
    by_class: pd.DataFrame
    verdicts: tuple[str, ...]
    tokens: pd.DataFrame
    facts: dict[str, Any]
    over: str
    class_names: tuple[str, ...] = ()
    shared: bool = True

    @property
    def heads(self) -> list[int]:
        """Return the indices of the attention heads."""
        return sorted(int(h) for h in self.quantities["head"].unique())


@dataclass(frozen=True)
class _TokenImportance:
    """Token importance in a corpus.

    Attributes:
        count: (V,); number of occurrences.
        alpha, difference: (V, C); α and posterior difference; C = 1 for two classes, and C = K for K > 2.
        used: (V,) bool; True for tokens that are frequent enough for the statistics.
        important: (V,) bool; True for important tokens.
    """

    corpus: Corpus
    count: Floats
    alpha: Floats
    difference: Floats
    used: NDArray[np.bool_]
    important: NDArray[np.bool_]

    def of_class(self, k: int) -> "_TokenImportance":
        return replace(self, alpha=self.alpha[:, k : k + 1], difference=self.difference[:, k : k + 1])

    def axes(self) -> list[list[Binned]]:
        """Return the importance values, with their bins, for each of the four `PAIRS`.

        For E·v there is one entry per class. For E·p there is a single entry, with the largest absolute
        values over the classes.
        """
        alpha, difference = self.alpha[self.used], self.difference[self.used]
        largest_alpha, largest = (np.abs(x).max(axis=1) for x in (alpha, difference))
        signed, unsigned = np.linspace(-1, 1, BINS + 1), np.linspace(0, 1, BINS + 1)
        return [
            [_quantiles(x) for x in alpha.T],
            [Binned(x, bin_numbers(x, signed, dtype="float64")) for x in difference.T],
            [_quantiles(largest_alpha)],
            [Binned(largest, bin_numbers(largest, unsigned, dtype="float64"))],
        ]


def _quantiles(x: Floats) -> Binned:
    return Binned(x, quantile_bins(x, quantile_edges(x, BINS), "float64"))


class Settings(NamedTuple):
    """Arguments of `diagnose`, together with the dtype of the scores."""

    min_count: int
    important: float
    draws: int
    resampled: int
    seed: int
    precision: Any


@backend.pinned()
def measure_model(
    weights: ModelWeights, corpus: Corpus, tokens: Sequence[str] | None, settings: Settings
) -> Measurements:
    """Compute the statistics that `diagnose` reports.

    Raises:
        InputError: fewer than three tokens are frequent enough.
    """
    least, count = settings.important, settings.min_count
    importance = _token_importance(corpus, count, least)
    dim, number = weights.embedding.shape[1], len(weights.queries)
    references = (_null(importance, weights, settings), _one_step(importance, dim, settings.seed))
    quantities, by_class, listed = [], [], []
    for h in range(number):
        scores, values = weights.scores(h), weights.values(h)
        shares, selected = _shares(importance, scores, settings.precision)
        together, *alone = _tables(importance, scores, values, shares, references, settings)
        quantities.append(together.assign(head=h))
        by_class += [x.assign(**{"class": k, "head": h})[:OF_VALUES] for k, x in enumerate(alone)]
        listed.append(_token_table(importance, scores, values, selected, tokens).assign(head=h))
    found = pd.concat(quantities, ignore_index=True)
    which = f"|posterior difference| ≥ {least:g}, at least {count} occurrences"
    occur, used = int((importance.count > 0).sum()), int(importance.used.sum())
    return Measurements(
        found,
        pd.concat(by_class, ignore_index=True) if by_class else found.iloc[:0].assign(**{"class": 0}),
        (
            *_advice(importance.count, count),
            *_undefined(found, importance, weights, which),
            *verdict_lines(found, f"important: {which}", shared=weights.shared),
        ),
        pd.concat(listed, ignore_index=True),
        {
            "tokens of the embedding (V)": len(weights.embedding),
            "dimension (d)": dim,
            **({"attention heads (H)": number} if number > 1 else {}),
            "classes": corpus.num_classes,
            "sequences": corpus.num_examples,
            "tokens that occur": occur,
            f"tokens with at least {count} occurrences": used,
            f"important tokens ({which})": int(importance.important.sum()),
            "random models": settings.draws,
        },
        f"{used:,} of {occur:,} tokens: those that occur at least {count} times (min_count)",
        corpus.class_names or (),
        weights.shared,
    )


def _token_importance(corpus: Corpus, min_count: int, important: float) -> _TokenImportance:
    with backend.precision("float64"):
        found = token_statistics(corpus)
        large = np.asarray(found.important(important, min_count))
    count, alpha, difference = map(np.asarray, (found.count, found.alpha, found.posterior_difference))
    used = count >= max(min_count, 1)
    if used.sum() < 3:
        raise InputError(
            f"min_count: only {int(used.sum())} tokens occur at least {min_count} times, but three "
            f"are required; lower min_count to {suggested_count(count) or 1}"
        )
    return _TokenImportance(corpus, count, tied(alpha, "float64"), difference, used, large)


def suggested_count(count: Floats) -> int:
    """Return the largest number of occurrences that at least twenty tokens, or else all tokens, reach.

    Args:
        count: (n,); number of occurrences of each token.

    Returns:
        The number, or 0 if no token occurs.
    """
    occurring = np.sort(count[count > 0])[::-1]
    return int(occurring[:_ENOUGH][-1]) if len(occurring) else 0


def _advice(count: Floats, min_count: int) -> Iterable[str]:
    used, lower = int((count >= max(min_count, 1)).sum()), suggested_count(count)
    if used < _ENOUGH and lower < min_count:
        yield (
            f"The correlations use only {used} tokens; min_count = {lower} includes "
            f"{int((count >= lower).sum())} of the {int((count > 0).sum()):,} tokens that occur"
        )


def _undefined(
    quantities: pd.DataFrame, importance: _TokenImportance, weights: ModelWeights, important: str
) -> Iterable[str]:
    """Yield one line for each reason why statistics are not defined, with their names."""
    reasons: dict[str, list[str]] = {}
    tokens = f"the same for all {int(importance.used.sum())} tokens"
    for h, rows in quantities[quantities["verdict"] == "not defined"].groupby("head"):
        scores, values = weights.scores(h)[importance.used], weights.values(h)[importance.used]
        where = f"head {h}, " if len(weights.queries) > 1 else ""
        for k, (pair, axis) in enumerate(zip(PAIRS, importance.axes(), strict=True)):
            statistics = set(rows.loc[rows["quantity"] == pair, "statistic"])
            side, against = pair.split(" against ")
            if not statistics:
                continue
            if np.ptp(values if k < 2 else scores, axis=0).max() == 0:
                reasons.setdefault(f"{side} is {tokens}", []).append(f"{where}{pair}")
            elif min(np.ptp(part.values) for part in axis) == 0:
                reasons.setdefault(f"{against} is {tokens}", []).append(f"{where}{pair}")
            else:
                bins = "too few bins contain tokens"
                reasons.setdefault(bins, []).append(f"{where}{pair} ({', '.join(sorted(statistics))})")
    for reason, names in reasons.items():
        yield f"{'; '.join(names)}: not defined, because {reason}"
    if not importance.important.any():
        yield f"{SELECTED}: not defined, because no token is important ({important})"


def _tables(
    importance: _TokenImportance,
    scores: Floats,
    values: Floats,
    shares: list[float],
    references: tuple[list[Floats], list[Floats]],
    settings: Settings,
) -> list[pd.DataFrame]:
    """Build a table for each entry of `_parts`; the first one also contains the two fractions `shares`."""
    points = [
        np.append(x, shares if k == 0 else []) for k, x in enumerate(_points(importance, scores, values))
    ]
    intervals = [_bootstrap(part, scores, x, settings) for part, x in _parts(importance, values)]
    of_shares = [_share_interval(x, importance.corpus.num_examples) for x in shares]
    intervals[0] = np.column_stack([intervals[0], *of_shares])
    return [quantity_table(*each) for each in zip(points, intervals, *references, strict=True)]


def _parts(importance: _TokenImportance, values: Floats) -> list[tuple[_TokenImportance, Floats]]:
    """Return the data to correlate: all classes together and, if K > 2, each class separately."""
    every = values.shape[1]
    alone = [(importance.of_class(k), values[:, k : k + 1]) for k in range(every if every > 1 else 0)]
    return [(importance, values), *alone]


def _points(importance: _TokenImportance, scores: Floats, values: Floats) -> Floats:
    """Compute the correlations, (1 or 1 + K, 16), with one row for each entry of `_parts`."""
    once = np.ones((1, int(importance.used.sum())))
    return np.stack(
        [
            _correlations(part.axes(), scores[importance.used], x[importance.used], once)[:, 0]
            for part, x in _parts(importance, values)
        ]
    )


def _shares(
    importance: _TokenImportance, scores: Floats, precision: Any
) -> tuple[list[float], NDArray[np.bool_]]:
    """Compute how often important tokens are selected, and the mask of selected entries in the bags.

    The list contains the fraction of sequences that select an important token, and the fraction in which an
    important token ties for the highest score.
    """
    # Which tokens are selected depends only on the scores, so embeddings of dimension 1 are enough.
    unit = np.ones(1, np.float64 if precision == np.float64 else np.float32)
    chosen = selection(unit, Scores(scores[:, None], importance.corpus))
    shares = [float(np.asarray(x).mean()) for x in chosen.selects(importance.corpus, importance.important)]
    if not importance.important.any():
        shares = [float("nan")] * 2
    decided = importance.corpus.bags.spread(chosen.decided(importance.corpus))
    return shares, np.asarray(chosen.mask & decided)


def _share_interval(share: float, n: int) -> tuple[float, float]:
    return clopper_pearson(round(share * n), n) if np.isfinite(share) else (np.nan, np.nan)


def _null(importance: _TokenImportance, weights: ModelWeights, settings: Settings) -> list[Floats]:
    """Compute the statistics of random models: (draws, 18) and, if K > 2, (draws, 16) per class."""
    (size, dim), classes = weights.embedding.shape, weights.heads.shape[2]
    points, shares = [], []
    for scores, values in _random_models(size, dim, classes, settings.draws, settings.seed):
        points.append(_points(importance, scores, values))
        shares.append(_shares(importance, scores, np.float64)[0])
    together, *alone = np.stack(points, axis=1)
    return [np.column_stack([together, shares]), *alone]


def _correlations(axes: list[list[Binned]], scores: Floats, values: Floats, weights: Floats) -> Floats:
    """Compute the correlations for the four `PAIRS` and R weight vectors, averaged over classes, (16, R)."""
    sides = [values.T, values.T, scores[None], scores[None]]
    return np.concatenate(
        [
            np.mean([correlations(x, y, weights) for x, y in zip(each, side, strict=True)], axis=0)
            for each, side in zip(axes, sides, strict=True)
        ]
    )


def _bootstrap(importance: _TokenImportance, scores: Floats, values: Floats, settings: Settings) -> Floats:
    """Compute bootstrap intervals for the correlations over tokens, (2, 16); NaN for correlations over bins.

    Bin means of resampled tokens are noisier than those of all tokens, so they provide no valid interval.
    """
    axes, points = importance.axes(), int(importance.used.sum())
    number, rng = settings.resampled, np.random.default_rng(settings.seed)
    block = max(1, min(number, _BLOCK // points))

    def correlated(weights: Floats) -> Floats:
        return _correlations(axes, scores[importance.used], values[importance.used], weights)

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


def _one_step(importance: _TokenImportance, dim: int, seed: int) -> list[Floats]:
    """Compute the statistics of the change in E·v after one gradient step, in the format of `_null`.

    The statistics for E·p are NaN, because a step on E does not change E·p.
    """
    corpus = importance.corpus
    start = one_layer.init(
        jax.random.key(seed), vocab_size=corpus.vocab_size, dim=dim, num_classes=corpus.num_classes
    )
    # In float32, rounding errors in E would swamp a small step, so take a large one.
    largest = float(np.abs(importance.alpha).max())
    moved = one_step(start, corpus, step_size=1 / largest if largest > 0 else 1.0)
    added = np.asarray((moved.E - start.E) @ start.v, np.float64).reshape(corpus.vocab_size, -1)
    together, *alone = _points(importance, np.zeros(len(added)), added)
    return [np.append(together, [np.nan] * 2), *alone]


def _token_table(
    importance: _TokenImportance,
    scores: Floats,
    values: Floats,
    selected: NDArray[np.bool_],
    tokens: Sequence[str] | None,
) -> pd.DataFrame:
    """Return a table of the tokens that occur, in decreasing order of score.

    For two classes, the table contains only the rows for class 1.
    """
    size, classes = values.shape
    index = np.asarray(importance.corpus.bags.index)[selected].astype(np.int64)
    ids = np.flatnonzero(importance.count > 0)
    names = np.asarray(tokens if tokens is not None else list(map(str, range(size))), object)
    table = pd.DataFrame(
        {
            "id": np.repeat(ids, classes),
            "token": np.repeat(names[ids], classes),
            "count": np.repeat(importance.count[ids].astype(int), classes),
            "class": np.tile(np.arange(classes) + (classes == 1), len(ids)),
            "alpha": importance.alpha[ids].ravel(),
            "posterior_difference": importance.difference[ids].ravel(),
            "Ep": np.repeat(scores[ids], classes),
            "Ev": values[ids].ravel(),
            "selected": np.repeat(np.bincount(index, minlength=size)[ids], classes),
        }
    )
    return table.sort_values(["Ep", "id", "class"], ascending=[False, True, True]).reset_index(drop=True)
