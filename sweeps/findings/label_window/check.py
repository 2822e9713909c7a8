"""The predicted window: in how many seeds attention ignores a label, for each step size."""

import numpy as np
from label_window import label_window

from jaxattn.lab.books import at_least, cells, share

CLAIM = "attention ignores a label exactly for the step sizes that label_window predicts"
# The predicted edges apply to the median seed. At steps within a factor of NEAR of an edge, only a fraction
# HALF of the seeds need to agree with the prediction; at all other steps, a fraction MOST.
NEAR, HALF, MOST = 1.2, 0.5, 0.9


def check(results):
    """Measure, for each η0, the share of seeds that agree with the window: a label is ignored only inside it.

    A label is ignored if fewer than half of its sequences have their relevant token on top. All cells have
    the same settings except η0, and equal counts of relevant tokens.

    Source:
        docs/notes/which_label.md.
    """
    every = cells(results["study"])
    names = ("relevant", "length", "vocab_size", "sequences")
    window = label_window(**{x: every[0][f"data.{x}"] for x in names}, dim=every[0]["model.dim"])
    return [agrees_with(cell, window.lower, window.upper) for cell in every]


def agrees_with(cell, lower, upper):
    """Measure the share of seeds that ignore a label if η0 is in the window, or none outside it."""
    step_size, kept = cell["phases.step.step_size"], cell.last("kept")
    inside = lower < step_size < upper
    near = any(edge / NEAR < step_size < edge * NEAR for edge in (lower, upper))
    there = f"for η0 from {lower:.0f} to {upper:.0f}" if lower < upper else "nowhere"
    edge = " (step size next to a predicted edge)" if near else ""
    return share(
        f"eta0={step_size:g}",
        f"η0 = {step_size:g}: seeds in which {'a' if inside else 'no'} label is ignored{edge}",
        (kept < HALF) == inside,
        known=np.isfinite(kept),
        expected=at_least(HALF if near else MOST),
        basis="theory",
        claim=CLAIM,
        setting=cell.setting,
        certificate=f"a label is predicted to be ignored {there}",
        why=cell.failure_reason,
    )
