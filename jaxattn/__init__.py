"""Gradient training of softmax attention with trained embeddings, as pure functions and studies of them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxattn import attention, base, data, dynamics, losses, models, theory
    from jaxattn.base import (
        Dataset,
        DrawnData,
        Figure,
        Loss,
        Model,
        Phase,
        PhaseProbe,
        Probe,
        SharedData,
        Start,
    )
    from jaxattn.core.settings import NotNegative, Positive, PositiveInt, Share, Spec, Static
    from jaxattn.data import Generator
    from jaxattn.lab import probes
    from jaxattn.lab.api import Results, Study, load
    from jaxattn.lab.bisection import phase_diagram
    from jaxattn.lab.explorer import Explorer, explore
    from jaxattn.lab.probes import Probes

__version__ = "0.2.0"
# Address of the repository, once it is public; the links of the site use it.
__url__ = ""
__all__ = [
    "Dataset",
    "DrawnData",
    "Explorer",
    "Figure",
    "Generator",
    "Loss",
    "Model",
    "NotNegative",
    "Phase",
    "PhaseProbe",
    "Positive",
    "PositiveInt",
    "Probe",
    "Probes",
    "Results",
    "Share",
    "SharedData",
    "Spec",
    "Start",
    "Static",
    "Study",
    "attention",
    "base",
    "data",
    "dynamics",
    "explore",
    "load",
    "losses",
    "models",
    "phase_diagram",
    "probes",
    "theory",
]

# What is no module of its own, and where it is. JAX alone takes most of a second to import: nothing is
# imported before it is asked for.
_PLACES = {
    "Dataset": "jaxattn.base",
    "Generator": "jaxattn.data",
    "DrawnData": "jaxattn.base",
    "Figure": "jaxattn.base",
    "Loss": "jaxattn.base",
    "Model": "jaxattn.base",
    "Phase": "jaxattn.base",
    "PhaseProbe": "jaxattn.base",
    "Probe": "jaxattn.base",
    "SharedData": "jaxattn.base",
    "Start": "jaxattn.base",
    "Probes": "jaxattn.lab.probes",
    "NotNegative": "jaxattn.core.settings",
    "Positive": "jaxattn.core.settings",
    "PositiveInt": "jaxattn.core.settings",
    "Share": "jaxattn.core.settings",
    "Spec": "jaxattn.core.settings",
    "Static": "jaxattn.core.settings",
    "Results": "jaxattn.lab.api",
    "Study": "jaxattn.lab.api",
    "Explorer": "jaxattn.lab.explorer",
    "explore": "jaxattn.lab.explorer",
    "load": "jaxattn.lab.api",
    "phase_diagram": "jaxattn.lab.bisection",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'jaxattn' has no attribute {name!r}")
    if place := _PLACES.get(name):
        return getattr(importlib.import_module(place), name)
    return importlib.import_module("jaxattn.lab.probes" if name == "probes" else f"jaxattn.{name}")


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, "__version__"]
