"""Comparison of bin means with a published pair of curves for E·v and E·p."""

from bin_means import bins_of, table_of
from figure_shapes import CORRELATION, minimum_of, rise_length

from jaxattn.lab.books import leave_one_out, spearman


def compare(cell, curves, *, ranks, longest, longest_text, where, where_text):
    """Measure rank correlations with the published curves, the longest rise of E·v and the minimum of E·p.

    Args:
        cell: the cell.
        curves: the published curves of E·v and E·p.
        ranks: criterion for both rank correlations.
        longest: criterion for the number of bins in the longest rise.
        longest_text: the published longest rise.
        where: criterion for the location of the minimum.
        where_text: the published location.
    """
    own = bins_of(cell, "Ev"), bins_of(cell, "Ep")
    found = [
        leave_one_out(
            id,
            f"Spearman correlation of {curve.letters} with the published bin means",
            spearman(bins.mean, curve.values),
            between=CORRELATION,
            expected=ranks,
            published="1",
        )
        for id, bins, curve in zip(("ev_ranks", "ep_ranks"), own, curves, strict=True)
    ]
    text = f"location of the minimum of {curves[1].letters}"
    return [
        *found,
        rise_length(own[0], "longest_rise", expected=longest, published=longest_text),
        minimum_of(own[1], "lowest", text, where, where_text),
    ]


def compare_table(cell, curves):
    """Return a table of the bin means next to the published bin means."""
    return {"Bin means": table_of(bins_of(cell, "Ev"), bins_of(cell, "Ep"), *curves)}
