"""Base classes for the components of a study: data, models, losses, starts, phases, probes and figures.

A start sets the initial value of a parameter.

Built-in and custom classes derive from the same base classes. To use a custom class, give its import
path in a sweep file, or pass an instance to `Study`. The annotated fields of the class are its
settings. Attributes with a default declare optional features; override those that the class supports.
All methods are pure, and methods that take arrays are traced. Float settings may also be traced,
unless they are annotated as `jaxattn.Static[float]`.

Instead of a class with a single method, you can pass a plain function. Its keyword-only arguments
become the settings:

    data sampled per seed     (key, *, settings) -> Dataset
    data shared by all seeds  (*, settings) -> Dataset
    loss                      (outputs, targets, *, settings) -> (n,)
    start                     (key, drawn, *, settings) -> array like drawn
    phase (a flow)            (params, task, *, points, settings) -> jaxattn.dynamics.RecordedPath
    probe                     (params, data, *, settings) -> (), (m,) or a dictionary of such values
    figure                    (results, *, settings) -> matplotlib figure or RenderedFigure

Notation: n examples, V tokens, K classes, embedding dimension d.
"""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy

if TYPE_CHECKING:
    from jaxattn.base.data import CommonData, Dataset, DrawnData, SharedData, silent
    from jaxattn.base.data import D as D
    from jaxattn.base.data import Data as Data
    from jaxattn.base.data import Progress as Progress
    from jaxattn.base.model import Loss, Model, Start
    from jaxattn.base.model import Params as Params
    from jaxattn.base.phase import Goal, Phase, Task, log_spaced
    from jaxattn.base.probe import Figure, Measurement, PhaseProbe, Probe
    from jaxattn.base.probe import Metrics as Metrics
    from jaxattn.base.state import State

__all__ = [
    "CommonData",
    "Dataset",
    "DrawnData",
    "Figure",
    "Goal",
    "Loss",
    "Measurement",
    "Model",
    "Phase",
    "PhaseProbe",
    "Probe",
    "SharedData",
    "Start",
    "State",
    "Task",
    "log_spaced",
    "silent",
]

_NAMES = {
    "CommonData": "jaxattn.base.data",
    "D": "jaxattn.base.data",
    "Data": "jaxattn.base.data",
    "Dataset": "jaxattn.base.data",
    "DrawnData": "jaxattn.base.data",
    "Figure": "jaxattn.base.probe",
    "Goal": "jaxattn.base.phase",
    "Loss": "jaxattn.base.model",
    "Measurement": "jaxattn.base.probe",
    "Metrics": "jaxattn.base.probe",
    "Model": "jaxattn.base.model",
    "Params": "jaxattn.base.model",
    "Phase": "jaxattn.base.phase",
    "PhaseProbe": "jaxattn.base.probe",
    "Probe": "jaxattn.base.probe",
    "Progress": "jaxattn.base.data",
    "SharedData": "jaxattn.base.data",
    "Start": "jaxattn.base.model",
    "State": "jaxattn.base.state",
    "Task": "jaxattn.base.phase",
    "log_spaced": "jaxattn.base.phase",
    "silent": "jaxattn.base.data",
}
__getattr__, __dir__ = lazy(__name__, _NAMES, {})
