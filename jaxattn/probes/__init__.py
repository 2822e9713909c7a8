"""Probes: what is measured of one seed, as settings with pure functions.

A probe of single steps has `measure(seen)`, which returns numbers by metric name, and `labels`, what figures
call them. It may have `remember(params)`, whose value at the start of a phase is `seen.memory`, and
`applies(model, loss, phase)`. A probe of a whole phase has `observe(phase, state)` and `conclude(...)`.
"""

from typing import Any

from jaxattn.probes.alignments import Alignments
from jaxattn.probes.attention_entropy import AttentionEntropy
from jaxattn.probes.conservation import Conservation
from jaxattn.probes.fit import Fit
from jaxattn.probes.flow_limit import FlowLimit
from jaxattn.probes.importance import Importance
from jaxattn.probes.max_margin import MaxMarginDirection
from jaxattn.probes.norms import Norms
from jaxattn.probes.one_step_embeddings import OneStepEmbeddings
from jaxattn.probes.one_step_law import OneStepError
from jaxattn.probes.relaxed_direction import RelaxedDirection
from jaxattn.probes.relevant_tokens import RelevantTokens
from jaxattn.probes.seen import Seen
from jaxattn.probes.selection import Selected
from jaxattn.probes.settings import Probes
from jaxattn.probes.sharpness import Sharpness

# What a study may measure besides the standard probes, by short name.
PROBES: dict[str, Any] = {
    "attention_entropy": AttentionEntropy,
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
    "Alignments",
    "AttentionEntropy",
    "Conservation",
    "Fit",
    "FlowLimit",
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
