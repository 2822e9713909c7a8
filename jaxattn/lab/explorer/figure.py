"""Figure with a slider that follows the path of p to its max-margin direction."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from jaxattn.attention.scores import Scores
from jaxattn.core.errors import InputError, writing
from jaxattn.dynamics.flows.exact_flow import Path as FlowPath
from jaxattn.lab.explorer import charts, numbers
from jaxattn.lab.pages import layout
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.storage import files
from jaxattn.theory.solution import MaxMargin

HERE = Path(__file__).parent
# Height of the notebook's iframe in pixels, until a script in the page sets it.
HEIGHT = 1100
# Minimum fraction of its margin that each support pair must have reached at the end of the path.
HALF = 0.5


@dataclass(frozen=True, repr=False)
class Explorer:
    """Interactive figure with a slider along a path of p; notebooks display it inline.

    Without scripts, and on paper, the figure shows the end of the path.

    Attributes:
        title: title of the figure.
        data: the numbers that the figure shows.
    """

    title: str
    data: dict[str, Any]

    def figure(self) -> str:
        """Return the figure as an HTML element with its style and script, for use within another page.

        It loads nothing from the network. Its colours follow the CSS property `color-scheme` of the page.
        """
        return layout.fill(HERE / "figure.html", **self._content(), opened=False)

    def html(self) -> str:
        """Return a self-contained HTML page with the figure."""
        figure = layout.fill(HERE / "figure.html", **self._content(), opened=True)
        verdict = (
            f"1 - cos(p, p_mm) decreases from {charts.number(self.data['away'][0])} to "
            f"{charts.number(self.data['away'][-1])} at ‖p‖ = {charts.number(self.data['norm'][-1])}. The "
            "max-margin direction p_mm is certified with a relative duality gap of "
            f"{self.data['facts']['relative duality gap']}. {self.data['disagreement']}"
        )
        return layout.fill(
            HERE / "page.html", title=self.title, verdict=verdict.strip(), figure=Markup(figure)
        )

    def write(self, path: str | Path) -> Path:
        """Write the page to a file and return its path.

        Raises:
            RunError: the file cannot be written.
        """
        path = Path(path)
        with writing(path):
            files.replace(path.resolve(), self.html().encode())
        return path

    def _content(self) -> dict[str, Any]:
        """Return the variables of the template figure.html; `state` is the data that its script reads."""
        data = self.data
        curves = {
            "time": charts.curve(
                data["time"], data["away"], (charts.SIGNED_LOG, charts.LOG), ("log t", "1 − cos")
            ),
            "norm": charts.curve(data["norm"], data["away"], (charts.LOG, charts.LOG), ("‖p‖", "1 − cos")),
            "plane": charts.curve(
                data["along"],
                data["off"],
                (charts.SIGNED_LOG, charts.LINEAR),
                ("along the limit", "orthogonal to it"),
            ),
        }
        dots = charts.dots([token["score"] for token in data["tokens"]])
        readouts = [_readout(*row) for row in zip(data["time"], data["away"], data["norm"], strict=True)]
        state = {
            "readouts": readouts,
            "curves": {name: curve.points for name, curve in curves.items()},
            "attention": [row["weights"] for row in data["rows"]],
            "scores": [token["score"] for token in data["tokens"]],
            "scale": [dots.zero, dots.unit],
            "margins": [
                [each and charts.margin_x(each) for each in pair["margin"]] for pair in data["pairs"]
            ],
        }
        return {
            "title": self.title,
            "data": data,
            "curves": curves,
            "dots": dots,
            "readouts": readouts,
            "chart": charts,
            "most": max((pair["multiplier"] for pair in data["pairs"]), default=1.0),
            # In a script element, "<" could begin the end tag.
            "state": Markup(json.dumps(state, separators=(",", ":")).replace("<", "\\u003c")),
            "css": Markup((HERE / "figure.css").read_text(encoding="utf-8")),
            "script": Markup((HERE / "figure.js").read_text(encoding="utf-8")),
        }

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
    """Build an interactive figure that compares a path of p with its max-margin direction p_mm.

    A slider moves along the path, and starts at its end. The figure shows

        1 - cos(p, p_mm) against log t and against ‖p‖
        the scores Φ_s·p/‖p‖ of tokens
        the attention softmax(Φ p) in some sequences
        the component of p along p_mm, and that of the remainder along its principal direction
        the margins p·(Φ_s - Φ_s') ‖p_mm‖/‖p‖ of the support pairs (s, s'), which are 1 for p = p_mm

    Args:
        scores: the keys Φ (m, D) and the bags used for the path.
        path: a path from `dynamics.exact_flow`, for one seed.
        limit: the max-margin direction, `theory.max_margin(scores, path.selection)`. The page reports
            support pairs that are not separated at the end of the path.
        sequences: indices of at most 40 sequences to show; defaults to the first six with each label.
        tokens: m token names; defaults to the ids.
        title: title of the figure.

    Returns:
        The figure. It shows the 10 tokens with the most attention in each sequence, the 40 tokens with the
        highest and lowest final scores, and the 24 support pairs with the largest multipliers.

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
    kept = numbers.reached(path)
    norms = np.linalg.norm(p[kept], axis=1)
    selected = np.asarray(path.selection.tokens(scores.corpus))
    shown = sequences or numbers.first_few(scores)
    data = {
        **numbers.curves(path, np.asarray(limit.p, np.float64)),
        "rows": [numbers.attention_row(scores, of_tokens[kept], int(x), names) for x in shown],
        "tokens": numbers.token_scores(of_tokens[kept], norms, selected, names),
        "pairs": numbers.support_pairs(limit, of_tokens[kept], norms, names),
        "facts": _facts(scores, limit),
        "disagreement": _disagreement(limit, of_tokens[-1], float(norms[-1]), names),
    }
    return Explorer(title, data)


def _readout(time: float | None, away: float | None, norm: float | None) -> str:
    """Describe a point of the path: its time, the distance and angle to the limit, and ‖p‖."""
    # 1 - cos = 2 sin²(angle/2) is accurate for small angles. It is undefined at p = 0.
    distance = "undefined"
    if away is not None:
        angle = math.degrees(2 * math.asin(min(1.0, math.sqrt(max(away, 0.0) / 2))))
        distance = f"{charts.number(away)} (angle {charts.number(angle)}°)"
    moment = "t = 0" if time is None else f"log t = {charts.number(time)}"
    return f"{moment}; 1 {charts.MINUS} cos = {distance}; ‖p‖ = {charts.number(norm)}"


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


def _facts(scores: Scores, limit: MaxMargin) -> dict[str, str]:
    multipliers = np.asarray(limit.multipliers, np.float64)
    first = np.sort(multipliers)[::-1][: numbers.PAIRS].sum() / multipliers.sum() if len(multipliers) else 1.0
    facts = {
        "sequences": f"{scores.corpus.num_examples:,}",
        "distinct pairs": f"{int(limit.num_pairs):,}",
        "support pairs": f"{len(multipliers):,}",
        "margin": format_number(float(limit.margin)),
        "relative duality gap": f"{float(limit.duality_gap):.2g}",
        "tied tokens": f"{len(np.unique(np.asarray(limit.ties))):,}" if np.size(limit.ties) else "none",
    }
    if len(multipliers) > numbers.PAIRS:
        facts["support pairs shown"] = f"{numbers.PAIRS}, with {first:.0%} of the sum of multipliers"
    return facts
