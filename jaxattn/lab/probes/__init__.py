"""Probes: settings classes whose pure functions compute metrics for one seed."""

from jaxattn.base.probe import ProbeContext
from jaxattn.core.scales import Scale
from jaxattn.lab.probes.directions import FlowLimit, MaxMarginDirection, RelaxedDirection
from jaxattn.lab.probes.exact_gap import ExactGap
from jaxattn.lab.probes.importance import Importance, OneStepEmbeddings, OneStepError
from jaxattn.lab.probes.parameters import Alignments, Conservation, Norms, Sharpness
from jaxattn.lab.probes.selection import (
    Attended,
    AttentionEntropy,
    Cover,
    HeadsSelected,
    RelevantTokens,
    Selected,
)
from jaxattn.lab.probes.standard import Accuracy, Fit, Probes

__all__ = [
    "Accuracy",
    "Alignments",
    "Attended",
    "AttentionEntropy",
    "Conservation",
    "Cover",
    "ExactGap",
    "Fit",
    "FlowLimit",
    "HeadsSelected",
    "Importance",
    "MaxMarginDirection",
    "Norms",
    "OneStepEmbeddings",
    "OneStepError",
    "ProbeContext",
    "Probes",
    "RelaxedDirection",
    "RelevantTokens",
    "Scale",
    "Selected",
    "Sharpness",
]
