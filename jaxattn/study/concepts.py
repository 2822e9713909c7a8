"""What a sweep file is made of, and the built-in things of each kind by their short names; see `base`."""

from jaxattn.data import GENERATORS, READERS
from jaxattn.dynamics import PHASES
from jaxattn.losses import LOSSES
from jaxattn.models import MODELS
from jaxattn.probes import PROBES
from jaxattn.study import own, starts
from jaxattn.study.kinds import Concept

_CORPORA = ("shared", "pads_vocabulary", "held_out")

DATA = Concept(
    "data",
    GENERATORS | READERS,
    ((*_CORPORA, "tokens", "draw"), (*_CORPORA, "load")),
    own.data_holder,
    "a function (key, *, settings) -> Corpus, or a class derived from jaxattn.Generator with "
    "generate(key, sequences)",
)
MODEL = Concept(
    "a model",
    MODELS,
    (("init", "logits"),),
    None,
    "a frozen dataclass with init(key, *, vocab_size, num_classes, dtype) and logits(params, corpus)",
)
LOSS = Concept(
    "a loss",
    LOSSES,
    (("__call__",),),
    lambda target: own.OwnLoss,
    "a function (logits, labels, *, settings) -> (n,)",
    lambda table: "classification",
)
START = Concept(
    "a start",
    starts.STARTS,
    (("__call__",),),
    lambda target: own.OwnStart,
    "a function (key, drawn, *, settings) -> array",
    starts.kind_of,
)
PHASE = Concept(
    "a phase",
    PHASES,
    (("probe_steps", "init", "advance", "train", "steps"),),
    None,
    "a class derived from jaxattn.Phase with train, steps and step(task, state)",
)
PROBE = Concept(
    "a probe",
    PROBES,
    (("measure",), ("applies", "observe", "conclude", "metrics")),
    lambda target: own.OwnProbe,
    "a function (params, corpus, *, settings) -> number, or a class with measure(seen)",
)
FIGURE = Concept("a figure", {}, ((),), lambda target: own.OwnFigure, "a function (results, *, settings)")
