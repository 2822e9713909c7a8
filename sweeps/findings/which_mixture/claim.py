"""Check that the limit of p and v can be certified, and that the flow in log r converges to it."""

import numpy as np

from jaxattn.lab.books import at_least, cells, round_up, share, slug, worst

CLAIM = "p and v converge to a certified limit"
# The limit counts as confirmed if 1 - cos is at most this value at the end of the flow in log r.
CONFIRMED = 1e-5


def check(results):
    """Measure for how many seeds the limit of p and v is certified, and how many flows converge to it.

    Source:
        docs/notes/which_mixture.md.
    """
    for cell in cells(results["claim"]):
        holds, away, gap = (cell.last(name, "both") for name in ("certified", "far_error", "gap"))
        certified, id = holds == 1, slug(cell.name)
        elsewhere, lost = (away > CONFIRMED).sum(), (certified & np.isnan(away)).sum()
        about = {"expected": at_least(0.9), "basis": "theory", "claim": CLAIM, "setting": cell.setting}
        yield share(
            f"{id}.certified",
            "seeds with a certified limit",
            certified,
            known=np.isfinite(holds),
            certificate=f"gap ≤ {round_up(gap[certified].max(initial=0))}",
            why=cell.failure_reason,
            **about,
        )
        yield share(
            f"{id}.confirmed",
            "certified seeds whose flow in log r converges to the limit (1 - cos at most 1e-5 at "
            "log r = 1e4)",
            away <= CONFIRMED,
            known=certified,
            certificate=f"{worst(away)}{elsewhere} converge to another direction, {lost} cannot be followed",
            why="" if certified.all() else "no limit is certified",
            **about,
        )
