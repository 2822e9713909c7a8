"""Figure 3 on IMDB with other optimisers, rates and batch sizes."""

from figure_shapes import shape_table, shapes

from jaxattn.lab.books import cells, load_code

CRITERIA = load_code(__file__, "../fig3_imdb/check.py:CRITERIA")


def check(results):
    """Measure the shapes of the figure for each choice."""
    rise, u, where = CRITERIA["rise"], CRITERIA["u_shape"], CRITERIA["lowest"]
    for cell in cells(results["study"]):
        yield from shapes(
            cell, rise=rise, u=u, where=where, id=f"{cell.id}.", name=f"{cell.name}: ", longest=False
        )


def tables(results):
    """Return the shapes of each choice."""
    every = cells(results["study"])
    return shape_table(every, [cell.name for cell in every])
