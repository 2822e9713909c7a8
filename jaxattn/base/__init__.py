"""What a study is made of: one base class for each concept, which built-in things and the user's derive from.

Built-in things have no privilege. A class that derives from one of these can be named in a sweep file by its
import path, or given to `Study`. Its settings are its annotated fields, its optional abilities are the
attributes below, which have defaults: override those that it has. All methods are pure, and traced where they
take arrays. Float settings may be traced too, unless they are annotated `jaxattn.Static[float]`.

A plain function will do where one method is all there is. When it is loaded it becomes a class of its
settings, which are its keyword-only arguments:

    data that is drawn    (key, *, settings) -> Dataset
    data that is shared   (*, settings) -> Dataset
    loss                  (outputs, targets, *, settings) -> (n,)
    start                 (key, drawn, *, settings) -> array like drawn
    probe                 (params, data, *, settings) -> (), (m,) or a dictionary of them
    figure                (results, *, settings) -> matplotlib figure or Drawn

Letters: n examples, V tokens, K classes, d the width of the model.
"""

from jaxattn.base.data import CommonData, Dataset, DrawnData, SharedData, silent
from jaxattn.base.data import D as D
from jaxattn.base.data import Data as Data
from jaxattn.base.data import Progress as Progress
from jaxattn.base.model import Loss, Model, Start
from jaxattn.base.model import Params as Params
from jaxattn.base.phase import Goal, Phase, State, Task, log_spaced
from jaxattn.base.probe import Figure, Measurement, PhaseProbe, Probe
from jaxattn.base.probe import Metrics as Metrics

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
