"""Cosine distance between p and the certified max-margin direction for the tokens that p selects."""

import numpy as np

from jaxattn.lab.books import share, worst
from jaxattn.lab.results.labels import brief

# Tolerance for 1 - cos. For a path at distance ρ from its limiting ray, 1 - cos = (ρ/‖p‖)²/2, where ρ is
# about 1/margin. At ‖p‖ = 1e6, this is about 1e-8 for a margin of 0.01.
CLOSE_ELSEWHERE = 1e-8


def is_close(cell, id, close, claim, **about):
    """Measure the fraction of seeds whose p reaches the final norm of the cell with 1 - cos ≤ `close`.

    The cosine is between the final p and the certified max-margin direction.
    """
    away = cell.last("certified_distance")
    return share(
        id,
        f"seeds with 1 - cos ≤ {brief(close)} at ‖p‖ = {brief(cell.until_norm)}",
        cell.reached & (away <= close),
        known=np.isfinite(away) & np.isfinite(cell.last("p_norm")),
        claim=claim,
        setting=cell.setting,
        certificate=f"{worst(away)}{cell.certificate()}",
        why=cell.failure_reason,
        **about,
    )


def place(cell):
    """Return the part of an id that states the dimension d and the step size η0 of a cell."""
    return f"d={cell['model.dim']}.eta0={cell['phases.step.step_size']:g}"
