"""Probes: settings classes whose pure functions compute metrics for one seed."""

from jaxattn.base import Measurement
from jaxattn.base.probe import ProbeContext
from jaxattn.core.scales import Scale
from jaxattn.lab.probes.directions import FlowLimit, MaxMarginDirection, RelaxedDirection
from jaxattn.lab.probes.exact import ExactGap
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

# Probes that a study can use in addition to the standard probes, by short name.
PROBES: dict[str, type[Measurement]] = {
    "attended": Attended,
    "attention_entropy": AttentionEntropy,
    "heads_selected": HeadsSelected,
    "norms": Norms,
    "alignments": Alignments,
    "conservation": Conservation,
    "sharpness": Sharpness,
    "max_margin_direction": MaxMarginDirection,
    "exact_gap": ExactGap,
    "one_step_embeddings": OneStepEmbeddings,
    "relevant_tokens": RelevantTokens,
    "cover": Cover,
    "relaxed_direction": RelaxedDirection,
    "flow_limit": FlowLimit,
}

__all__ = [
    "PROBES",
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
