"""Sentences that describe the interior minimum or maximum of a curve."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxattn.lab.results.labels import format_number

_NAMES = re.compile(r"(\w+_)?(accuracy|loss|cosine|error)")
# On logarithmic axes, a curve counts as falling and then rising if its first and last values are at least
# this multiple of its minimum.
_FACTOR = 3.0
# Minimum difference between an extremum and the value at either end, as a fraction of the curve's range;
# larger for a single seed.
_LEAST, _LEAST_OF_ONE_SEED = 0.05, 0.15


class Turn(NamedTuple):
    """First point, interior extremum and last point of a curve.

    Attributes:
        minimum: True if the extremum is a minimum.
        steps: the steps of the three points.
        values: the means at the three points.
    """

    minimum: bool
    steps: tuple[int, int, int]
    values: tuple[float, float, float]

    def sentence(self, metric: str) -> str:
        """Describe the first point, the extremum and the last point in one sentence."""
        away, back, kind = ("falls", "rises", "minimum") if self.minimum else ("rises", "falls", "maximum")
        first, extreme, last = (
            f"{format_number(value)} at step {step}"
            for value, step in zip(self.values, self.steps, strict=True)
        )
        return (
            f"The {_words(metric)} {away} from {first} to its {kind} of {extreme}, and then {back} to {last}."
        )


def turn(curve: pd.DataFrame) -> Turn | None:
    """Return the interior extremum of a curve, or None if no extremum is distinct from both ends.

    The 95 % interval of the extremum must be disjoint from those of both ends. Curves from a single seed have
    no intervals; for these, a larger difference is required.

    Args:
        curve: aggregate rows for one metric, cell and phase, in ascending order of the step.
    """
    curve = curve[curve["n"] > 0]
    value = curve["mean"].to_numpy(float)
    if len(curve) < 3 or not (span := value.max() - value.min()) > 0:
        return None
    low, high = (curve[name].fillna(curve["mean"]).to_numpy(float) for name in ("mean_low", "mean_high"))
    least = (_LEAST if curve["n"].max() > 1 else _LEAST_OF_ONE_SEED) * span
    for minimum in (True, False):
        k = int(value.argmin() if minimum else value.argmax())
        ends = value[[0, -1]]
        far = (ends.min() - value[k] if minimum else value[k] - ends.max()) >= least
        apart = high[k] < low[[0, -1]].min() if minimum else low[k] > high[[0, -1]].max()
        if far and apart:
            steps = [int(curve["step"].iloc[j]) for j in (0, k, -1)]
            return Turn(
                minimum, (steps[0], steps[1], steps[2]), (float(ends[0]), float(value[k]), float(ends[1]))
            )
    return None


def rise(x: NDArray[np.float64], y: NDArray[np.float64], names: tuple[str, str]) -> str:
    """Describe a positive curve whose start and end are both far above its minimum.

    Args:
        x: (m,) float; positions of the points.
        y: (m,) float > 0.
        names: names of x and y.

    Returns:
        A clause, or "" if the start or the end of the curve is not far above its minimum.
    """
    if len(y) < 3:
        return ""
    k = int(y.argmin())
    if min(y[0], y[-1]) < _FACTOR * y[k]:
        return ""
    least, location, last, end = (format_number(z) for z in (y[k], x[k], y[-1], x[-1]))
    at, what = names
    return f"{what} falls to {least} at {at} = {location} and then rises to {last} at {at} = {end}"


def turning_sentences(
    table: pd.DataFrame, panels: Mapping[str, Sequence[str]], cells: Sequence[int]
) -> list[str]:
    """Describe the extrema of accuracies, losses and errors in one phase, with one sentence per panel.

    Args:
        table: an aggregate for one phase.
        panels: the metrics in each panel, with the most important one first.
        cells: the cells that are drawn.

    Returns:
        At most one description per panel. For one cell, it describes the start, the extremum and the end of
        the curve. For several cells, it gives the number of cells whose curve has an extremum.
    """
    found = []
    for names in panels.values():
        for metric in filter(_NAMES.fullmatch, names):
            own = table[table["metric"] == metric]
            turns = {cell: turn(own[own["cell"] == cell].sort_values("step")) for cell in cells}
            turned = [each for each in turns.values() if each]
            if not turned:
                continue
            if len(cells) == 1:
                found.append(turned[0].sentence(metric) + _loss_words(table, metric, turned[0]))
            else:
                found.append(_count_words(metric, turned, len(cells)))
            break
    return found


def _count_words(metric: str, turned: Sequence[Turn], cells: int) -> str:
    counts = [
        (sum(each.minimum for each in turned), "minimum"),
        (sum(not each.minimum for each in turned), "maximum"),
    ]
    changes = [
        f"its {kind} between the first and the last step in {number} of {cells} cells"
        for number, kind in counts
        if number
    ]
    return f"The {_words(metric)} has {', and '.join(changes)}."


def _loss_words(table: pd.DataFrame, metric: str, found: Turn) -> str:
    if not (found.minimum and metric.endswith("accuracy")):
        return ""
    prefix = metric.removesuffix("accuracy")
    for name in (f"{prefix}loss", *(["loss"] if prefix in ("", "train_") else [])):
        loss = table[table["metric"] == name].set_index("step")["mean"]
        if set(found.steps[:2]) <= set(loss.index) and loss[found.steps[1]] < loss[found.steps[0]]:
            before, after = (format_number(loss[step]) for step in found.steps[:2])
            return (
                f" The {_words(name)} falls over the same steps, from {before} to {after}. Accuracy "
                "counts correct labels, whereas the loss also depends on the size of the outputs, so "
                "both can fall together."
            )
    return ""


def _words(metric: str) -> str:
    return metric.replace("_", " ")
