"""Tables for attention heads: selected tokens, margin ratios, and comparison with null baselines."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from head_margins import (
    MarginSpace,
    Null,
    Ratio,
    SelectingSequences,
    attention,
    gaps,
    margin_ratio,
    null_selections,
    selecting_sequences,
)
from threadpoolctl import threadpool_limits
from transformer import Layer, TokenisedTexts

from jaxattn.lab.results.correlations import Floats
from jaxattn.lab.results.intervals import clopper_pearson, student_t

TOKEN_KINDS = ("first", "separator", "itself", "neighbour", "other")
# Kinds of tokens that act as attention sinks: a head that selects them ignores the content of the sequence.
SINKS = TOKEN_KINDS[:2]
# Null baselines, each with random queries.
NULLS: tuple[Null, ...] = ("shuffled", "covariance", "matched")
# Minimum number of sequence groups for which a head gets a confidence interval.
FEWEST_GROUPS = 2
# Standard errors of cosines below this are rounding errors.
_ROUNDING = 1e-12
# Verdict on a null baseline without spread, for which no comparison is defined.
NOT_DEFINED = "not defined"


class HeadSettings(NamedTuple):
    """Settings for measuring attention heads.

    Attributes:
        share: fraction of the attention that one token must receive to be selected; 0 selects the token
            with the most attention in every sequence.
        selecting: minimum fraction of sequences in which a head must select one token.
        group: number of sequences per max-margin problem.
        draws: number of random queries for each null baseline; 0 for no null baselines.
        nuclear: number of groups for which to compute the nuclear-norm margin; each takes seconds.
        seed: random seed for the null baselines.
    """

    share: float = 0.9
    selecting: float = 0.5
    group: int = 25
    draws: int = 10
    nuclear: int = 1
    seed: int = 0


def measure_layer(
    layer: Layer, untrained: Layer | None, texts: TokenisedTexts, number: int, settings: HeadSettings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure all heads in a layer.

    Args:
        layer: the layer of the model.
        untrained: the same layer in an untrained model, on the same texts; None to skip this null baseline.
        texts: the n texts.
        number: index of the layer.
        settings: the settings.

    Returns:
        A table with one row per head, and a table with one row per head, space, null baseline, draw and
        group.
    """
    # NumPy releases the interpreter lock; small matrix products are slower with multiple BLAS threads.
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        places = [(number, head) for head in range(layer.num_heads)]
        found = list(pool.map(lambda at: _measure_head(layer, untrained, texts, at, settings), places))
    location = {"layer": number}
    heads = pd.DataFrame([location | row for row, _ in found])
    margins = pd.DataFrame([location | row for _, rows in found for row in rows], columns=MARGIN_COLUMNS)
    return heads, margins


def _measure_head(
    layer: Layer,
    untrained: Layer | None,
    texts: TokenisedTexts,
    location: tuple[int, int],
    settings: HeadSettings,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head = location[1]
    keys = layer.keys(head)
    scores = layer.scores(head, keys)
    chosen = selecting_sequences(layer, scores, settings.share)
    row = {"head": head, **_selection(layer, scores, chosen, texts)}
    row["norm"] = float(np.linalg.norm(layer.query_matrix(head)))
    row["has_selection"] = (
        row["selecting"] >= settings.selecting and len(chosen.rows) >= FEWEST_GROUPS * settings.group
    )
    ratios = _ratios(layer, untrained, chosen, keys, location, settings) if row["has_selection"] else []
    return row, [{"head": head, **at, **_row(ratio)} for at, ratio in ratios]


def _row(ratio: Ratio) -> dict[str, Any]:
    return ratio._asdict() | {"status": ratio.status.name.lower()}


MARGIN_COLUMNS = ["layer", "head", "space", "null", "draw", "group", *Ratio._fields]


def _ratios(
    layer: Layer,
    untrained: Layer | None,
    chosen: SelectingSequences,
    keys: Floats,
    location: tuple[int, int],
    settings: HeadSettings,
) -> Sequence[tuple[dict[str, Any], Ratio]]:
    head = location[1]
    found: list[tuple[dict[str, Any], Ratio]] = []

    def add(
        of: Layer, which: SelectingSequences, space: MarginSpace, null: Null, draw: int, own: Floats | None
    ) -> None:
        count = len(which.rows) // settings.group
        for g in range(min(count, settings.nuclear) if space == "nuclear" else count):
            ratio = margin_ratio(of, head, which.group(g, settings.group), space, own)
            found.append(({"space": space, "null": null, "draw": draw, "group": g}, ratio))

    spaces: tuple[MarginSpace, ...] = (
        ("query",) if layer.rotary is not None else ("query", "frobenius", "nuclear")
    )
    for space in spaces:
        add(layer, chosen, space, "none", 0, keys)
        if space != "nuclear":
            whole = margin_ratio(layer, head, chosen, space, keys)
            found.append(({"space": space, "null": "none", "draw": 0, "group": -1}, whole))
    rng = np.random.default_rng([settings.seed, *location])
    number = len(chosen.rows)
    for null in NULLS:
        for draw, other in enumerate(null_selections(layer, head, keys, number, null, settings.draws, rng)):
            add(layer, other, "query", null, draw, keys)
    if untrained is not None and settings.draws:
        own = untrained.keys(head)
        (other,) = null_selections(untrained, head, own, number, "none", 1, rng)
        add(untrained, other, "query", "untrained", 0, own)
    return found


def _selection(
    layer: Layer, scores: Floats, chosen: SelectingSequences, texts: TokenisedTexts
) -> dict[str, Any]:
    n = len(scores)
    weights = attention(scores)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=1)
    low, high = clopper_pearson(len(chosen.rows), n)
    entropy_low, entropy_high = student_t(entropy)
    kinds = _kinds(chosen, texts)
    shares = {kind: float((kinds == kind).mean()) if len(kinds) else np.nan for kind in TOKEN_KINDS}
    return {
        "sequences": n,
        "selecting": len(chosen.rows) / n,
        "selecting_low": low,
        "selecting_high": high,
        "entropy": entropy.mean(),
        "entropy_low": entropy_low,
        "entropy_high": entropy_high,
        "gap_nats": float(np.median(gaps(scores))),
        "kind": max(shares, key=lambda kind: shares[kind]) if len(kinds) else "",
        **shares,
        "token": _most_common(texts.tokens[chosen.rows, chosen.top]),
    }


def _kinds(chosen: SelectingSequences, texts: TokenisedTexts) -> Any:
    position = texts.position[chosen.rows]
    conditions = [
        chosen.top == 0,
        texts.special[chosen.rows, chosen.top],
        chosen.top == position,
        np.abs(chosen.top - position) == 1,
    ]
    return np.select(conditions, TOKEN_KINDS[:4], TOKEN_KINDS[4])


def _most_common(tokens: Any) -> str:
    if not len(tokens):
        return ""
    names, counts = np.unique(tokens, return_counts=True)
    return str(names[counts.argmax()])


def verdicts(heads: pd.DataFrame, margins: pd.DataFrame, confidence: float = 0.95) -> pd.DataFrame:
    """Compare heads with their null baselines by the cosine with the max-margin matrix, in query space.

    The difference is the mean cosine of the head over groups of sequences, minus the mean cosine of the null
    baseline over groups and draws; see `compare` for its interval. Two-sided p-values are corrected with
    Holm's method over all heads and null baselines, so that with probability 95 % no verdict "closer" or
    "farther" is due to chance. Margin ratios are not tested: the attention of a null baseline has no lower
    bound, so its margins are smaller by construction.

    Returns:
        One row for each null baseline and each head that selects a token, with the columns `difference`,
        `low`, `high`, `groups`, `p`, `corrected`, `verdict` ("closer", "farther", "inconclusive", or "not
        defined" if a null baseline has no spread), `margins` (the geometric mean of the margin ratios of the
        head, divided by that of the null baseline) and `kind` (the kind of token that the head selects).
    """
    own = margins[(margins["space"] == "query") & (margins["group"] >= 0)]
    own = own.assign(log_ratio=np.log(own["ratio"].where(own["ratio"] > 0)))
    rows = []
    for (layer, head), each in own.groupby(["layer", "head"]):
        trained = each[each["null"] == "none"].set_index("group")
        for null, drawn in each[each["null"] != "none"].groupby("null", sort=False):
            cosines = drawn.pivot(index="draw", columns="group", values="cosine")
            differences = (trained["cosine"] - cosines).dropna(axis=1)
            if differences.shape[1] < FEWEST_GROUPS:
                continue
            value, low, high, p = compare(differences.to_numpy(), confidence)
            ratio = np.exp(trained["log_ratio"].mean() - drawn["log_ratio"].mean())
            facts = {"difference": value, "low": low, "high": high, "groups": differences.shape[1]}
            facts |= {"p": p, "margins": ratio}
            rows.append({"layer": layer, "head": head, "null": null, **facts})
    names = ["layer", "head", "null", "difference", "low", "high", "groups", "p", "margins"]
    table = pd.DataFrame(rows, columns=names)
    corrected = holm(table["p"].to_numpy(float))
    words = np.where(table["difference"] > 0, "closer", "farther")
    words = np.where(corrected < 1 - confidence, words, "inconclusive")
    table = table.assign(corrected=corrected, verdict=np.where(table["p"].isna(), NOT_DEFINED, words))
    return table.join(heads.set_index(["layer", "head"])["kind"], on=["layer", "head"])


def compare(differences: Floats, confidence: float) -> tuple[float, float, float, float]:
    """Return the mean difference, its interval, and the two-sided p-value of the hypothesis that it is zero.

    Both groups and draws are treated as random. The variance of the mean is therefore the variance of the
    group means divided by the number of groups, plus the variance of the draw means divided by the number of
    draws. The degrees of freedom are the smaller of the two numbers minus 1, so the interval is conservative.
    With a single draw, the interval reflects only the variation between groups. If all differences are equal,
    the null baseline has no spread, and the interval and the p-value are NaN.

    Args:
        differences: (draws, groups) float.
        confidence: coverage.
    """
    from scipy.stats import t as student  # slow to import

    value, samples = float(differences.mean()), [differences.mean(axis=0)]
    if len(differences) > 1:
        samples.append(differences.mean(axis=1))
    error = np.sqrt(sum(x.var(ddof=1) / len(x) for x in samples))
    freedom = min(map(len, samples)) - 1
    half = float(student.ppf((1 + confidence) / 2, freedom) * error)
    if not error > _ROUNDING:
        return value, np.nan, np.nan, np.nan
    return value, value - half, value + half, float(2 * student.sf(abs(value) / error, freedom))


def holm(p: Floats) -> Floats:
    """Correct m p-values with Holm's method.

    The k-th smallest p-value is multiplied by m - k + 1. The results are replaced by their running maximum,
    clipped to 1. Comparisons without a p-value, which are NaN, are not counted and remain NaN.
    """
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    corrected = np.full(len(p), np.nan)
    if len(known):
        scaled = p[order] * (len(known) - np.arange(len(known)))
        corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected
