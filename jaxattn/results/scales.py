"""On which scale a metric is averaged: as it is, by its logarithm, or as a yes/no of every seed."""

import math
import re
from typing import NamedTuple

LINEAR, LOG, YES_NO = "linear", "log", "yes/no"


class Scale(NamedTuple):
    """The scale of a metric.

    Attributes:
        kind: "linear"; "log", positive and spread over decades; or "yes/no", 0 or 1 for every seed.
        low, high: what it can be at all.
    """

    kind: str = LINEAR
    low: float = -math.inf
    high: float = math.inf


_DECLARED = tuple(
    (re.compile(names), found)
    for names, found in (
        (r"((limit|relaxed)_)?feasible|came_to_end", Scale(YES_NO, 0.0, 1.0)),
        (r"((un)?relaxed_|head_|limit_)?one_minus_cosine|margin_shortfall|mismatch", Scale(LOG, 0.0)),
        (r"((limit|relaxed)_)?(certified_distance|duality_gap|primal_residual)", Scale(LOG, 0.0)),
        (r"(conservation_)?drift|one_step_error|embedding_error", Scale(LOG, 0.0)),
        (r"((train|test|validation)_)?accuracy(_best_on_\w+)?|important_mass", Scale(LINEAR, 0.0, 1.0)),
        (
            r"(important|(all_|only_)?relevant)_selected|tied_sequences|relaxed_support",
            Scale(LINEAR, 0.0, 1.0),
        ),
        (r"(spearman|correlation)_E[vp]_\w+|cos_\w+", Scale(LINEAR, -1.0, 1.0)),
    )
)


def scale(metric: str) -> Scale:
    """Look up the scale of a metric, linear without bounds if none is declared."""
    for names, found in _DECLARED:
        if names.fullmatch(metric):
            return found
    return Scale()
