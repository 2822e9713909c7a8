"""Gradient training of softmax attention with trained embeddings, as pure functions and studies of them."""

from jaxattn import attention, data, dynamics, losses, models, probes, theory
from jaxattn.api import Results, Study, load
from jaxattn.data import Generator
from jaxattn.dynamics import Phase
from jaxattn.probes import Probes
from jaxattn.spec import Spec, Static

__all__ = [
    "Generator",
    "Phase",
    "Probes",
    "Results",
    "Spec",
    "Static",
    "Study",
    "attention",
    "data",
    "dynamics",
    "load",
    "losses",
    "models",
    "probes",
    "theory",
]
__version__ = "0.1.0"
