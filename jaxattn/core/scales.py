"""Scales for computing means and confidence intervals of metrics."""

import math
from typing import Literal, NamedTuple


class Scale(NamedTuple):
    """Scale on which to compute the mean and confidence interval of a metric.

    Attributes:
        kind: "linear"; "log" for positive values that span decades; "yes/no" for values 0 and 1.
        low, high: smallest and largest possible values of the metric; intervals are clipped to this
            range.
    """

    kind: Literal["linear", "log", "yes/no"] = "linear"
    low: float = -math.inf
    high: float = math.inf
