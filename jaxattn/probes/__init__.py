"""Probes: what is measured of one seed, as settings with pure functions; `base` says what each must have."""

from jaxattn.base import Measurement
from jaxattn.probes.alignments import Alignments
from jaxattn.probes.attended import Attended
from jaxattn.probes.attention_entropy import AttentionEntropy
from jaxattn.probes.conservation import Conservation
from jaxattn.probes.fit import Accuracy, Fit
from jaxattn.probes.flow_limit import FlowLimit
from jaxattn.probes.importance import Importance
from jaxattn.probes.max_margin import MaxMarginDirection
from jaxattn.probes.norms import Norms
from jaxattn.probes.one_step_embeddings import OneStepEmbeddings
from jaxattn.probes.one_step_law import OneStepError
from jaxattn.probes.relaxed_direction import RelaxedDirection
from jaxattn.probes.relevant_tokens import RelevantTokens
from jaxattn.probes.seen import Seen
from jaxattn.probes.selection import HeadsSelected, Selected
from jaxattn.probes.settings import Probes
from jaxattn.probes.sharpness import Sharpness

# What a study may measure besides the standard probes, by short name.
PROBES: dict[str, type[Measurement]] = {
    "attended": Attended,
    "attention_entropy": AttentionEntropy,
    "heads_selected": HeadsSelected,
    "norms": Norms,
    "alignments": Alignments,
    "conservation": Conservation,
    "sharpness": Sharpness,
    "max_margin_direction": MaxMarginDirection,
    "one_step_embeddings": OneStepEmbeddings,
    "relevant_tokens": RelevantTokens,
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
    "Fit",
    "FlowLimit",
    "HeadsSelected",
    "Importance",
    "MaxMarginDirection",
    "Norms",
    "OneStepEmbeddings",
    "OneStepError",
    "Probes",
    "RelaxedDirection",
    "RelevantTokens",
    "Seen",
    "Selected",
    "Sharpness",
]
