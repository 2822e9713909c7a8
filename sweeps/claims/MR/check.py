"""Several relevant tokens in a sequence, from the public review."""

import numpy as np
from directions import CLOSE_ELSEWHERE, is_close

from jaxattn.lab.books import at_least, cells, share

ONE = "at least one relevant token is selected in every sequence"
EVERY = "all relevant tokens are selected"
OWN = "p/‖p‖ converges to the max-margin direction of its own selection"


def check(results):
    """Measure which of the relevant tokens are selected, and the limit direction.

    The claim about the direction assumes that all relevant tokens are selected. With random E this
    assumption never holds, and no theory then predicts the limit.
    """
    for cell in cells(results["several"]):
        held, all_held = (cell.last(f"{x}relevant_selected") for x in ("", "only_"))
        id, known = f"{cell['data.relevant_per_sequence']}", np.isfinite(held)
        about = {
            "expected": at_least(0.9),
            "known": known,
            "setting": cell.setting,
            "why": cell.failure_reason,
        }
        text = "seeds that select a relevant token in every sequence"
        yield share(f"{id}.one", text, held == 1, claim=ONE, basis="theory", **about)
        text = "seeds that select all relevant tokens in some sequence"
        yield share(f"{id}.all", text, all_held > 0, claim=EVERY, basis="beyond", **about)
        yield is_close(cell, f"{id}.close", CLOSE_ELSEWHERE, OWN, expected=at_least(0.9), basis="beyond")
