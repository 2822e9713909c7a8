"""Single-location regression: alignment of the attention and value directions, and the test loss."""

from jaxattn.lab.books import at_least, cells

ALIGNED = {"expected": at_least(0.9), "published": "tends to 1"}


def check(results):
    """Measure the final alignments and loss."""
    (cell,) = cells(results["study"])
    return [
        cell.final("kappa", "final |κ|", **ALIGNED),
        cell.final("nu", "final |ν|", **ALIGNED),
        cell.final("test_loss", "final test loss"),
    ]
