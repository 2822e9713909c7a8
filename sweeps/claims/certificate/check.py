"""Max-margin directions certified in exact arithmetic."""

import numpy as np

from jaxattn.lab.books import at_least, cells, round_up, share


def check(results):
    """Measure how often the independent checker accepts the certificate; state the largest proven gap."""
    (cell,) = cells(results["certified"])
    accepted, gap = cell.last("accepted"), cell.last("proven_gap")
    finding = share(
        "accepted",
        "accepted by the independent checker",
        accepted == 1,
        known=np.isfinite(accepted),
        expected=at_least(0.99),
        basis="theory",
        claim="max-margin directions are certified in exact arithmetic",
        setting=cell.setting,
        certificate=f"proven gap at most {round_up(np.nanmax(gap))}",
    )
    return [finding]
