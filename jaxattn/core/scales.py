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


NOT_NEGATIVE = Scale(low=0.0)
FRACTION = Scale(low=0.0, high=1.0)
CORRELATION = Scale(low=-1.0, high=1.0)
YES_NO = Scale("yes/no", 0.0, 1.0)
# Errors and distances, which are positive and span decades.
ERROR = Scale("log", 0.0)
COSINE_DISTANCE = Scale("log", 0.0, 2.0)
