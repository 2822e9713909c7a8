"""Probes: what is measured on the way, pure functions of the parameters and the corpus of one seed."""

from typing import Any

from jaxattn.probes.fit import Fit
from jaxattn.probes.importance import Importance
from jaxattn.probes.max_margin import MaxMarginDirection
from jaxattn.probes.one_step_law import OneStepError
from jaxattn.probes.seen import Seen
from jaxattn.probes.selection import Selected
from jaxattn.probes.settings import Probes

# What a study may measure besides the standard probes.
PROBES: dict[str, Any] = {}

__all__ = [
    "PROBES",
    "Fit",
    "Importance",
    "MaxMarginDirection",
    "OneStepError",
    "Probes",
    "Seen",
    "Selected",
]
