"""What the paper's figures mean for somebody's own model: does E·v know importance, does E·p select it?

Whatever classifier E, p and v come from, its numbers are held against two references on the same corpus: the
null band, what random E, p and v of that shape give, and the healthy reference, what one gradient step gives.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.core.errors import InputError
from jaxattn.data.corpus import Corpus
from jaxattn.data.splits import token_statistics
from jaxattn.dynamics import one_step
from jaxattn.models import one_layer
from jaxattn.results.correlations import (
    BINS,
    STATISTICS,
    Binned,
    Floats,
    bin_numbers,
    correlations,
    quantile_edges,
)
from jaxattn.results.intervals import TAILS, accelerated, clopper_pearson, resamples
from jaxattn.theory import Scores, selection

BLOCK = 1_000_000
# Of tokens, each left out once for the acceleration of a bootstrap interval.
GROUPS = 40
# Squares of products of larger entries overflow.
LARGEST = 1e70
PAIRS = (
    "E·v against α",
    "E·v against posterior difference",
    "E·p against |α|",
    "E·p against |posterior difference|",
)
SELECTED = "sequences that select an important token"
TIED = "sequences in which an important token ties on top"


@dataclass(frozen=True)
class Diagnosis:
    """What a model knows of the importance of tokens.

    Attributes:
        quantities: one row per quantity and statistic: value, low and high (95 % interval, NaN for none),
            null_low and null_high (95 % of random models), healthy (one gradient step; NaN for E·p, which a
            step on E leaves alone), verdict.
        verdicts: one line per quantity.
        tokens: id, token, count, class, alpha, posterior_difference, Ep, Ev, and selected, the number of
            sequences in which the token has the highest score and not all have it. One row per token that
            occurs, for K > 2 classes also per class.
        facts: sizes and settings, by name.
        over: which tokens the correlations are over, in words.
        class_names: names of the classes, the negative one first for two; empty if they have none.
    """

    quantities: pd.DataFrame
    verdicts: tuple[str, ...]
    tokens: pd.DataFrame
    facts: dict[str, Any]
    over: str
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ground:
    """The corpus as the statistics see it.

    Attributes:
        corpus: n sequences.
        count: (V,) occurrences.
        alpha, difference: (V, C) importance; one column for two classes, else K.
        used: (V,) bool; tokens frequent enough for statistics.
        important: (V,) bool.
    """

    corpus: Corpus
    count: Floats
    alpha: Floats
    difference: Floats
    used: NDArray[np.bool_]
    important: NDArray[np.bool_]

    def axes(self) -> list[list[Binned]]:
        """Lay out the importance axes of the four `PAIRS`: one per class for E·v, one for E·p."""
        alpha, difference = self.alpha[self.used], self.difference[self.used]
        largest_alpha, largest = (np.abs(x).max(axis=1) for x in (alpha, difference))
        signed, unsigned = np.linspace(-1, 1, BINS + 1), np.linspace(0, 1, BINS + 1)
        return [
            [Binned(x, bin_numbers(x, quantile_edges(x, BINS))) for x in alpha.T],
            [Binned(x, bin_numbers(x, signed)) for x in difference.T],
            [Binned(largest_alpha, bin_numbers(largest_alpha, quantile_edges(largest_alpha, BINS)))],
            [Binned(largest, bin_numbers(largest, unsigned))],
        ]


def diagnose(
    embedding: Any,
    query: Any,
    head: Any,
    corpus: Corpus,
    *,
    tokens: Sequence[str] | None = None,
    min_count: int = 50,
    important: float = 0.5,
    draws: int = 200,
    resampled: int = 1000,
    seed: int = 0,
) -> Diagnosis:
    """Hold E·v and E·p of a trained model against the importance of tokens in a corpus.

    Importance is α and the posterior difference. E·v should rise with both, E·p with their size: attention
    selects tokens that speak for any class. For K > 2 classes E·v_k is held against class k and the
    correlations are averaged; E·p is held against the largest size over the classes.

    The null band holds 95 % of the models E_s, p ~ N(0, I/d), v uniform on the sphere. The healthy reference
    of E·v is what one gradient step on E adds to it in such a model, (E¹ - E⁰)·v, whatever the step size.

    Args:
        embedding: E, (V, d) float; row s is token s of the corpus.
        query: p, (d,) float.
        head: v, (d,) or (d, K) float, or (K, d) as PyTorch's linear layers store it; a square one is (d, K).
            Two columns for two classes stand for their difference.
        corpus: n labelled sequences over V tokens.
        tokens: V names; the numbers of the tokens by default.
        min_count: tokens that occur less often are in no statistic.
        important: tokens with |posterior difference| of at least this, and frequent enough, are important.
        draws: number of random models.
        resampled: number of bootstrap resamples of tokens, for correlations.
        seed: seed of all that is random.

    Returns:
        The diagnosis.

    Raises:
        InputError: shapes that do not fit, NaN or inf, fewer than three tokens that are frequent enough.

    Source:
        Figures 1-3, Lemma 4.1 and Section 4 of arXiv 2505.17282.
    """
    E, p, v = _checked(embedding, query, head, corpus)
    if tokens is not None and len(tokens) != len(E):
        raise InputError(f"tokens: {len(tokens)} names for V = {len(E)} tokens; give one for each")
    if draws < 1 or resampled < 1:
        raise InputError(f"draws {draws}, resampled {resampled}: give at least 1")
    ground = _ground(corpus, min_count, important)
    dim, classes = E.shape[1], 1 if v.ndim == 1 else v.shape[1]
    scores, values = E @ p, (E @ v).reshape(len(E), -1)
    rng = np.random.default_rng(seed)
    point, selected = _measure(ground, scores, values, np.asarray(embedding).dtype)
    bounds = _bootstrap(ground, scores, values, point[:-2], resampled, rng)
    n = corpus.num_examples
    shares = [clopper_pearson(round(x * n), n) if np.isfinite(x) else (np.nan, np.nan) for x in point[-2:]]
    null = np.stack(
        [
            _measure(ground, *random, np.float64)[0]
            for random in _random_models(len(E), dim, classes, draws, seed)
        ]
    )
    healthy = _one_step_values(ground, dim, seed)
    which = f"|posterior difference| ≥ {important:g}, at least {min_count} occurrences"
    occur, used = int((ground.count > 0).sum()), int(ground.used.sum())
    quantities = _table(point, np.column_stack([bounds, *shares]), null, healthy)
    return Diagnosis(
        quantities,
        tuple(_verdicts(quantities, f"important: {which}")),
        _token_table(ground, scores, values, selected, tokens),
        {
            "tokens of the embedding (V)": len(E),
            "dimension (d)": dim,
            "classes": corpus.num_classes,
            "sequences": corpus.num_examples,
            "tokens that occur": occur,
            f"tokens with at least {min_count} occurrences": used,
            f"important tokens ({which})": int(ground.important.sum()),
            "random models": draws,
        },
        f"{used:,} of {occur:,} tokens: those that occur at least {min_count} times (min_count)",
        corpus.class_names or (),
    )


def _checked(embedding: Any, query: Any, head: Any, corpus: Corpus) -> tuple[Floats, Floats, Floats]:
    E, p, v = (np.asarray(x).astype(np.float64) for x in (embedding, query, head))
    if E.ndim != 2:
        raise InputError(f"embedding {E.shape}: expected (V, d), one row for each token")
    size, dim = E.shape
    if size != corpus.vocab_size:
        raise InputError(
            f"embedding {E.shape}: {size} rows for a corpus over V = {corpus.vocab_size} tokens; row s must "
            "be token s: give the model's own vocabulary, or the corpus that it was trained on"
        )
    # Layers of one output are often stored with an axis of length 1.
    p = p.reshape(-1) if p.size == dim else p
    if p.shape != (dim,):
        raise InputError(f"query {p.shape}: expected ({dim},), since the embedding is {E.shape}")
    v = v.reshape(-1) if v.size == dim and 1 in (*v.shape, v.ndim) else v
    classes = corpus.num_classes
    if v.shape == (classes, dim) != (dim, classes):
        v = v.T
    if v.shape == (dim, 2) and classes == 2:
        v = v[:, 1] - v[:, 0]
    wanted = (dim,) if classes == 2 else (dim, classes)
    if v.shape != wanted:
        raise InputError(
            f"head {v.shape}: expected {wanted} for an embedding {E.shape} and {classes} classes"
        )
    for name, x in (("embedding", E), ("query", p), ("head", v)):
        usable = np.abs(x) < LARGEST
        if not usable.all():
            where = tuple(map(int, np.unravel_index(np.argmin(usable), x.shape)))
            what = f"{x[where]:g}" if np.isfinite(x[where]) else "NaN or inf"
            raise InputError(f"{name}: {what} at {where}; save a checkpoint that has not diverged")
    return E, p, v


def _ground(corpus: Corpus, min_count: int, important: float) -> _Ground:
    found = token_statistics(corpus)
    count, alpha, difference = (
        np.asarray(x, np.float64) for x in (found.count, found.alpha, found.posterior_difference)
    )
    used = count >= max(min_count, 1)
    if used.sum() < 3:
        raise InputError(
            f"min_count: {min_count}; only {int(used.sum())} tokens occur as often, lower it to have three"
        )
    large = np.asarray(found.important(important, min_count))
    return _Ground(corpus, count, alpha, difference, used, large)


def _measure(
    ground: _Ground, scores: Floats, values: Floats, precision: Any
) -> tuple[Floats, NDArray[np.bool_]]:
    """Measure all quantities once: (18,); and which entries of the corpus's bags are selected."""
    once = np.ones((1, int(ground.used.sum())))
    # Scores are all that a selection depends on: an embedding of dimension 1 carries them.
    unit = np.ones(1, np.float64 if precision == np.float64 else np.float32)
    chosen = selection(unit, Scores(scores[:, None], ground.corpus))
    shares = [float(np.asarray(x).mean()) for x in chosen.selects(ground.corpus, ground.important)]
    found = _correlations(ground.axes(), scores[ground.used], values[ground.used], once)[:, 0]
    if not ground.important.any():
        shares = [float("nan")] * 2
    decided = ground.corpus.bags.spread(chosen.decided(ground.corpus))
    return np.append(found, shares), np.asarray(chosen.mask & decided)


def _correlations(axes: list[list[Binned]], scores: Floats, values: Floats, weights: Floats) -> Floats:
    """Correlate the four pairs: (16, R), averaged over classes."""
    sides = [values.T, values.T, scores[None], scores[None]]
    return np.concatenate(
        [
            np.mean([correlations(x, y, weights) for x, y in zip(each, side, strict=True)], axis=0)
            for each, side in zip(axes, sides, strict=True)
        ]
    )


def _bootstrap(
    ground: _Ground, scores: Floats, values: Floats, point: Floats, number: int, rng: np.random.Generator
) -> Floats:
    """Bound correlations over resampled tokens: (2, 16), NaN over bins.

    Means of resampled tokens within bins are noisier than those of all tokens: they tell nothing of the
    latter's correlations.
    """
    axes, points = ground.axes(), int(ground.used.sum())
    block = max(1, min(number, BLOCK // points))

    def correlated(weights: Floats) -> Floats:
        return _correlations(axes, scores[ground.used], values[ground.used], weights)

    sizes = [min(block, number - first) for first in range(0, number, block)]
    draws = np.concatenate([correlated(resamples(points, size, rng)) for size in sizes], axis=1)
    groups = rng.permutation(points) % min(points, GROUPS)
    left_out = correlated((groups != np.arange(groups.max() + 1)[:, None]).astype(float))
    low, high = accelerated(point, draws.T, left_out.T)
    over_tokens = np.array([name.endswith("tokens") for _ in PAIRS for name in STATISTICS])
    # A correlation of 1 that resampling does not move tells no interval.
    moves = np.ptp(draws, axis=1) > 1e-9
    return np.where(over_tokens & moves, np.stack([low, high]), np.nan)


def _random_models(
    vocab_size: int, dim: int, classes: int, number: int, seed: int
) -> Iterable[tuple[Floats, Floats]]:
    """Draw E p and E v of untrained models: (V,) and (V, C) each.

    Given p and v, the rows of E (p, v) are independent normal vectors of covariance (p, v)ᵀ(p, v)/d: with
    (p, v) = QR that is Z R/√d with Z of standard normal numbers. A study of the model at its start would
    draw V d numbers for each E, hundreds of times as many.
    """
    for key in jax.random.split(jax.random.key(seed), number):
        start = one_layer.init(key, vocab_size=1, dim=dim, num_classes=max(classes, 2))
        both = np.column_stack([np.asarray(start.p), np.asarray(start.v)]).astype(np.float64)
        R = np.linalg.qr(both, mode="r")
        Z = np.asarray(jax.random.normal(jax.random.fold_in(key, 1), (vocab_size, len(R))), np.float64)
        projected = Z @ R / np.sqrt(dim)
        yield projected[:, 0], projected[:, 1:]


def _one_step_values(ground: _Ground, dim: int, seed: int) -> Floats:
    """Measure what one gradient step on E adds to E·v: (18,), NaN for what concerns E·p."""
    corpus = ground.corpus
    start = one_layer.init(
        jax.random.key(seed), vocab_size=corpus.vocab_size, dim=dim, num_classes=corpus.num_classes
    )
    # In single precision a small step would drown in the digits of E.
    largest = float(np.abs(ground.alpha).max())
    moved = one_step(start, corpus, step_size=1 / largest if largest > 0 else 1.0)
    added = np.asarray((moved.E - start.E) @ start.v, np.float64).reshape(corpus.vocab_size, -1)
    once = np.ones((1, int(ground.used.sum())))
    found = _correlations(ground.axes(), np.zeros(len(added))[ground.used], added[ground.used], once)[:, 0]
    return np.append(found, [np.nan] * 2)


def _table(point: Floats, bounds: Floats, null: Floats, healthy: Floats) -> pd.DataFrame:
    names = [(pair, statistic) for pair in PAIRS for statistic in STATISTICS]
    names += [(SELECTED, "share"), (TIED, "share")]
    low, high = bounds
    # A band of models that were drawn, not an interval: some may have no correlation.
    known = np.isfinite(null).any(axis=0)
    band = np.nanquantile(np.where(known, null, 0.0), TAILS, axis=0)
    null_low, null_high = np.where(known, band, np.nan)
    table = pd.DataFrame(names, columns=["quantity", "statistic"]).assign(
        value=point, low=low, high=high, null_low=null_low, null_high=null_high, healthy=healthy
    )
    return table.assign(verdict=[_verdict(*row) for row in zip(point, null_low, null_high, strict=True)])


def _verdict(value: float, low: float, high: float) -> str:
    if not np.isfinite([value, low, high]).all():
        return "not defined"
    return (
        "above the null band"
        if value > high
        else "below the null band"
        if value < low
        else "inside the null band"
    )


def _verdicts(quantities: pd.DataFrame, important: str) -> Iterable[str]:
    """Say in a line what each quantity means; of the statistics, Spearman's over tokens speaks."""
    meaning = {
        PAIRS[0]: "the head reads a token as evidence for a label",
        PAIRS[1]: "the head reads a token as evidence for a label",
        PAIRS[2]: "attention prefers important tokens",
        PAIRS[3]: "attention prefers important tokens",
        SELECTED: "attention selects important tokens",
        TIED: "important tokens tie more than by chance",
    }
    spoken = quantities[quantities["statistic"].isin(["Spearman, tokens", "share"])]
    spoken = spoken[(spoken["quantity"] != TIED) | (spoken["value"] > 0)]
    for row in spoken.itertuples(index=False):
        yes = (
            meaning[row.quantity]
            if row.verdict.startswith("above")
            else f"no sign that {meaning[row.quantity]}"
        )
        said = "" if row.verdict == "not defined" else f": {yes}"
        band = f"[{row.null_low:.3f}, {row.null_high:.3f}]"
        step = f" (one gradient step: {row.healthy:.3f})" if np.isfinite(row.healthy) else ""
        which = f" ({important})" if row.quantity == SELECTED else ""
        yield f"{row.quantity}{which}: {row.value:.3f} is {row.verdict} {band}{said}{step}"


def _token_table(
    ground: _Ground,
    scores: Floats,
    values: Floats,
    selected: NDArray[np.bool_],
    tokens: Sequence[str] | None,
) -> pd.DataFrame:
    """Lay out the tokens that occur, highest score first; of two classes the rows are those of class 1."""
    size, classes = values.shape
    index = np.asarray(ground.corpus.bags.index)[selected].astype(np.int64)
    ids = np.flatnonzero(ground.count > 0)
    names = np.asarray(tokens if tokens is not None else list(map(str, range(size))), object)
    table = pd.DataFrame(
        {
            "id": np.repeat(ids, classes),
            "token": np.repeat(names[ids], classes),
            "count": np.repeat(ground.count[ids].astype(int), classes),
            "class": np.tile(np.arange(classes) + (classes == 1), len(ids)),
            "alpha": ground.alpha[ids].ravel(),
            "posterior_difference": ground.difference[ids].ravel(),
            "Ep": np.repeat(scores[ids], classes),
            "Ev": values[ids].ravel(),
            "selected": np.repeat(np.bincount(index, minlength=size)[ids], classes),
        }
    )
    return table.sort_values(["Ep", "id", "class"], ascending=[False, True, True]).reset_index(drop=True)
