"""The measure of the item: the rows of the scoreboard, one for each step size."""

from typing import Any

from jaxattn.lab.books import Finding, Measured, found
from jaxattn.lab.books.rows import Cell


def predicted(results: Any, item: Any) -> Measured:
    """Measure in how many runs a label is lost, or kept, as `label_window` says."""
    seeds = results.records["seed"].nunique()
    cells = [
        Cell(results, int(number), results.records["seed"].max() + 1) for number in results.cells["cell"]
    ]
    findings = [
        Finding(f"η0 = {cell['phases.step.step_size']:g}: {row.measured}", row.estimate, f"{seeds} seeds")
        for cell, row in zip(cells, found.label(cells), strict=True)
    ]
    return Measured(findings, {})
