"""Spread of E·v and E·p within bins, after one step on E and with E trained to convergence."""

import numpy as np
import pandas as pd
from bin_means import bins_of

from jaxattn.lab.books import cells, leave_one_out

LETTERS = {"Ev": "E·v", "Ep": "E·p"}
SIZE = "phases.embed.step_size"
# The block in which E is trained to convergence.
TRAINED = "E trained to the end"


def ratios(results, *, expected, published):
    """For each η0, measure the spread with E trained to convergence, divided by the spread after one step.

    The spread is the standard deviation within a bin, averaged over bins. For each quantity, `expected`
    contains the criterion, and `published` the published ratio.
    """
    (joint,) = [cell for cell in cells(results) if cell.name == TRAINED]
    found = []
    for quantity, letters in LETTERS.items():
        trained = np.nanmean(bins_of(joint, quantity).sd, axis=1)
        for cell in cells(results):
            if cell.cell != joint.cell:
                size = results.settings(cell.cell)[SIZE]
                found.append(
                    leave_one_out(
                        f"{quantity.lower()}.eta0={size:g}",
                        f"spread of {letters} within bins: trained to convergence ÷ one step with "
                        f"η0 = {size:g}",
                        trained / np.nanmean(bins_of(cell, quantity).sd, axis=1),
                        expected=expected[quantity],
                        published=published[quantity],
                    )
                )
    return found


def spread_table(results):
    """Return a table of the spread within bins, the range of the bin means and their ratio in each cell."""
    rows = []
    for quantity, letters in LETTERS.items():
        for cell in cells(results):
            own = bins_of(cell, quantity)
            sd, height = np.nanmean(own.sd, axis=1), np.nanmax(own.mean, axis=1) - np.nanmin(own.mean, axis=1)
            size = results.settings(cell.cell).get(SIZE)
            rows.append(
                {
                    "": "E trained to convergence" if cell.name == TRAINED else f"one step, η0 = {size:g}",
                    "quantity": letters,
                    "mean spread within bins": sd[0],
                    "range of the bin means": height[0],
                    "spread ÷ range": sd[0] / height[0],
                }
            )
    return {"Spread within bins": pd.DataFrame(rows)}
