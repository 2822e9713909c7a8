"""Self-contained page with a slider that follows the path of p to its max-margin direction."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxattn.attention.scores import Scores
from jaxattn.core.errors import InputError, writing
from jaxattn.dynamics.flows.exact_flow import Path as FlowPath
from jaxattn.lab.pages import layout
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.storage import files
from jaxattn.theory.selection import one_minus_cosine
from jaxattn.theory.solution import MaxMargin

_TEMPLATE = Path(__file__).with_name("explorer.html")
SEQUENCES, TOKENS, _PAIRS = 12, 10, 24
HEIGHT = 1350
# Minimum fraction of its margin that each support pair must have reached at the end of the path.
HALF = 0.5
# Attention is stored in thousandths, which keeps the data for 64 points and 12 sequences small.
STEPS = 1000


@dataclass(frozen=True, repr=False)
class Explorer:
    """Interactive page with a slider along a path of p; notebooks display it inline.

    Attributes:
        title: title of the page.
        data: the data shown on the page.
    """

    title: str
    data: dict[str, Any]

    def html(self) -> str:
        """Return the page as self-contained HTML."""
        return layout.fill(_TEMPLATE, title=self.title, data=self.data)

    def write(self, path: str | Path) -> Path:
        """Write the page to a file and return its path.

        Raises:
            RunError: the file cannot be written.
        """
        path = Path(path)
        with writing(path):
            files.replace(path.resolve(), self.html().encode())
        return path

    def __repr__(self) -> str:
        disagreement = f"; {self.data['disagreement']}" if self.data["disagreement"] else ""
        return f"Explorer({self.title!r}, {len(self.data['norm'])} points of the path{disagreement})"

    def _repr_html_(self) -> str:
        # The iframe isolates the page's styles from the notebook's; a script in the page sets its height.
        return (
            f'<iframe title="{escape(self.title)}" srcdoc="{escape(self.html())}" '
            f'style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
        )


def explore(
    scores: Scores,
    path: FlowPath,
    limit: MaxMargin,
    *,
    sequences: Sequence[int] = (),
    tokens: Sequence[str] = (),
    title: str = "Margin convergence",
) -> Explorer:
    """Build an interactive page that compares a path of p with its max-margin direction p_mm.

    A slider moves along the path. The page shows

        1 - cos(p, p_mm) against log t and against ‖p‖
        the component of p along p_mm, and that of the remainder along its principal direction
        the attention softmax(Φ p) in some sequences
        the margins p·(Φ_s - Φ_s') ‖p_mm‖/‖p‖ of the support pairs (s, s'), which are 1 for p = p_mm

    Args:
        scores: the keys Φ (m, D) and the bags used for the path.
        path: a path from `dynamics.exact_flow`, for one seed.
        limit: the max-margin direction, `theory.max_margin(scores, path.selection)`. The page reports
            support pairs that are not separated at the end of the path.
        sequences: indices of at most 40 sequences to show; defaults to the first six with each label.
        tokens: m token names; defaults to the ids.
        title: title of the page.

    Returns:
        The page. It shows the 10 tokens with the most attention in each sequence, and the 24 support pairs
        with the largest multipliers.

    Raises:
        InputError: the path has several seeds, `limit` contains no direction, or the token names or
            sequences do not match the corpus.

    Source:
        Theorem 4.3 of arXiv 2505.17282.
    """
    p = np.asarray(path.p, np.float64)
    _check(p, scores, limit, sequences, tokens)
    keys = np.asarray(scores.keys, np.float64)
    of_tokens = p @ keys.T  # (k, m)
    names = [str(name) for name in (tokens or range(len(keys)))]
    kept = _reached(path)
    data = {
        **_curves(path, p, np.asarray(limit.p, np.float64)),
        "rows": [_row(scores, of_tokens[kept], int(x), names) for x in sequences or _first_few(scores)],
        "pairs": _pairs(limit, of_tokens[kept], np.linalg.norm(p[kept], axis=1), names),
        "facts": _facts(scores, limit),
        "disagreement": _disagreement(limit, of_tokens[-1], float(np.linalg.norm(p[-1])), names),
    }
    return Explorer(title, data)


def _disagreement(limit: MaxMargin, scores: NDArray[np.float64], norm: float, names: Sequence[str]) -> str:
    better, worse = np.asarray(limit.pairs).T
    reached = (scores[better] - scores[worse]) / (norm * float(limit.margin))
    if not len(reached) or reached.min() > HALF:
        return ""
    pair = int(reached.argmin())
    return (
        f"The path and the limit disagree: {names[better[pair]]} and {names[worse[pair]]} are "
        f"{reached[pair]:.2g} of the margin apart at the end of the path. "
        "Use max_margin(scores, path.selection)."
    )


def _check(
    p: NDArray[np.float64], scores: Scores, limit: MaxMargin, sequences: Sequence[int], tokens: Sequence[str]
) -> None:
    size, n = np.shape(scores.keys)[0], scores.corpus.num_examples
    if p.ndim != 2 or p.shape[1:] != np.shape(scores.keys)[1:]:
        raise InputError(
            f"path: expected p of shape (k, D) for keys {np.shape(scores.keys)} and one seed, got {p.shape}"
        )
    if np.ndim(limit.p) != 1 or not limit.feasible or not np.isfinite(limit.margin):
        raise InputError(
            "limit: not a max-margin direction; pass the result of theory.max_margin for one seed"
        )
    if tokens and len(tokens) != size:
        raise InputError(f"tokens: {len(tokens)} names for {size} tokens; expected one name per token")
    if len(sequences) > 40 or not all(0 <= x < n for x in sequences):
        raise InputError(f"sequences: expected at most 40 indices from 0 to {n - 1}")


def _reached(path: FlowPath) -> NDArray[np.int64]:
    length = np.asarray(path.arc_length, np.float64)
    return np.flatnonzero(np.append(True, np.diff(length) > 0))


def _curves(path: FlowPath, p: NDArray[np.float64], direction: NDArray[np.float64]) -> dict[str, Any]:
    kept = _reached(path)
    unit = direction / np.linalg.norm(direction)
    along = p[kept] @ unit
    moved = p[kept] - along[:, None] * unit
    moved = moved - moved[0]
    # Principal direction in which p deviates from its limiting ray, over the whole path.
    _, _, axes = np.linalg.svd(moved, full_matrices=False)
    off = moved @ axes[0]
    off = off * (1 if off[np.argmax(np.abs(off))] >= 0 else -1)
    return {
        "norm": _numbers(np.asarray(path.norm)[kept]),
        "time": _numbers(np.asarray(path.log_time)[kept]),
        "away": _numbers(one_minus_cosine(p[kept], direction)),
        "along": _numbers(along),
        "off": _numbers(off),
    }


def _first_few(scores: Scores) -> list[int]:
    targets = np.asarray(scores.corpus.targets)
    labels = sorted(set(targets.tolist()), reverse=True)
    each = max(1, SEQUENCES // len(labels))
    return [int(x) for label in labels for x in np.flatnonzero(targets == label)[:each]][: 2 * SEQUENCES]


def _row(
    scores: Scores, of_tokens: NDArray[np.float64], sequence: int, names: Sequence[str]
) -> dict[str, Any]:
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


def _pairs(
    limit: MaxMargin, of_tokens: NDArray[np.float64], norms: NDArray[np.float64], names: Sequence[str]
) -> list[dict[str, Any]]:
    multipliers = np.asarray(limit.multipliers, np.float64)
    order = np.argsort(-multipliers, kind="stable")[:_PAIRS]
    better, worse = np.asarray(limit.pairs)[order].T
    # The direction is undefined at p = 0.
    scale = 1 / np.where(norms > 0, norms, np.nan) / float(limit.margin)
    margins = (of_tokens[:, better] - of_tokens[:, worse]) * scale[:, None]
    return [
        {"better": names[s], "worse": names[t], "multiplier": float(f"{x:.4g}"), "margin": _numbers(each)}
        for s, t, x, each in zip(better, worse, multipliers[order], margins.T, strict=True)
    ]


def _facts(scores: Scores, limit: MaxMargin) -> dict[str, str]:
    multipliers = np.asarray(limit.multipliers, np.float64)
    first = np.sort(multipliers)[::-1][:_PAIRS].sum() / multipliers.sum() if len(multipliers) else 1.0
    facts = {
        "sequences": f"{scores.corpus.num_examples:,}",
        "distinct pairs": f"{int(limit.num_pairs):,}",
        "support pairs": f"{len(multipliers):,}",
        "margin": format_number(float(limit.margin)),
        "relative duality gap": f"{float(limit.duality_gap):.2g}",
        "tied tokens": f"{len(np.unique(np.asarray(limit.ties))):,}" if np.size(limit.ties) else "none",
    }
    if len(multipliers) > _PAIRS:
        facts["support pairs shown"] = f"{_PAIRS}, with {first:.0%} of the sum of multipliers"
    return facts


def _numbers(x: Any) -> list[float | None]:
    """Round numbers for the page. Replace NaN and infinity, which JSON does not support, with null."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(x, np.float64)]
