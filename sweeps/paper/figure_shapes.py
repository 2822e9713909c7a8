"""Shapes of Figures 1 to 3: E·v rises with the posterior difference, and E·p is U-shaped with centre 0."""

import numpy as np
import pandas as pd
from bin_means import bins_of, table_of

from jaxattn.lab.books import leave_one_out, lowest, spearman, u_shape

CORRELATION = (-1.0, 1.0)


def shapes(cell, *, rise=None, u=None, where=None, id="", name="", longest=True):
    """Measure the shapes of E·v and E·p as functions of the posterior difference in a cell.

    Args:
        cell: the cell.
        rise: criterion for the Spearman correlation of E·v with the bin centres.
        u: criterion for the U-shape score of E·p, the weaker of the Spearman correlations on the two sides
            of 0.
        where: criterion for the centre of the bin in which E·p is lowest.
        id: prefix of the ids, if more than one cell is measured.
        name: prefix of the texts.
        longest: whether to also measure the longest rise of E·v.
    """
    ev, ep = bins_of(cell, "Ev"), bins_of(cell, "Ep")
    up, minimum = ("increasing" if rise else ""), ("U-shaped" if u else "")
    found = [
        leave_one_out(
            f"{id}rise",
            f"{name}Spearman correlation of E·v with the bin centres",
            spearman(ev.mean, ev.centres),
            between=CORRELATION,
            expected=rise,
            published=up,
        )
    ]
    found += [rise_length(ev, f"{id}longest_rise")] if longest else []
    return [
        *found,
        leave_one_out(
            f"{id}u_shape",
            f"{name}U-shape score of E·p, centred at 0 (1 for a perfect U)",
            u_shape(ep.mean, ep.centres),
            between=CORRELATION,
            expected=u,
            published=minimum,
        ),
        minimum_of(ep, f"{id}lowest", f"{name}location of the minimum of E·p", where, minimum),
    ]


def rise_length(ev, id, **about):
    """Measure the number of bins in the longest rise of E·v."""
    bins, first, final = longest_rise(ev.mean)
    where = f"{ev.centres[int(first[0])]:.2f} to {ev.centres[int(final[0])]:.2f}"
    text = f"number of bins in the longest rise of E·v, which extends from {where}"
    return leave_one_out(id, text, bins, between=(1, len(ev.centres)), **about)


def minimum_of(ep, id, text, expected, published):
    """Measure the centre of the bin in which E·p is lowest.

    This locates the minimum to within one bin width.
    """
    centres = lowest(ep.mean, ep.centres)
    return leave_one_out(id, text, centres, expected=expected, published=published, resolution=ep.width)


def bin_table(cell):
    """Return a table of the bin means of a cell."""
    return {"Bin means": table_of(bins_of(cell, "Ev"), bins_of(cell, "Ep"))}


def shape_table(every, names):
    """Return a table of the measured shapes of several cells, with one row per cell."""
    rows = []
    for cell, name in zip(every, names, strict=True):
        found = shapes(cell)
        row = {"": name} | {each.text.partition(",")[0]: each.measured for each in found}
        rows.append(row | {"test accuracy": cell.final("test_accuracy").measured})
    return {"Shapes": pd.DataFrame(rows)}


def longest_rise(rows):
    """Find the longest run of increasing entries in each row of a (B, m) array, ignoring NaN entries.

    Returns:
        The numbers of entries, the first bins and the last bins of the runs, as three (B,) arrays.
    """
    found = np.array([longest_run(row) for row in rows], float)
    return found[:, 0], found[:, 1], found[:, 2]


def longest_run(row):
    """Return the number of entries, the first bin and the last bin of the longest rise in a row."""
    used = np.flatnonzero(np.isfinite(row))
    best, start = (0, 0, 0), 0
    for k in range(len(used)):
        if k and row[used[k]] <= row[used[k - 1]]:
            start = k
        best = max(best, (k - start + 1, int(used[start]), int(used[k])), key=lambda run: run[0])
    return best
