"""Scales on which the means and intervals of metrics are computed."""

import math
from typing import Literal, NamedTuple


class Scale(NamedTuple):
    """Scale on which the mean and the interval of a metric are computed.

    Attributes:
        kind: "linear"; "log" for positive values that span decades; or "yes/no" for 0 or 1 per seed.
        low, high: smallest and largest possible values; intervals are clipped to them.
    """

    kind: Literal["linear", "log", "yes/no"] = "linear"
    low: float = -math.inf
    high: float = math.inf
