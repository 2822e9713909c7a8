"""Embedding dimension d far below the vocabulary size V: nothing is published."""

from figure_shapes import shape_table, shapes

from jaxattn.lab.books import cells


def check(results):
    """Measure the shapes for each d."""
    for cell in cells(results["study"]):
        d = cell["model.dim"]
        yield from shapes(cell, id=f"d={d}.", name=f"d = {d}: ", longest=False)


def tables(results):
    """Return the shapes for each d."""
    every = cells(results["study"])
    return shape_table(every, [f"d = {cell['model.dim']}" for cell in every])
