"""Measure how often randomly chosen settings reproduce the published shapes of a figure.

This is intended for figures whose settings were not published.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from jaxattn.lab.books.book import Item
from jaxattn.lab.books.findings import Finding, Measured, with_criteria
from jaxattn.lab.books.metrics import last
from jaxattn.lab.books.shapes import LOWEST, RISE, U, shapes
from jaxattn.lab.results.correlations import spearman
from jaxattn.lab.results.judge import share
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.results.run import Run, find_cell

# Findings of `shapes` whose frequencies are measured, with their column names and descriptions.
SHAPES = {
    RISE: ("rise of E·v", "E·v rises"),
    U: ("U of E·p", "E·p is U-shaped"),
    LOWEST: ("E·p lowest at", "E·p is lowest near 0"),
}
ALL = "all three"
# Scores to correlate with the settings. Each of the first two is 1 only if the curve has exactly the
# published shape.
_SCORES = ("rise of E·v", "U of E·p", "test accuracy")


def choices(results: Run, item: Item, *, shown: str) -> Measured:
    """Measure how often random settings reproduce each published shape, and correlate shapes with settings.

    Each cell of the run is one random choice of the settings. A shape is reproduced if its mean over the
    seeds of the cell satisfies the figure's criterion. It is not reproduced if all seeds diverged.
    Intervals are Clopper-Pearson intervals. `shown` is the name of the item that contains the figure.
    """
    figure = item.book.item(shown)
    draws = _draws(results, figure)
    over = f"{len(draws)} choices"
    findings = [
        Finding(f"share of {over} in which {shape}", share(draws[shape]), over)
        for shape in [*(shape for _, shape in SHAPES.values()), ALL]
    ]
    findings += [
        Finding(f"{ALL}, with {block}", share(part[ALL]), f"{len(part)} choices")
        for block, part in draws.groupby("optimizer", sort=False)
    ]
    config = figure.study("full").config
    tables = {"What it depends on": _dependence(results, draws, config), "Every draw": _listed(draws)}
    return Measured(findings, tables)


def _draws(results: Run, figure: Item) -> pd.DataFrame:
    rows = []
    failed = results.failures.groupby("cell").size()
    lost = set(failed.index[failed == len(results.manifest["seeds"])])
    for entry in results.manifest["cells"]:
        cell, settings = int(entry["cell"]), dict(entry["settings"])
        row = {"optimizer": settings.pop("block", "")} | settings
        found = (
            []
            if cell in lost
            else with_criteria(shapes(results, figure, cell=cell).findings, figure.measured[0])
        )
        by_name = {finding.measured: finding for finding in found}
        for measured, (score, shape) in SHAPES.items():
            row[score], row[shape] = _appears(by_name.get(measured))
        row[ALL] = all(row[shape] for _, shape in SHAPES.values())
        row["test accuracy"] = last(results, cell, "test_accuracy").estimate.value
        rows.append(row)
    return pd.DataFrame(rows)


def _appears(finding: Finding | None) -> tuple[float, bool]:
    if finding is None or finding.criterion is None:
        return math.nan, False
    value = finding.estimate.value
    return value, bool(finding.criterion.low <= value <= finding.criterion.high)


def _dependence(results: Run, draws: pd.DataFrame, shown: Mapping[str, Any]) -> pd.DataFrame:
    rows = []
    for block, part in draws.groupby("optimizer", sort=False):
        for axis in [axis for axis in results.axes if axis != "block" and part[axis].notna().all()]:
            at = _shown_value(results, shown, int(part.index[0]), axis)
            row = {
                "optimizer": block,
                "choice": _short_name(axis),
                "drawn between": f"{format_number(part[axis].min())} and {format_number(part[axis].max())}",
                "shown run": "-" if at is None else format_number(at),
                "draws below it": "-" if at is None else f"{(part[axis] < at).mean():.0%}",
            }
            for score in _SCORES:
                values = part[[score, axis]].to_numpy(float).T
                row[f"Spearman with {score}"] = float(spearman(values[:1], values[1])[0])
            rows.append(row)
    table = pd.DataFrame(rows)
    strength = -table[f"Spearman with {_SCORES[1]}"].abs()
    return table.loc[strength.sort_values(kind="stable").index].reset_index(drop=True)


def _shown_value(results: Run, shown: Mapping[str, Any], cell: int, axis: str) -> float | None:
    """Return the value of an axis in the config of a figure, or None if the cell's optimiser is different.

    Adam and AdamW count as the same optimiser.
    """
    key = "phases.joint.optimizer"
    if axis.startswith("phases.") and not results.lookup(cell, key).startswith(find_cell(shown, key)):
        return None
    before, _, name = axis.rpartition(".")
    at = find_cell(shown, axis)
    return find_cell(shown, f"{before}.options.{name}") if at is None else at


def _short_name(axis: str) -> str:
    return axis.removeprefix("phases.joint.").removeprefix("data.")


def _listed(draws: pd.DataFrame) -> pd.DataFrame:
    named = draws.rename(columns=_short_name)
    for name in [*(shape for _, shape in SHAPES.values()), ALL]:
        named[name] = named[name].map({True: "yes", False: "no"})
    return named
