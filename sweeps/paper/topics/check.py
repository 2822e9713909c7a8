"""Topics: does E·v order the words by their purity? Nothing is published."""

from figure_shapes import bin_table, shapes

from jaxattn.lab.books import cells


def check(results):
    """Measure the shapes, the order of all words, and the accuracy."""
    (cell,) = cells(results["study"])
    order = "Spearman correlation of E·v with importance over tokens"
    return [*shapes(cell), cell.final("spearman_Ev_tokens", order), cell.final("test_accuracy")]


def tables(results):
    """Return the bin means."""
    return bin_table(*cells(results["study"]))
