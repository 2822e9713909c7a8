"""Statistics for a diagnosis: correlations with token importance, fractions of sequences, and references."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.core import backend
from jaxattn.data.corpus import Corpus
from jaxattn.lab.diagnosis.model_statistics import (
    ENOUGH,
    TokenImportance,
    parts,
    selected_fractions,
    suggested_count,
    token_correlations,
    token_importance,
)
from jaxattn.lab.diagnosis.quantities import OF_VALUES, PAIRS, SELECTED, quantity_table, verdict_lines
from jaxattn.lab.diagnosis.read_inputs import ModelWeights
from jaxattn.lab.diagnosis.references import (
    Settings,
    bootstrap_intervals,
    one_step_statistics,
    random_model_statistics,
)
from jaxattn.lab.results.correlations import Floats
from jaxattn.lab.results.intervals import clopper_pearson


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


@backend.pinned()
def measure_model(
    weights: ModelWeights, corpus: Corpus, tokens: Sequence[str] | None, settings: Settings
) -> Measurements:
    """Compute the statistics that `diagnose` reports.

    Raises:
        InputError: fewer than three tokens are frequent enough.
    """
    least, count = settings.important, settings.min_count
    importance = token_importance(corpus, count, least)
    dim, number = weights.embedding.shape[1], len(weights.queries)
    references = (
        random_model_statistics(importance, weights, settings),
        one_step_statistics(importance, dim, settings.seed),
    )
    quantities, by_class, listed = [], [], []
    for h in range(number):
        scores, values = weights.scores(h), weights.values(h)
        shares, selected = selected_fractions(importance, scores, settings.precision)
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


def _advice(count: Floats, min_count: int) -> Iterable[str]:
    used, lower = int((count >= max(min_count, 1)).sum()), suggested_count(count)
    if used < ENOUGH and lower < min_count:
        yield (
            f"The correlations use only {used} tokens; min_count = {lower} includes "
            f"{int((count >= lower).sum())} of the {int((count > 0).sum()):,} tokens that occur"
        )


def _undefined(
    quantities: pd.DataFrame, importance: TokenImportance, weights: ModelWeights, important: str
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
    importance: TokenImportance,
    scores: Floats,
    values: Floats,
    shares: list[float],
    references: tuple[list[Floats], list[Floats]],
    settings: Settings,
) -> list[pd.DataFrame]:
    """Build a table for each entry of `parts`; the first one also contains the two fractions `shares`."""
    points = [
        np.append(x, shares if k == 0 else [])
        for k, x in enumerate(token_correlations(importance, scores, values))
    ]
    intervals = [bootstrap_intervals(part, scores, x, settings) for part, x in parts(importance, values)]
    of_shares = [_share_interval(x, importance.corpus.num_examples) for x in shares]
    intervals[0] = np.column_stack([intervals[0], *of_shares])
    return [quantity_table(*each) for each in zip(points, intervals, *references, strict=True)]


def _share_interval(share: float, n: int) -> tuple[float, float]:
    return clopper_pearson(round(share * n), n) if np.isfinite(share) else (np.nan, np.nan)


def _token_table(
    importance: TokenImportance,
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
