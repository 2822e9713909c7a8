"""What a sweep file is made of, and the built-in things of each kind by their short names; see `base`."""

from jaxattn.base import (
    Data,
    DrawnData,
    Figure,
    Loss,
    Measurement,
    Model,
    Phase,
    PhaseProbe,
    Probe,
    SharedData,
    Start,
)
from jaxattn.data import GENERATORS, READERS
from jaxattn.dynamics import PHASES
from jaxattn.losses import LOSSES
from jaxattn.models import MODELS
from jaxattn.probes import PROBES
from jaxattn.study import starts, user_functions
from jaxattn.study.kinds import Concept

DATA = Concept[Data](
    "data",
    {**GENERATORS, **READERS},
    {DrawnData: ("draw", "tokens"), SharedData: ("load",)},
    user_functions.data,
    "a function (key, *, settings) -> Corpus, or a class derived from jaxattn.Generator with "
    "generate(key, sequences)",
)
MODEL = Concept[Model](
    "a model",
    MODELS,
    {Model: ("init", "outputs")},
    None,
    "a class derived from jaxattn.Model with init(key, like, *, dtype) and outputs(params, data)",
)
LOSS = Concept[Loss](
    "a loss",
    LOSSES,
    {Loss: ("__call__",)},
    user_functions.loss,
    "a function (outputs, targets, *, settings) -> (n,), or a class derived from jaxattn.Loss",
    lambda table: "classification",
)
START = Concept[Start](
    "a start",
    starts.STARTS,
    {Start: ("__call__",)},
    user_functions.start,
    "a function (key, drawn, *, settings) -> array, or a class derived from jaxattn.Start",
    starts.kind_of,
)
PHASE = Concept[Phase](
    "a phase",
    PHASES,
    {Phase: ("train", "steps")},
    None,
    "a class derived from jaxattn.Phase with train, steps and step(task, state)",
)
PROBE = Concept[Measurement](
    "a probe",
    PROBES,
    {Probe: ("measure",), PhaseProbe: ("metrics", "observe", "conclude")},
    user_functions.probe,
    "a function (params, corpus, *, settings) -> number, or a class derived from jaxattn.Probe with "
    "measure(seen)",
)
FIGURE = Concept[Figure](
    "a figure",
    {},
    {Figure: ("__call__",)},
    user_functions.figure,
    "a function (results, *, settings), or a class derived from jaxattn.Figure",
)
