"""Judges of what this project found beyond the paper, as rows of the scoreboard."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxattn.lab.books.rows import REQUIRED, Cell, Claim, Row, round_up, share, worst
from jaxattn.lab.results import judge
from jaxattn.lab.results.judge import at_least
from jaxattn.lab.results.labels import brief, setting
from jaxattn.lab.study.import_paths import ImportPaths

# Of this checkout, as are the studies whose runs are judged.
LABEL_WINDOW = Path(__file__).parents[3] / "sweeps" / "findings" / "label_window"

# The edges of the window of η0 are those of the median seed, up to a fifth: there half of the seeds have to.
NEAR, HALF = 1.2, 0.5
# Relative distance of E·v from the law of covers; 1 - cos at the end of the far flow of p and v.
LAWFUL, CONFIRMED = 0.01, 1e-5
_COVER = (
    *("came_to_end", "cover_share", "cover_error", "cover_size", "shortest_cover"),
    *("follows_alpha", "winner", "variance_sign"),
)


def label_window(**sizes: Any) -> Any:
    """Compute the window with the code of the finding, which belongs to the checkout."""
    return ImportPaths(LABEL_WINDOW).load("label_window.py:label_window")(**sizes)


def label(cells: Sequence[Cell]) -> list[Row]:
    """Judge that the flow of p loses the tokens of one label where `label_window` says so, and only there.

    Lost: fewer than half of the sequences of a label have their relevant token on top.

    Args:
        cells: step sizes η0, all else equal; counts of relevant tokens are.

    Source:
        docs/findings/which_label.md.
    """
    names = ("relevant", "length", "vocab_size", "sequences")
    window = label_window(**{x: cells[0][f"data.{x}"] for x in names}, dim=cells[0]["model.dim"])
    there = f"from {window.lower:.0f} to {window.upper:.0f}" if window.lower < window.upper else "nowhere"
    rows, text = [], f"predicted: lost {there}"
    for cell in cells:
        step_size, kept = cell["phases.step.step_size"], cell.last("kept")
        inside = window.lower < step_size < window.upper
        near = any(edge / NEAR < step_size < edge * NEAR for edge in (window.lower, window.upper))
        claim = Claim("label", "a label is lost where label_window says so, and only there", cell.setting)
        measured = f"{'a' if inside else 'no'} label is lost{', as for the median seed' if near else ''}"
        found = judge.share((kept < HALF) == inside, np.isfinite(kept))
        rows.append(Row(claim, measured, found, at_least(HALF if near else REQUIRED), text, cell.why))
    return rows


def cover(cells: Sequence[Cell]) -> list[Row]:
    """Judge that E, p and v trained together end on a cover and on its law, and from small starts on which.

    Source:
        docs/findings/which_cover.md.
    """
    rows = []
    for cell in cells:
        of = {name: cell.last(name, "all") for name in _COVER}
        known, came = np.isfinite(of["cover_error"]), of["came_to_end"] == 1
        lawful = came & (of["cover_share"] == 1) & (of["cover_error"] <= LAWFUL)
        # Where S is 0 nothing is foretold.
        label_of_s = (of["winner"] == of["variance_sign"]) | (of["variance_sign"] == 0)
        told = (of["follows_alpha"] == 1) & label_of_s
        largest = round_up(of["cover_error"][known].max(initial=0))
        ends = f"distance ≤ {largest}, {came.sum()} of {len(came)} come there"
        start, end = cell["model.init.E.scale"], -cell["phases.all.until_log_loss"]
        where = (
            f"{cell.data}, R = {cell['data.relevant']}, d = {setting(cell['model.dim'])}, start × {start:g}"
        )
        law = Claim("cover", "tokens on top are a cover, and their values E·v tend to y ‖v‖²/√r", where)
        order = Claim("cover", "a small start leads to the order of α or of -α, as the sign of S says", where)
        short = Claim("cover", "a small start leads to a shortest cover", where, promised=False)
        within = f"a cover, E·v within {100 * LAWFUL:g} % of that at L = e^(-{end:,.0f})"
        ordered = "all sequences in that order, the label that of S"
        shortest = judge.share(of["cover_size"] == of["shortest_cover"], known)
        rows += [
            share(law, within, lawful, known=known, certificate=ends, why=cell.why),
            share(order, ordered, told, known=known, why=cell.why),
            Row(short, "a shortest cover", shortest, why=cell.why),
        ]
    return rows


def mixture(cells: Sequence[Cell]) -> list[Row]:
    """Judge that the limit of p and v can be certified, and that the far flow then comes to it.

    Source:
        docs/findings/which_mixture.md.
    """
    rows = []
    for cell in cells:
        claim = Claim("mixture", "p and v tend to a certified limit", cell.setting)
        holds, away, gap = (cell.last(name, "both") for name in ("certified", "far_error", "gap"))
        known, certified = np.isfinite(holds), holds == 1
        bound = f"gap ≤ {round_up(gap[certified].max(initial=0))}"
        elsewhere, lost = (away > CONFIRMED).sum(), (certified & np.isnan(away)).sum()
        ends = f"{worst(away)}{elsewhere} go elsewhere, {lost} cannot be followed"
        comes = f"of these, the far flow has 1 - cos ≤ {brief(CONFIRMED)} to it at log r = 1e4"
        why = "" if certified.all() else "no limit is certified"
        rows += [
            share(claim, "the limit is certified", certified, known=known, certificate=bound, why=cell.why),
            share(claim, comes, away <= CONFIRMED, known=certified, certificate=ends, why=why),
        ]
    return rows
