"""Evaluation of the claim: the limit of p and v can be certified, and the flow in log r converges to it."""

from typing import Any

import numpy as np

from jaxattn.lab.books import Item, Measured, cells, round_up, share, worst

# The limit counts as confirmed if 1 - cos is at most this at the end of the flow in log r.
CONFIRMED = 1e-5


def mixture(results: Any, item: Item) -> Measured:
    """Measure in how many seeds the limit of p and v is certified, and whether the flow converges to it.

    Source:
        docs/notes/which_mixture.md.
    """
    found = []
    statement = "p and v tend to a certified limit"
    for cell in cells(results):
        holds, away, gap = (cell.last(name, "both") for name in ("certified", "far_error", "gap"))
        certified = holds == 1
        bound = f"gap ≤ {round_up(gap[certified].max(initial=0))}"
        elsewhere, lost = (away > CONFIRMED).sum(), (certified & np.isnan(away)).sum()
        ends = f"{worst(away)}{elsewhere} go elsewhere, {lost} cannot be followed"
        comes = "of these, the far flow has 1 - cos ≤ 1e-5 to it at log r = 1e4"
        of = {"statement": statement, "setting": cell.setting}
        found += [
            share(
                "the limit is certified",
                certified,
                known=np.isfinite(holds),
                certificate=bound,
                why=cell.failure_reason,
                **of,
            ),
            share(
                comes,
                away <= CONFIRMED,
                known=certified,
                certificate=ends,
                why="" if certified.all() else "no limit is certified",
                **of,
            ),
        ]
    return Measured(found, {})
