"""Pure functions for the theory of gradient-based training of softmax attention, and a study runner."""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

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
    from jaxattn.base.from_function import declare
    from jaxattn.core.errors import InputError, RunError
    from jaxattn.core.pytrees import replace
    from jaxattn.core.settings import FilePath, Fraction, NotNegative, Positive, PositiveInt, Static
    from jaxattn.core.spec import Spec
    from jaxattn.core.version import __url__ as __url__
    from jaxattn.core.version import __version__ as __version__
    from jaxattn.lab import probes, texts
    from jaxattn.lab.api import Study
    from jaxattn.lab.bisection import phase_diagram
    from jaxattn.lab.explorer import Explorer, explore
    from jaxattn.lab.loaded import Results, load
    from jaxattn.lab.probes import Probes
    from jaxattn.models.token_model import TokenModel

__all__ = [
    "Dataset",
    "DrawnData",
    "Explorer",
    "Figure",
    "FilePath",
    "Fraction",
    "InputError",
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
    "RunError",
    "SharedData",
    "Spec",
    "Start",
    "Static",
    "Study",
    "TokenModel",
    "attention",
    "base",
    "data",
    "declare",
    "dynamics",
    "explore",
    "load",
    "losses",
    "models",
    "phase_diagram",
    "probes",
    "replace",
    "texts",
    "theory",
]

# Submodules are imported on first use, because importing JAX alone takes most of a second.
_NAMES = {
    "Dataset": "jaxattn.base",
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
    "declare": "jaxattn.base.from_function",
    "InputError": "jaxattn.core.errors",
    "RunError": "jaxattn.core.errors",
    "replace": "jaxattn.core.pytrees",
    "FilePath": "jaxattn.core.settings",
    "NotNegative": "jaxattn.core.settings",
    "Positive": "jaxattn.core.settings",
    "PositiveInt": "jaxattn.core.settings",
    "Fraction": "jaxattn.core.settings",
    "Spec": "jaxattn.core.spec",
    "Static": "jaxattn.core.settings",
    "Results": "jaxattn.lab.loaded",
    "Study": "jaxattn.lab.api",
    "Explorer": "jaxattn.lab.explorer",
    "explore": "jaxattn.lab.explorer",
    "load": "jaxattn.lab.loaded",
    "phase_diagram": "jaxattn.lab.bisection",
    "TokenModel": "jaxattn.models.token_model",
    "__url__": "jaxattn.core.version",
    "__version__": "jaxattn.core.version",
}
_MODULES = {
    **{name: f"jaxattn.{name}" for name in __all__ if name not in _NAMES},
    "probes": "jaxattn.lab.probes",
    "texts": "jaxattn.lab.texts",
}
__getattr__, _ = lazy(__name__, _NAMES, _MODULES)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
