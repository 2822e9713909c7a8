"""Figure 3, one layer on IMDB."""

from figure_shapes import bin_table, shapes

from jaxattn.lab.books import around, at_least, cells

# The paper shows the shapes; the thresholds are chosen here.
CRITERIA = {"rise": at_least(0.9), "u_shape": at_least(0.8), "lowest": around(0.0, 0.3)}


def check(results):
    """Measure whether E·v rises, and whether E·p is U-shaped about 0."""
    (cell,) = cells(results["study"])
    return shapes(cell, rise=CRITERIA["rise"], u=CRITERIA["u_shape"], where=CRITERIA["lowest"])


def tables(results):
    """Return the bin means."""
    return bin_table(*cells(results["study"]))
