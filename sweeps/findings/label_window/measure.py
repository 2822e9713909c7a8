"""Evaluation of the predicted window: the share of seeds in which a label is lost, for each step size."""

from typing import Any

import numpy as np
from label_window import label_window

from jaxattn.lab.books import Cell, Finding, Item, Measured, at_least, cells, share

# The predicted edges apply to the median seed. At steps within a factor of NEAR of an edge, only a fraction
# HALF of the seeds need to agree with the prediction; at all other steps, a fraction MOST.
NEAR, HALF, MOST = 1.2, 0.5, 0.9


def predicted(results: Any, item: Item) -> Measured:
    """Measure, for each η0, the share of seeds that agree with the window: a label is lost only inside it.

    A label is lost if fewer than half of its sequences have their relevant token on top.

    Args:
        results: a run with several η0 and otherwise equal settings; counts of relevant tokens are equal.
        item: not used.

    Source:
        docs/notes/which_label.md.
    """
    every = cells(results)
    names = ("relevant", "length", "vocab_size", "sequences")
    window = label_window(**{x: every[0][f"data.{x}"] for x in names}, dim=every[0]["model.dim"])
    return Measured([_kept(cell, window.lower, window.upper) for cell in every], {})


def _kept(cell: Cell, lower: float, upper: float) -> Finding:
    step_size, kept = cell["phases.step.step_size"], cell.last("kept")
    inside = lower < step_size < upper
    near = any(edge / NEAR < step_size < edge * NEAR for edge in (lower, upper))
    there = f"from {lower:.0f} to {upper:.0f}" if lower < upper else "nowhere"
    return share(
        f"{'a' if inside else 'no'} label is lost{', as for the median seed' if near else ''}",
        (kept < HALF) == inside,
        known=np.isfinite(kept),
        cell=f"η0 = {step_size:g}",
        criterion=at_least(HALF if near else MOST),
        statement="a label is lost where label_window says so, and only there",
        setting=cell.setting,
        certificate=f"predicted: lost {there}",
        why=cell.failure_reason,
    )
