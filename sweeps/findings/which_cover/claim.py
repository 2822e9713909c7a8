"""Evaluation of the claim that training E, p and v ends on a cover, and that small starts determine which."""

from typing import Any

import numpy as np

from jaxattn.lab.books import Item, Measured, cells, round_up, share

# A seed counts as following the set-cover law if the relative distance of E·v from the law is at most this.
LAWFUL = 0.01
METRICS = (
    *("came_to_end", "cover_share", "cover_error", "cover_size", "shortest_cover"),
    *("follows_alpha", "winner", "variance_sign"),
)


def cover(results: Any, item: Item) -> Measured:
    """Measure how often training ends on a cover with the predicted E·v, and small starts end as predicted.

    Source:
        docs/notes/which_cover.md.
    """
    found = []
    for cell in cells(results):
        of = {name: cell.last(name, "all") for name in METRICS}
        known, came = np.isfinite(of["cover_error"]), of["came_to_end"] == 1
        lawful = came & (of["cover_share"] == 1) & (of["cover_error"] <= LAWFUL)
        # The theory makes no prediction for S = 0.
        label_of_s = (of["winner"] == of["variance_sign"]) | (of["variance_sign"] == 0)
        ordered = (of["follows_alpha"] == 1) & label_of_s
        largest = round_up(of["cover_error"][known].max(initial=0))
        ends = f"distance ≤ {largest}, {came.sum()} of {len(came)} come there"
        start, end = cell["model.init.E.scale"], -cell["phases.all.until_log_loss"]
        where = f"{cell.data}, R = {cell['data.relevant']}, d = {cell['model.dim']}, start × {start:g}"
        law = "tokens on top are a cover, and their values E·v tend to y ‖v‖²/√r"
        order = "a small start leads to the order of α or of -α, as the sign of S says"
        found += [
            share(
                f"a cover, E·v within {100 * LAWFUL:g} % of that at L = e^(-{end:,.0f})",
                lawful,
                known=known,
                statement=law,
                setting=where,
                certificate=ends,
                why=cell.failure_reason,
            ),
            share(
                "all sequences in that order, the label that of S",
                ordered,
                known=known,
                statement=order,
                setting=where,
                why=cell.failure_reason,
            ),
            share(
                "a shortest cover",
                of["cover_size"] == of["shortest_cover"],
                known=known,
                statement="a small start leads to a shortest cover",
                setting=where,
                why=cell.failure_reason,
            ),
        ]
    return Measured(found, {})
