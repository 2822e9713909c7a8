"""Probes: what is measured of a run, as settings with pure functions.

A probe has `labels`, from metric names to what figures call them, and `measure(seen)`, which returns scalars
by metric name. It may have `remember(params)`, whose value at the start of a phase is `seen.memory`.
"""

from jaxattn.probes.alignments import Alignments
from jaxattn.probes.attention_entropy import AttentionEntropy
from jaxattn.probes.conservation import Conservation
from jaxattn.probes.norms import Norms
from jaxattn.probes.sharpness import Sharpness

PROBES = {
    "attention_entropy": AttentionEntropy,
    "norms": Norms,
    "alignments": Alignments,
    "conservation": Conservation,
    "sharpness": Sharpness,
}

__all__ = ["PROBES", "Alignments", "AttentionEntropy", "Conservation", "Norms", "Sharpness"]
