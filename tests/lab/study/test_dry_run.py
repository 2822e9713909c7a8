# ruff: noqa: E501  messages and snippets are kept on one line
"""Mistakes in custom code: each raises one line with its place before anything is compiled."""

import copy
import re
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

import jaxattn as ja
from jaxattn.core.errors import UserCodeError
from jaxattn.lab import cli, kinds
from jaxattn.lab.study import output_checks, toml
from jaxattn.lab.study.import_paths import ImportPaths

CODE = """
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float

import jaxattn as ja


def needle(key, *, vocab_size: int, length: int, sequences: int, shown: float = 1.0):
    label = jax.random.bernoulli(key, 0.5, (sequences,)).astype(jnp.int32)
    tokens = jax.random.randint(key, (sequences, length), 2, vocab_size).at[:, 0].set(label)
    return ja.data.from_draws(tokens, 2 * label - 1, vocab_size=vocab_size, num_classes=2)

def no_corpus(key, *, sequences: int = 5):
    return jnp.zeros((sequences, 3), int), jnp.ones(sequences)

def wrong_labels(key, *, sequences: int = 5):
    tokens = jax.random.randint(key, (sequences, 4), 0, 9)
    return ja.data.from_draws(tokens, jnp.arange(sequences) % 2, vocab_size=9, num_classes=2)

def unread(*, name: str = "none.npy"):
    return np.load(name)

class NoData:
    pass

class Plain:
    def __init__(self, dim: int): self.dim = dim
    def init(self, key, like, *, dtype): ...
    def outputs(self, params, corpus): ...

class Pair(NamedTuple):
    dim: int
    init = outputs = None

class NoOutputs(ja.Model):
    dim: int = 4
    def init(self, key, like, *, dtype): ...

class Model(ja.Model):
    dim: int = 4
    width: float = 1.0

    def init(self, key, like, *, dtype):
        return ja.models.one_layer.init(key, vocab_size=like.vocab_size, dim=self.dim, dtype=dtype)

    def outputs(self, params, corpus):
        return ja.attention.attend(corpus, params.E @ params.p, params.E @ params.v)

class Unnamed(Model):
    def init(self, key, like, *, dtype):
        return jnp.zeros(3)

class Keyless(Model):
    def init(self, key, like):
        return {"E": jnp.zeros((like.vocab_size, 2))}

class TwoColumns(Model):
    def outputs(self, params, corpus):
        return jnp.zeros((corpus.num_examples, 2))

class Raises(Model):
    def outputs(self, params, corpus):
        raise KeyError("no such thing")

class RaisesWhenMade(Model):
    def __post_init__(self):
        raise ValueError("never")

class Decides(Model):
    def outputs(self, params, corpus):
        scale = 2.0 if self.width > 1 else 1.0
        return scale * super().outputs(params, corpus)

class Converts(Model):
    def outputs(self, params, corpus):
        return np.sqrt(self.width) * super().outputs(params, corpus)

class DecidesByArrays(Model):
    def outputs(self, params, corpus):
        if params.p[0] > 0:
            return super().outputs(params, corpus)

class Static(Model):
    width: ja.Static[float] = 1.0
    def outputs(self, params, corpus):
        return (2.0 if self.width > 1 else 1.0) * super().outputs(params, corpus)

class ValuesOnly(Model):
    def scores_and_values(self, params):
        return params.E @ params.v

class NoParameters(Model):
    def init(self, key, like, *, dtype): ...

class LongScores(Model):
    def scores_and_values(self, params):
        return params.E, params.E @ params.v

def mean_loss(logits, labels):
    return ((logits - labels) ** 2).mean()

def count_loss(logits, labels):
    return labels

def positional(logits, labels, power=2.0):
    return jnp.exp(-labels * logits)

class NoCall(ja.Loss):
    pass

def short(key, drawn):
    return drawn[:1]

def whole(key, drawn):
    return jnp.ones_like(drawn, int)

class NoPhase:
    pass

class NoStep(ja.Phase):
    train: tuple[str, ...] = ("p",)
    steps: int = 3

class Stays(NoStep):
    def step(self, task, state):
        return state.replace(step=state.step + 1)

class NoState(Stays):
    def init(self, task, params, key):
        return params

@jax.tree_util.register_pytree_node_class
class WithoutNames:
    def __init__(self, params, step, failed_at):
        self.params, self.step, self.failed_at = params, step, failed_at

    def tree_flatten(self):
        return (self.params, self.step, self.failed_at), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

class NoNames(Stays):
    def init(self, task, params, key):
        return WithoutNames(params, jnp.int32(0), jnp.int32(-1))

class Forgets(Stays):
    def step(self, task, state):
        return state.params

class Widens(Stays):
    def step(self, task, state):
        return state.replace(params=state.params.replace(p=state.params.p[None]))

class Timed(Stays):
    time: float = 3.0
    @property
    def timed(self): return int(self.time)
    def probe_steps(self, per_decade): return [0, self.timed]

class Loses(Stays):
    def metrics(self, state):
        return state.step

def entropy(params, corpus, *, base: float = 2.0):
    return params.p.sum()

def loss(params, corpus):
    return params.p.sum()

def evaluations(params, corpus):
    return params.p.sum()

def turn(params, corpus):
    return jnp.exp(1j * params.p.sum())

class Claims(ja.TokenModel):
    def init(self, key, like, *, dtype):
        return {"p": jnp.zeros(3, dtype)}

class Cuts(Model):
    cuts_batches = True

def contrast(logits, labels):
    return jax.nn.logsumexp(logits) - labels * logits

def together(logits, labels):
    return contrast(logits, labels).mean()

class Together(ja.Loss):
    coupled = True

    def __call__(self, logits, labels):
        return together(logits, labels)

class Apart(Together):
    def __call__(self, logits, labels):
        return contrast(logits, labels)

def Ev_bin_00(params, corpus):
    return params.p.sum()

def matrix(params, corpus):
    return params.E

def text(params, corpus):
    return "many"

def nothing(params, corpus):
    params.p.sum()

def array_setting(params, corpus, *, weights: jax.Array = None):
    return params.p.sum()

def unreadable(params, corpus, *, weights: "Missing" = None):
    return params.p.sum()

class NoMeasure(ja.Probe):
    pass

class SeesTwo(ja.PhaseProbe):
    metrics = ("turned",)
    def observe(self, phase, state): return {"p": state.params.p}
    def conclude(self, history, params, model, loaded): return {}, {}

class FewTokens(Model):
    def outputs(self, params, corpus):
        return ja.attention.attend(corpus, (params.E @ params.p)[:4], params.E @ params.v)

def no_transformation(step_size):
    return 3

made_already = optax.sgd(0.1)

class Nested(Model):
    def init(self, key, like, *, dtype):
        params = super().init(key, like, dtype=dtype)
        return {"E": params.E, "p": params.p, "head": {"v": params.v}}

    def outputs(self, params, corpus):
        return ja.attention.attend(corpus, params["E"] @ params["p"], params["E"] @ params["head"]["v"])

class Misspelt(Model):
    def init(self, key, like, *, dtype):
        return ja.models.OneLayer(dimm=self.dim).init(key, like, dtype=dtype)

class WithNumpy(Model):
    def outputs(self, params, corpus):
        return np.tanh(super().outputs(params, corpus))

def length(params, corpus):
    return np.linalg.norm(params.p)

def traced_settings(key, *, sequences: int | jax.Array, shown: float | jax.Array = 1.0, wide: Float[Array, ""] | float | None = None):
    tokens = jax.random.randint(key, (sequences, 4), 2, 12)
    labels = jnp.where(jax.random.uniform(key, (sequences,)) < shown, 1, -1)
    return ja.data.from_draws(tokens, labels, vocab_size=12, num_classes=2)

def no_setting(params, corpus, *, of: np.dtype | int = 1):
    return params.p.sum()

number = 3
"""

STUDY = {
    "name": "mistakes",
    "data": {"kind": "mine.py:needle", "vocab_size": 12, "length": 4, "sequences": 10},
    "model": {"kind": "mine.py:Model"},
    "phases": [{"name": "move", "kind": "mine.py:Stays"}],
}


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    (folder / "mine.py").write_text(CODE, encoding="utf-8")
    (folder / "raises.py").write_text("import json\n\njson.loads('no')\n", encoding="utf-8")
    (folder / "syntax.py").write_text("def f(:\n", encoding="utf-8")
    return ImportPaths(folder)


def study(names, **changes):
    return ja.Study.from_tables(copy.deepcopy(STUDY) | changes, names)


def said(names, tmp_path, **changes):
    """Plan an invalid study, and return the message; nothing is compiled."""
    with pytest.raises((ja.InputError, UserCodeError)) as raised:
        study(names, **changes).plan(tmp_path / "out", quick=True)
    assert "\n" not in str(raised.value)
    return raised.value


def phase(kind, **settings):
    return [{"name": "move", "kind": f"mine.py:{kind}", **settings}]


def model(kind, **settings):
    return {"kind": f"mine.py:{kind}", **settings}


BATCHED = [
    {
        "name": "move",
        "kind": "descent",
        "train": ["p"],
        "optimizer": "sgd",
        "step_size": 0.1,
        "steps": 2,
        "batch_size": 4,
    }
]
SHARED = "{}: the value must be known at compile time, but programs are compiled for all values"
WRONG = {
    # missing files and names
    "no file": (
        {"model": "thine.py:Model"},
        "model.kind: thine.py: no such file; did you mean mine.py?",
    ),
    "no module": ({"model": "no_lab.models:Model"}, "model.kind: no_lab.models: no such module"),
    "no name": (
        {"model": "mine.py:Modl"},
        "model.kind: mine.py:Modl: 'Modl' does not exist in mine.py; did you mean mine.py:Model?",
    ),
    "no code": ({"model": "mine.py:number"}, "mine.py:number is neither a class nor a function"),
    "a function": (
        {"model": "mine.py:loss"},
        "model: mine.py:loss: argument 'params' is not keyword-only; a model function takes only settings, after *",
    ),
    # missing bases and methods
    "no data": (
        {"data": "mine.py:NoData"},
        "data.kind: mine.py:NoData does not derive from jaxattn.DrawnData or jaxattn.SharedData; data must be a",
    ),
    "no outputs": (
        {"model": model("NoOutputs")},
        "model.kind: mine.py:NoOutputs does not define 'outputs'; a model must be",
    ),
    "no call": (
        {"loss": "mine.py:NoCall"},
        "loss.kind: mine.py:NoCall does not define '__call__'; a loss must be",
    ),
    "no phase": (
        {"phases": phase("NoPhase")},
        "phases[0].kind: mine.py:NoPhase does not derive from jaxattn.Phase; a phase must be",
    ),
    "no step": ({"phases": phase("NoStep")}, "phases[0]: NotImplementedError: NoStep.step; a phase must be"),
    "an observation of several arrays": (
        {"probes": {"own": ["mine.py:SeesTwo"]}},
        "probes.own[0]: SeesTwo.observe returns dict; return one array of any shape",
    ),
    "scores of too few tokens": (
        {"model": model("FewTokens")},
        "model: scores: expected one row for each of 12 tokens, got shape (4,)",
    ),
    "no transformation": (
        {"phases": [BATCHED[0] | {"optimizer": "mine.py:no_transformation", "batch_size": None}]},
        "phases[0]: optimizer: no_transformation returns 3; return an optax transformation",
    ),
    "no measure": (
        {"probes": {"own": ["mine.py:NoMeasure"]}},
        "probes.own[0].kind: mine.py:NoMeasure does not define 'measure'; a probe must be",
    ),
    # settings
    "unknown setting": ({"model": model("Model", dimm=3)}, "model: unknown key 'dimm'; did you mean 'dim'?"),
    "wrong type": ({"model": model("Model", dim="wide")}, "model.dim: expected 'int', got 'str'"),
    "missing setting": (
        {"data": {"kind": "mine.py:needle", "length": 3, "sequences": 5}},
        "data: missing key 'vocab_size'",
    ),
    "missing settings": (
        {"data": {"kind": "mine.py:needle", "length": 3}},
        "data: missing keys 'vocab_size', 'sequences'",
    ),
    "positional": (
        {"loss": {"kind": "mine.py:positional", "power": 3.0}},
        "loss: positional: setting 'power' is positional; put * before it",
    ),
    "plain class": (
        {"model": model("Plain", dim=3)},
        "model.kind: mine.py:Plain does not derive from jaxattn.Model; a model must be a function (*, settings)",
    ),
    "named tuple": (
        {"model": model("Pair", dim=3)},
        "model.kind: mine.py:Pair does not derive from jaxattn.Model; a model must be a function (*, settings)",
    ),
    "array setting": (
        {"probes": {"own": [{"kind": "mine.py:array_setting", "weights": [1.0]}]}},
        "probes.own[0].weights: expected 'jax",
    ),
    "unreadable": (
        {"probes": {"own": ["mine.py:unreadable"]}},
        "probes.own[0]: an annotation of unreadable cannot be evaluated: name 'Missing' is not defined",
    ),
    # invalid return values
    "no corpus": (
        {"data": "mine.py:no_corpus"},
        "data: the function returned tuple; return a jaxattn.Dataset, such as a Corpus",
    ),
    "unnamed": (
        {"model": model("Unnamed")},
        "model.init: parameters: got an array float32[3], which has no parameter names; return a dataclass",
    ),
    "keyless": (
        {"model": model("Keyless")},
        "model.init: TypeError: Keyless.init() got an unexpected keyword argument 'dtype'; a model must be",
    ),
    "two logits": (
        {"model": model("TwoColumns")},
        "loss: Classification is incompatible with the model and the data: it requires outputs (10,) for 10 examples of 2 classes, not float32[10, 2]",
    ),
    "values only": (
        {"model": model("ValuesOnly")},
        "model: ValuesOnly.scores_and_values returns float32[12]; return a tuple (scores",
    ),
    "no parameters": (
        {"model": model("NoParameters")},
        "model.init: NoParameters.init returns None; return the parameters",
    ),
    "long scores": (
        {"model": model("LongScores")},
        "model: LongScores.scores_and_values returns float32[12, 4]; return (12,) floats, the score",
    ),
    "mean loss": (
        {"loss": "mine.py:mean_loss"},
        "loss: mine.py:mean_loss returns float32[]; return floats of shape (10,), one per example",
    ),
    "whole loss": (
        {"loss": "mine.py:count_loss"},
        "loss: mine.py:count_loss returns int32[10]; return (10,) floats",
    ),
    "short start": (
        {"model": model("Model", init={"p": "mine.py:short"})},
        "model.init.p: mine.py:short returns float32[1]; return float32[4], like its input",
    ),
    "whole start": (
        {"model": model("Model", init={"p": "mine.py:whole"})},
        "model.init.p: mine.py:whole returns int32[4]; return float32[4], like its input",
    ),
    "start of nothing": (
        {"model": model("Model", init={"q": "zero"})},
        "model.init: the model has no parameter 'q'; choose one of E, p, v",
    ),
    "training nothing": (
        {"phases": phase("Stays", train=["q"])},
        "phases[0].train: q: not a parameter of the model; known: E, p, v",
    ),
    "no state": (
        {"phases": phase("NoState")},
        "phases[0]: NoState.init returns Params without 'params'; return a state",
    ),
    "no names": (
        {"phases": phase("NoNames")},
        "phases[0]: NoNames.init returns WithoutNames without 'step'; return a state with params, step and failed_at",
    ),
    "forgets": (
        {"phases": phase("Forgets")},
        "phases[0]: Forgets.step returns a Params; return the same structure as its input, State",
    ),
    "widens": (
        {"phases": phase("Widens")},
        "phases[0]: Widens.step returns float32[1, 4] for params.p; return float32[4]",
    ),
    "loses": (
        {"phases": phase("Loses")},
        "phases[0]: Loses.metrics returns int32[]; return a dictionary of numbers keyed by name",
    ),
    "matrix": (
        {"probes": {"own": ["mine.py:matrix"]}},
        "probes.own[0]: mine.py:matrix returns float32[12, 4] for 'matrix'; return a number, or numbers of shape (m,)",
    ),
    "text": (
        {"probes": {"own": ["mine.py:text"]}},
        "probes.own[0]: mine.py:text returns str for 'text'; return a number",
    ),
    "complex": (
        {"probes": {"own": ["mine.py:turn"]}},
        "probes.own[0]: mine.py:turn returns complex64[] for 'turn'; metrics must be real; return its real and",
    ),
    "scores that are not declared": (
        {"model": model("Claims")},
        "Claims.scores_and_values",
    ),
    "coupled sequences": (
        {"loss": "mine.py:contrast", "phases": BATCHED},
        "phases[0].batch_size: mine.py:contrast couples examples, but would be evaluated on all examples instead of the batch; "
        "subclass jaxattn.Loss with coupled = True",
    ),
    "a batch's loss that does not say so": (
        {"loss": "mine.py:together"},
        "loss: mine.py:together returns float32[]; return floats of shape (",
    ),
    "a batch's loss that is not one": (
        {"loss": "mine.py:Apart"},
        "loss: Apart returns float32[",
    ),
    "nothing": (
        {"probes": {"own": ["mine.py:nothing"]}},
        "probes.own[0]: mine.py:nothing returns NoneType for 'nothing'",
    ),
    # names that are taken
    "loss is taken": (
        {"probes": {"own": ["mine.py:entropy", "mine.py:loss"]}},
        "probes.own[1]: 'loss' is also a metric of a standard probe; choose another name",
    ),
    "evaluations is taken": (
        {"probes": {"own": ["mine.py:evaluations"]}},
        "probes.own[0]: 'evaluations' is also a metric of phase move",
    ),
    "a bin is taken": (
        {"model": "one_layer", "probes": {"own": ["mine.py:Ev_bin_00"]}},
        "probes.own[0]: 'Ev_bin_00' is also a metric of a standard probe",
    ),
    "twice": (
        {"probes": {"own": ["mine.py:entropy", {"kind": "mine.py:entropy", "base": 3.0}]}},
        "probes.own[1]: 'entropy' is also a metric of probes.own[0]; choose another name",
    ),
    "a transformation": (
        {"phases": [BATCHED[0] | {"optimizer": "mine.py:made_already"}]},
        "phases[0]: optimizer: expected a name or a function of the step size, such as `def custom(step_size): return ",
    ),
    "a letter left out": (
        {"phases": [{("stepsize" if key == "step_size" else key): x for key, x in BATCHED[0].items()}]},
        "phases[0]: unknown key 'stepsize'; did you mean 'step_size'?",
    ),
    "a file without a name": (
        {"data": {"kind": "mine.py"}},
        "data.kind: unknown 'mine.py'; an import path is written 'mine.py:NAME'",
    ),
    "a dot for a colon": (
        {"data": {"kind": "jaxattn.data.assumption1"}},
        "data.kind: unknown 'jaxattn.data.assumption1'; an import path is written 'jaxattn.data:assumption1'",
    ),
    "nested parameters": (
        {"model": model("Nested"), "phases": [{**BATCHED[0], "train": ["head.w"]}]},
        "phases[0].train: head.w: not a parameter of the model; did you mean 'head.v'?",
    ),
    "an annotation": (
        {"probes": {"own": ["mine.py:no_setting"]}},
        "probes.own[0]: no_setting has an annotation that is not supported for settings (",
    ),
    # numbers that differ between cells
    "decides": (
        {"model": model("Decides"), "axes": {"model.width": [1.0, 2.0]}},
        f"{SHARED.format('model.width')} (model: TracerBoolConversionError in outputs",
    ),
    "converts": (
        {"model": model("Converts"), "axes": {"model.width": [1.0, 2.0], "data.shown": [0.5, 1.0]}},
        f"{SHARED.format('model.width')} (model: TracerArrayConversionError in outputs",
    ),
    "counts steps": (
        {"phases": phase("Timed"), "axes": {"phases.move.time": [1.0, 2.0]}},
        f"{SHARED.format('phases.move.time')} (phases[0]: ConcretizationTypeError in timed",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_custom_code_raises_a_one_line_error_with_its_location(names, tmp_path, case):
    changes, expected = WRONG[case]
    if "one_layer" in str(changes.get("model")):
        changes = changes | {"model": {"kind": "one_layer", "dim": 4}}
    error = said(names, tmp_path, **changes)
    assert isinstance(error, ja.InputError)
    assert str(error).startswith(expected) or expected in str(error), str(error)


def test_coupled_loss_is_accepted_on_the_full_corpus_and_on_minibatches(names, tmp_path):
    whole = [{key: x for key, x in BATCHED[0].items() if key != "batch_size"}]
    for changes in ({"phases": whole}, {"phases": BATCHED, "model": model("Cuts")}):
        study(names, loss="mine.py:contrast", **changes).plan(tmp_path / "out", quick=True)
    study(names, loss="mine.py:Together", phases=BATCHED).plan(tmp_path / "out", quick=True)


def ranking(logits, labels):
    return jax.nn.relu(1 - labels * (logits - logits.mean()))


def by_rank(logits, labels):
    return jnp.argsort(jnp.argsort(logits)) * logits


def balanced(logits, labels):
    return jax.nn.softplus(-labels * logits) / (labels == labels[:, None]).mean(axis=1)


def shifted(logits, labels):
    """Compute a loss of single sequences that subtracts the largest logit of all."""
    top = jax.lax.stop_gradient(logits.max())
    return jnp.log(jnp.exp(-top) + jnp.exp(-labels * logits - top)) + top


def weighed(logits, labels):
    return jnp.linspace(1, 2, 10) * jax.nn.softplus(-labels * logits)


@pytest.mark.parametrize(
    ("loss", "couples"),
    [(ranking, True), (by_rank, True), (balanced, True), (shifted, False), (weighed, False)],
)
def test_coupled_losses_are_detected(loss, couples):
    assert output_checks.couples(loss, 10, 2) == couples


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", sorted(kinds.LOSSES.keys() - {"squared_error"}))
def test_built_in_losses_are_not_coupled(name, classes):
    if (name, classes) not in (("logistic", 3), ("cross_entropy", 2)):
        assert not output_checks.couples(kinds.load_kind(kinds.LOSSES[name])(smoothing=0.1), 10, classes)


def test_static_settings_allow_python_control_flow(names, tmp_path):
    for axes in ({}, {"model.width": [1.0, 2.0]}):
        error = said(names, tmp_path, model=model("Decides"), axes=axes)
        assert str(error).endswith("annotate the setting as jaxattn.Static[float], or use jax.numpy.where")
    plan = study(names, model=model("Static"), axes={"model.width": [1.0, 2.0]}).plan(tmp_path, quick=True)
    assert len(plan.groups) == 2
    # A zero is a Python number.
    assert len(study(names, model=model("Decides", width=0.0)).plan(tmp_path / "one", quick=True).groups) == 1


@pytest.mark.parametrize(
    ("changes", "line", "frame"),
    [
        ({"model": model("Raises")}, "model: KeyError in outputs, line ", 'raise KeyError("no such thing")'),
        ({"data": {"kind": "mine.py:unread"}}, "data: FileNotFoundError in unread", "return np.load(name)"),
        (
            {"model": model("RaisesWhenMade")},
            "model: RaisesWhenMade raised an exception on construction",
            "__post_init__",
        ),
        (
            {"model": model("DecidesByArrays")},
            "model: TracerBoolConversionError in outputs",
            "if params.p[0] > 0:",
        ),
        ({"model": "raises.py:Model"}, "raises.py raised an exception on import", "json.loads('no')"),
        ({"model": "syntax.py:Model"}, "syntax.py raised an exception on import", "def f(:"),
    ],
)
def test_exceptions_in_custom_code_show_only_frames_of_that_code(names, tmp_path, changes, line, frame):
    error = said(names, tmp_path, **changes)
    assert isinstance(error, UserCodeError)
    assert str(error).startswith(line) or line in str(error), str(error)
    assert frame in error.trace
    frames = re.findall(r'File "(.*)"', error.trace)
    assert not [path for path in frames if "jaxattn/" in path]


def test_error_for_numpy_in_traced_code_suggests_jax_numpy(names, tmp_path):
    for changes, place in (
        ({"model": "mine.py:WithNumpy"}, "model: TracerArrayConversionError in outputs, line"),
        (
            {"probes": {"own": ["mine.py:length"]}},
            "probes.own[0]: TracerArrayConversionError in length, line",
        ),
    ):
        error = said(names, tmp_path, **changes)
        assert str(error).startswith(place)
        assert str(error).endswith("; use jax.numpy in place of numpy")
        assert "The error occurred" not in error.trace
        assert len(error.trace.splitlines()) < 9
    error = said(names, tmp_path, model="mine.py:Misspelt")
    assert str(error).endswith("; there is no setting 'dimm', check its spelling")


def test_settings_annotated_as_arrays_can_be_traced(names, tmp_path):
    data = {"kind": "mine.py:traced_settings", "sequences": 10, "wide": 2.0}
    made = study(names, data=data, axes={"data.shown": [0.25, 0.75]})
    groups = made.plan(tmp_path / "out", quick=True).groups
    assert groups["vmapped"].tolist() == ["seed, data.shown"]
    with pytest.raises(ja.InputError, match=r"data.shown: expected `?'?float"):
        study(names, data=data | {"shown": "much"})


@pytest.mark.parametrize("kind", ["jaxattn.data:assumption1", "jaxattn.data.synthetic:independent"])
def test_built_in_generators_have_import_paths(names, tmp_path, kind):
    data = {"kind": kind, "vocab_size": 12, "relevant": 4, "length": 4, "sequences": 10}
    made = study(names, data=data)
    assert "1 cell in 1 group" in made.plan(tmp_path / "out", quick=True).sentence


RUNS = """
import jax
import jax.numpy as jnp

import jaxattn as ja


class Stays(ja.Phase, frozen=True, kw_only=True):
    train: tuple[str, ...] = ("p",)
    steps: int = 3
    def step(self, task, state):
        return state.replace(step=state.step + 1)

def needle(key, *, vocab_size: int, length: int, sequences: int, zero: int = -1, add: int = 0):
    label = jax.random.bernoulli(key, 0.5, (sequences,)).astype(jnp.int32)
    tokens = jax.random.randint(key, (sequences, length), 2, vocab_size).at[:, 0].set(label)
    return ja.data.from_draws(tokens + add, jnp.where(label, 1, zero), vocab_size=vocab_size, num_classes=2)

def fragile(params, corpus, *, limit: int = 0):
    return jax.pure_callback(lambda p: 1 / limit * p.sum(), jnp.zeros(()), params.p, vmap_method="sequential")

def strict(params, corpus, *, even: int = 0):
    if even % 2:
        raise ValueError(f"{even} is odd")
    return params.p.sum()

def holed(*, at: int = 0):
    X = jnp.ones((6, 3, 2)).at[4, at, 1].set(jnp.nan)
    return ja.data.Vectors(X=X, targets=jnp.ones(6))

class Mean(ja.Model):
    takes = ja.data.Vectors
    def init(self, key, like, *, dtype):
        return {"p": jnp.ones(like.dim, dtype)}
    def outputs(self, params, data):
        return (data.X @ params["p"]).mean(axis=1)

def undefined(params, corpus):
    return jnp.log(-jnp.abs(params.p.sum()) - 1)
"""
RUN = STUDY | {
    "name": "runs",
    "data": {"kind": "runs.py:needle", "vocab_size": 12, "length": 4, "sequences": 10},
    "model": {"kind": "one_layer", "dim": 4},
    "phases": [{"name": "move", "kind": "runs.py:Stays"}],
    "seeds": 2,
}


@pytest.fixture
def sweep(tmp_path):
    def write(**changes):
        (tmp_path / "runs.py").write_text(RUNS, encoding="utf-8")
        return toml.write_sweep(copy.deepcopy(RUN) | changes, tmp_path / "runs.toml")

    return write


def command(monkeypatch, *words):
    """Run the command line and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["jaxattn", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_nan_in_the_data_raises(sweep, tmp_path, monkeypatch, capsys):
    changes = {"data": {"kind": "runs.py:holed", "at": 2}, "model": "runs.py:Mean", "loss": "squared_error"}
    assert command(monkeypatch, "run", sweep(**changes), "--out", tmp_path / "out", "--quiet") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("data: train: X contains nan at (4, 2, 1); remove or replace it")


@pytest.mark.more
@pytest.mark.parametrize(
    ("probe", "axis", "values", "line"),
    [
        ("strict", "even", [1, 2], 'raise ValueError(f"{even} is odd")'),
        (
            "fragile",
            "limit",
            [0, 1],
            "ZeroDivisionError: division by zero in a callback of your functions",
        ),
    ],
)
def test_exception_in_a_run_stops_only_the_affected_cells(
    sweep, tmp_path, monkeypatch, capfd, probe, axis, values, line
):
    own = {"own": [{"kind": f"runs.py:{probe}", axis: 2}]}
    path = sweep(probes=own, axes={f"probes.own.0.{axis}": values})
    out = tmp_path / "out"
    assert command(monkeypatch, "run", path, "--out", out, "--quiet") == 1
    said = capfd.readouterr().err
    assert line in said
    assert "runs.py" in said or probe == "fragile"  # JAX logs the traceback.
    found = ja.load(out)
    assert set(found.records["cell"]) == {1}
    (error,) = found.manifest["errors"]
    assert error["cells"] == [0]
    assert found.manifest["status"] == "failed"
    assert said.count("cells-00000-00000-seeds-00000-00001") <= 2


@pytest.mark.more
def test_nan_from_a_probe_is_shown_as_a_dash(sweep, tmp_path, monkeypatch, capsys):
    path = sweep(probes={"own": ["runs.py:undefined"]})
    assert command(monkeypatch, "run", path, "--out", tmp_path / "out", "--quiet") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("undefined ")]
    assert " ".join(line.split()) == "undefined – (n=0)"
    found = ja.load(tmp_path / "out")
    assert found.failures.empty
    assert found.aggregate(metrics=["undefined"])["n"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"zero": 0}, "data: train: label 0 is invalid; the labels for 2 classes are [-1, 1]"),
        *(
            pytest.param(
                {"add": number},
                "data: train: a sequence contains a token id outside the range 0 to 11; increase vocab_size",
                marks=pytest.mark.more,
            )
            for number in (5, -1)
        ),
    ],
)
@pytest.mark.more
def test_invalid_labels_and_tokens_raise_before_training(sweep, tmp_path, changes, line):
    with pytest.raises(ja.InputError) as raised:
        ja.Study.read(sweep(data=RUN["data"] | changes)).run(tmp_path / "out", quiet=True)
    assert str(raised.value) == line


@pytest.mark.more
def test_results_can_be_read_without_the_custom_code(sweep, tmp_path, monkeypatch, capsys):
    path = sweep(probes={"own": ["runs.py:strict"]})
    out = tmp_path / "out"
    before = ja.Study.read(path).run(out, quiet=True)
    (tmp_path / "runs.py").unlink()
    path.unlink()
    monkeypatch.setattr(ImportPaths, "load", None)
    for words in (("status", out), ("aggregate", out), ("report", out)):
        assert command(monkeypatch, *words) == 0
    capsys.readouterr()
    after = ja.load(out)
    assert after.records.equals(before.records)
    assert after.params(cell=0, seed=1).p.shape == (4,)


class Bent(ja.TokenModel, frozen=True, kw_only=True):
    """A model that declares scores linear in p, although its outputs use tanh(p)."""

    linear_in: ClassVar[str] = "p"

    def init(self, key, like, *, dtype):
        return ja.models.OneLayer(dim=4).init(key, like, dtype=dtype)

    def scores_and_values(self, params):
        return params.E @ jnp.tanh(params.p), params.E @ params.v

    def scores(self, params, data):
        return ja.theory.Scores(params.E, data, params.E @ params.v)


def test_model_whose_outputs_are_not_attention_with_its_linear_scores_is_rejected(tmp_path):
    data = ja.data.Independent(vocab_size=12, relevant=4, length=4, sequences=10)
    study = ja.Study(
        name="x", data=data, model=Bent(), phases=[ja.dynamics.ExactFlow(name="f", until_norm=5.0)]
    )
    with pytest.raises(
        ja.InputError, match=r"^model: Bent\.outputs and Bent\.scores are not the same function"
    ):
        study.plan(tmp_path / "out", quick=True)
