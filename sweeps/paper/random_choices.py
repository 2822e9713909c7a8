"""Measure how often random choices of the unpublished settings reproduce the shapes in a figure.

Each cell of a study is one random choice. A cell reproduces a shape if the score of its bin means over all
seeds satisfies the criterion of the figure. It reproduces no shape if all of its seeds diverged.
"""

import math

import numpy as np
import pandas as pd
from figure_shapes import shapes

from jaxattn.lab.books import cells, share, spearman
from jaxattn.lab.results.labels import format_number
from jaxattn.lab.results.run import find_cell

SHAPES = {"rise": "E·v rises", "u_shape": "E·p is U-shaped", "lowest": "E·p is lowest near 0"}
ALL = "all three"
# Scores to correlate with the settings. Each of the first two is 1 only for exactly the published shape.
SCORES = {"rise": "rise of E·v", "u_shape": "U of E·p", "lowest": "E·p lowest at"}
ACCURACY = "test accuracy"


def reproduced(results, criteria):
    """Measure the fraction of draws that reproduce each shape in the figure, and all three shapes.

    The fractions have the ids of the shapes in the item of the figure. The page of the figure shows them next
    to its verdicts.
    """
    rows = draws(results, criteria)
    shown = [(id, text, text) for id, text in SHAPES.items()]
    shown.append(("all", ALL, "all three shapes are reproduced"))
    found = [share(id, f"share of draws in which {text}", rows[x], unit="draw") for id, x, text in shown]
    return found + [
        share(f"all.{block.lower()}", f"share of draws with all three shapes, {block}", own[ALL], unit="draw")
        for block, own in rows.groupby("optimizer", sort=False)
    ]


def draws(results, criteria):
    """Return a table with one row per draw: its settings, its scores, and the shapes that it reproduces."""
    rows = []
    failed = results.failures.groupby("cell").size()
    lost = set(failed.index[failed == len(results.manifest["seeds"])])
    for cell in cells(results):
        settings = results.settings(cell.cell)
        row = {"optimizer": settings.pop("block", "")} | settings
        found = {} if cell.cell in lost else {x.id: x.value for x in shapes(cell)}
        for id, text in SHAPES.items():
            value = found.get(id, math.nan)
            row[SCORES[id]] = value
            row[text] = bool(criteria[id].low <= value <= criteria[id].high)
        row[ALL] = all(row[text] for text in SHAPES.values())
        row[ACCURACY] = cell.final("test_accuracy").value
        rows.append(row)
    return pd.DataFrame(rows)


def draw_tables(results, criteria, figure):
    """Return two tables: the dependence of the shapes on the settings, and all draws.

    `figure` is the study of the figure.
    """
    rows = draws(results, criteria)
    listed = rows.rename(columns=_short)
    for text in [*SHAPES.values(), ALL]:
        listed[text] = listed[text].map({True: "yes", False: "no"})
    return {"Dependence on the settings": _dependence(results, rows, figure.config), "Every draw": listed}


def _dependence(results, rows, config):
    table = []
    for block, part in rows.groupby("optimizer", sort=False):
        for axis in [axis for axis in results.axes if axis != "block" and part[axis].notna().all()]:
            at = _shown_value(results, config, int(part.index[0]), axis)
            row = {
                "optimizer": block,
                "setting": _short(axis),
                "range of the draws": " and ".join(map(format_number, (part[axis].min(), part[axis].max()))),
                "shown run": "-" if at is None else format_number(at),
                "draws below the shown run": "-" if at is None else f"{(part[axis] < at).mean():.0%}",
            }
            for score in ("rise of E·v", "U of E·p", ACCURACY):
                values = part[[score, axis]].to_numpy(float).T
                row[f"Spearman correlation with {score}"] = float(spearman(values[:1], values[1])[0])
            table.append(row)
    found = pd.DataFrame(table)
    strength = -np.abs(found["Spearman correlation with U of E·p"])
    return found.loc[strength.sort_values(kind="stable").index].reset_index(drop=True)


def _shown_value(results, config, cell, axis):
    """Return the value of an axis in the study of the figure, or None if the cell uses another optimiser.

    Adam and AdamW count as the same optimiser.
    """
    key = "phases.joint.optimizer"
    if axis.startswith("phases.") and not results.lookup(cell, key).startswith(find_cell(config, key)):
        return None
    before, _, name = axis.rpartition(".")
    at = find_cell(config, axis)
    return find_cell(config, f"{before}.options.{name}") if at is None else at


def _short(axis):
    return axis.removeprefix("phases.joint.").removeprefix("data.")
