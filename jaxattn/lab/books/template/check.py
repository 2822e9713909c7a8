"""Criteria of the item. TODO: commit them before the first run."""

import jaxattn as ja
from jaxattn.lab.books import Finding, at_least, cells, mean


def check(results: dict[str, ja.Results]) -> list[Finding]:
    """Measure the cosine between p and the first step at the end of training."""
    (cell,) = cells(results["study"])
    finding = mean(
        "cosine",
        "cosine of p with the first step",
        cell.last("cosine_with_first_step"),
        between=(-1, 1),
        expected=at_least(0.99),
        published="1 as the steps become small",
    )
    return [finding]
