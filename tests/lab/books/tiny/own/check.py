"""Signs of the error."""

from jaxattn.lab.books import at_least, cells, share


def check(results):
    """Count the cells and seeds whose error is not negative."""
    errors = [x for cell in cells(results["study"]) for x in cell.last("one_step_error")]
    hit = [x >= 0 for x in errors]
    return [
        share("exponent", "share of errors that are not negative", hit, unit="draw", expected=at_least(0.5))
    ]
