"""Judges of what this project found beyond the paper, as rows of the scoreboard."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxattn.reproduction.cell import Cell, round_up, worst
from jaxattn.reproduction.rows import REQUIRED, Claim, Row, share
from jaxattn.results import judge
from jaxattn.results.judge import at_least
from jaxattn.results.labels import brief, setting
from jaxattn.theory import label_window

# The edges of the window of η0 are those of the median seed, up to a fifth: there half of the seeds have to.
NEAR, HALF = 1.2, 0.5
# Relative distance of E·v from the law of covers; 1 - cos at the end of the far flow of p and v.
LAWFUL, CONFIRMED = 0.01, 1e-5


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
    rows = []
    for cell in cells:
        step_size, kept = cell["phases.step.step_size"], cell.last("kept")
        inside = window.lower < step_size < window.upper
        near = any(edge / NEAR < step_size < edge * NEAR for edge in (window.lower, window.upper))
        claim = Claim("label", "a label is lost where label_window says so, and only there", cell.setting)
        measured = f"{'a' if inside else 'no'} label is lost{', as for the median seed' if near else ''}"
        found = judge.share((kept < HALF) == inside, np.isfinite(kept))
        text = f"lost from {window.lower:.0f} to {window.upper:.0f}, as predicted"
        rows.append(Row(claim, measured, found, at_least(HALF if near else REQUIRED), text, cell.why))
    return rows


def cover(cells: Sequence[Cell]) -> list[Row]:
    """Judge that E, p and v trained together end on a cover and on its law, and from small starts on which.

    Source:
        docs/findings/which_cover.md.
    """
    rows = []
    for cell in cells:
        start, end = cell["model.init.E.scale"], -cell["phases.all.until_log_loss"]
        sizes = f"R = {cell['data.relevant']}, d = {setting(cell['model.dim'])}, start × {start:g}"
        law, order = (
            Claim("cover", statement, f"{cell.data}, {sizes}")
            for statement in (
                "tokens on top are a cover, and their values E·v tend to y ‖v‖²/√r",
                "a small start leads to scores in the order of α or -α, and the sign of S says which",
            )
        )
        away = cell.last("cover_error", "all")
        lawful = (cell.last("came_to_end", "all") == 1) & (cell.last("cover_share", "all") == 1)
        lawful &= away <= LAWFUL
        # Where S is 0 nothing is foretold.
        winner, sign = cell.last("winner", "all"), cell.last("variance_sign", "all")
        told = (cell.last("follows_alpha", "all") == 1) & ((winner == sign) | (sign == 0))
        of: dict[str, Any] = {"known": np.isfinite(away), "why": cell.why}
        largest = f"distance ≤ {round_up(away[of['known']].max(initial=0))}"
        measured = f"a cover, E·v within {100 * LAWFUL:g} % of that at L = e^(-{end:,.0f})"
        rows += [
            share(law, measured, lawful, certificate=largest, **of),
            share(order, "all sequences in that order, the label that of S", told, **of),
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
        certified = holds == 1
        bound = f"gap ≤ {round_up(gap[certified].max(initial=0))}"
        ends = f"{worst(away)}{(away > CONFIRMED).sum()} go elsewhere"
        comes = f"of these, the far flow has 1 - cos ≤ {brief(CONFIRMED)} to it at log r = 1e4"
        of: dict[str, Any] = {"known": certified, "certificate": ends, "why": "no limit is certified"}
        rows += [
            share(
                claim,
                "the limit is certified",
                certified,
                known=np.isfinite(holds),
                certificate=bound,
                why=cell.why,
            ),
            share(claim, comes, away <= CONFIRMED, **of),
        ]
    return rows
