"""The scale of a metric."""

import math
from typing import Literal, NamedTuple


class Scale(NamedTuple):
    """The scale of a metric, on which its mean and interval are computed.

    Attributes:
        kind: "linear"; "log", positive and spread over decades; or "yes/no", 0 or 1 for every seed.
        low, high: what it can be at all; intervals stay inside.
    """

    kind: Literal["linear", "log", "yes/no"] = "linear"
    low: float = -math.inf
    high: float = math.inf
