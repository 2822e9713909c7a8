"""MLP head on IMDB: comparison with twenty published bin means of E·v and of E·p."""

from curve_ranks import compare, compare_table
from published_curves import MLP

from jaxattn.lab.books import around, at_least, cells


def check(results):
    """Compare the order of the bin means, the longest rise of E·v, and the minimum of E·p."""
    (cell,) = cells(results["study"])
    return compare(
        cell,
        MLP,
        ranks=at_least(0.8),
        longest=around(12.0, 5.0),
        longest_text="12, -0.18 to 0.89",
        where=around(0.015, 0.2),
        where_text="0.015",
    )


def tables(results):
    """Return the bin means next to the published ones."""
    return compare_table(*cells(results["study"]), MLP)
