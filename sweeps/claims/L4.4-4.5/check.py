"""Lemmas 4.4 and 4.5: after a large step on E, every sequence attends to its important token."""

import numpy as np
from directions import place

from jaxattn.lab.books import at_least, cells, mean, share

CLAIM = "every sequence selects its important token for large t"


def check(results):
    """Measure the selection in the setting of the lemmas, and in settings that they do not cover."""
    yield from selects(results["base"], "base", basis="theory")
    for name in ("beyond", "independent"):
        yield from selects(results[name], name, basis="beyond")


def selects(results, id, *, basis):
    """Measure the share of seeds in which every sequence selects its relevant token.

    Beyond the lemmas, the share of such sequences is measured as well.
    """
    for cell in cells(results):
        held = cell.last("relevant_selected")
        # Without Assumption 1, a sequence may contain several relevant tokens, or none.
        only_one = cell["data.kind"] == "assumption1"
        about = {"claim": CLAIM, "setting": cell.setting, "why": cell.failure_reason, "basis": basis}
        every = (
            "seeds that select the important token in every sequence"
            if only_one
            else "seeds that select a relevant token in every sequence that has one"
        )
        known = np.isfinite(held)
        yield share(
            f"{id}.{place(cell)}.every", every, held == 1, known=known, expected=at_least(0.9), **about
        )
        if basis == "beyond":
            some = (
                "share of sequences that select the important token"
                if only_one
                else "share of sequences that select a relevant token, of those that have one"
            )
            yield mean(f"{id}.{place(cell)}.some", some, held, between=(0.0, 1.0), **about)
