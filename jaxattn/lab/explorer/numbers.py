"""Numbers of the explorer at each point of a path: curves, attention, scores, margins of support pairs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxattn.attention.scores import Scores
from jaxattn.dynamics.flows.exact_flow import Path
from jaxattn.theory.selection import one_minus_cosine
from jaxattn.theory.solution import MaxMargin

SEQUENCES, TOKENS, PAIRS = 12, 10, 24
# Tokens in the chart of scores.
SCORES = 40
# Attention is stored in thousandths, which keeps the data for 64 points and 12 sequences small.
STEPS = 1000


def reached(path: Path) -> NDArray[np.int64]:
    """Return the indices of the points that the path has reached; later ones repeat the last state."""
    length = np.asarray(path.arc_length, np.float64)
    return np.flatnonzero(np.append(True, np.diff(length) > 0))


def curves(path: Path, direction: NDArray[np.float64]) -> dict[str, list[float | None]]:
    """Return ‖p‖, log t, and the position of p relative to a direction, at each point of a path.

    Args:
        path: path of k points, for one seed.
        direction: (D,); the limit direction.

    Returns:
        Lists of k numbers: `norm`, `time`, `away` = 1 - cos(p, direction), `along`, the component of p along
        the direction, and `off`, the displacement of p orthogonal to it, along its principal axis.
    """
    kept = reached(path)
    p = np.asarray(path.p, np.float64)[kept]
    unit = direction / np.linalg.norm(direction)
    along = p @ unit
    moved = p - along[:, None] * unit
    moved = moved - moved[0]
    # Principal direction in which p deviates from its limiting ray, over the whole path.
    _, _, axes = np.linalg.svd(moved, full_matrices=False)
    off = moved @ axes[0]
    off = off * (1 if off[np.argmax(np.abs(off))] >= 0 else -1)
    return {
        "norm": rounded(np.asarray(path.norm)[kept]),
        "time": rounded(np.asarray(path.log_time)[kept]),
        "away": rounded(one_minus_cosine(p, direction)),
        "along": rounded(along),
        "off": rounded(off),
    }


def first_few(scores: Scores) -> list[int]:
    """Return the indices of the first sequences with each label, about `SEQUENCES` in total."""
    targets = np.asarray(scores.corpus.targets)
    labels = sorted(set(targets.tolist()), reverse=True)
    each = max(1, SEQUENCES // len(labels))
    return [int(x) for label in labels for x in np.flatnonzero(targets == label)[:each]][: 2 * SEQUENCES]


def attention_row(
    scores: Scores, of_tokens: NDArray[np.float64], sequence: int, names: Sequence[str]
) -> dict[str, Any]:
    """Return the attention in one sequence, starting with the token that is selected at the end.

    Args:
        scores: the keys and the corpus.
        of_tokens: (k, m); the score of each token at each point of the path.
        sequence: index of the sequence.
        names: m token names.

    Returns:
        `name` and `label` of the sequence, the `tokens` with the most attention, the number of `more` tokens,
        and for each token its `weights` in thousandths at each point.
    """
    bags = scores.corpus.bags
    own = (np.asarray(bags.owner) == sequence)[:, None] & (np.asarray(bags.count) > 0)
    ids, counts = np.asarray(bags.index)[own].astype(int), np.asarray(bags.count)[own].astype(float)
    found = of_tokens[:, ids]
    weights = counts * np.exp(found - found.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    order = np.lexsort((ids, -weights.max(axis=0), -weights[-1]))[:TOKENS]
    label = int(scores.corpus.targets[sequence])
    shown = zip(ids[order], counts[order], strict=True)
    return {
        "name": f"{sequence}",
        "label": f"{label:+d}" if scores.corpus.num_classes == 2 else f"{label}",
        "tokens": [names[s] + (f" ×{c:.0f}" if c > 1 else "") for s, c in shown],
        "more": len(ids) - len(order),
        "weights": np.rint(STEPS * weights[:, order].T).astype(int).tolist(),
    }


def token_scores(
    of_tokens: NDArray[np.float64],
    norms: NDArray[np.float64],
    selected: NDArray[np.bool_],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the scores Φ_s·p/‖p‖ of tokens, in descending order of the scores at the end of the path.

    Args:
        of_tokens: (k, m); the score Φ_s·p of each token at each point of the path.
        norms: (k,); ‖p‖.
        selected: (m,); True for tokens that are selected in at least one sequence at the end.
        names: m token names.

    Returns:
        For each of the `SCORES` tokens with the highest and lowest final scores, its `name`, whether it is
        `selected`, and its `score` at each point; None at p = 0.
    """
    order = np.argsort(-of_tokens[-1], kind="stable")
    if len(order) > SCORES:
        order = np.concatenate([order[: SCORES // 2], order[-SCORES // 2 :]])
    relative = of_tokens[:, order] / np.where(norms > 0, norms, np.nan)[:, None]
    return [
        {"name": names[s], "selected": bool(selected[s]), "score": rounded(column, digits=3)}
        for s, column in zip(order, relative.T, strict=True)
    ]


def support_pairs(
    limit: MaxMargin, of_tokens: NDArray[np.float64], norms: NDArray[np.float64], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the margins p·(Φ_s - Φ_s') ‖p_mm‖/‖p‖ of the support pairs with the largest multipliers.

    Args:
        limit: the max-margin direction p_mm.
        of_tokens: (k, m); the score of each token at each point of the path.
        norms: (k,); ‖p‖.
        names: m token names.

    Returns:
        For each of at most `PAIRS` pairs, the names of its `better` and `worse` token, its `multiplier`, and
        its `margin` at each point; None at p = 0.
    """
    multipliers = np.asarray(limit.multipliers, np.float64)
    order = np.argsort(-multipliers, kind="stable")[:PAIRS]
    better, worse = np.asarray(limit.pairs)[order].T
    scale = 1 / np.where(norms > 0, norms, np.nan) / float(limit.margin)
    margins = (of_tokens[:, better] - of_tokens[:, worse]) * scale[:, None]
    return [
        {"better": names[s], "worse": names[t], "multiplier": float(f"{x:.4g}"), "margin": rounded(each)}
        for s, t, x, each in zip(better, worse, multipliers[order], margins.T, strict=True)
    ]


def rounded(x: Any, digits: int = 5) -> list[float | None]:
    """Round numbers to significant digits. NaN and infinity, which JSON does not support, become None."""
    values = np.asarray(x, np.float64)
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
