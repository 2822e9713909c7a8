"""Conversion between tables and instances, for built-in and custom classes."""

import re
from pathlib import Path
from typing import Annotated, Literal

import jax
import msgspec
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.errors import UserCodeError, nearest
from jaxattn.lab.study import concepts
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.lab.study.registry import components_of, convert, describe, fields_of, make

SWEEPS = Path(__file__).parents[2] / "sweeps"
CONCEPTS = {
    "data": concepts.DATA,
    "model": concepts.MODEL,
    "loss": concepts.LOSS,
    "start": concepts.START,
    "phase": concepts.PHASE,
    "probe": concepts.PROBE,
    "figure": concepts.FIGURE,
}


@pytest.fixture
def names():
    return ImportPaths(SWEEPS)


def made(concept, table, names):
    return make(CONCEPTS[concept], table, concept, names)[0]


OWN = {
    "data": [{"kind": "mine.py:pairs", "vocab_size": 4, "sequences": 6}, "mine.py:fixed"],
    "model": [{"kind": "mine.py:Turned", "dim": 3, "sharpness": 2.0}],
    "loss": [{"kind": "mine.py:softened", "softness": 0.25}, "mine.py:softened"],
    "start": [{"kind": "mine.py:constant", "value": 3.0}],
    "phase": [{"kind": "mine.py:Wander", "name": "a", "step_size": 0.5}],
    "probe": ["mine.py:spread", {"kind": "mine.py:Travelled", "order": 1.0}],
    "figure": [{"kind": "mine.py:last_losses", "metric": "p_norm"}],
}
OWN["data"] += [{"kind": "mine.py:Pairs", "vocab_size": 4, "sequences": 6, "swapped": 0.5}]
BUILT_IN = {
    "data": [{"kind": "assumption1", "vocab_size": 8, "relevant": 2, "length": 3, "sequences": 4}],
    "model": [{"kind": "multi_head", "dim": 4, "heads": 2}],
    "loss": [{"kind": "squared", "smoothing": 0.1}, "logistic", {"smoothing": 0.1}],
    "start": ["zero", {"scale": 2.0}],
    "phase": [
        {"kind": "descent", "name": "a", "train": ["p"], "optimizer": "adamw", "step_size": 0.1, "steps": 3}
        | {"weight_decay": 0.2, "b1": 0.8}
    ],
    "probe": [{"kind": "attention_entropy"}],
}
CASES = [(concept, table) for kinds in (OWN, BUILT_IN) for concept, every in kinds.items() for table in every]


@pytest.mark.parametrize(("concept", "table"), CASES, ids=[f"{c}-{k}" for k, (c, _) in enumerate(CASES)])
def test_object_can_be_recreated_from_its_description(concept, table, names):
    """A table gives an object, whose description with all settings gives an equal object."""
    thing, written = make(CONCEPTS[concept], table, concept, names)
    again, rewritten = make(CONCEPTS[concept], written, concept, names)
    assert rewritten == written
    assert again == thing
    described = describe(thing, names)
    assert made(concept, described, names) == thing
    assert make(CONCEPTS[concept], thing, concept, names)[0] == thing
    given = {"kind": table} if isinstance(table, str) else table
    flat = written | written.get("options", {})
    assert {key: flat[key] for key in given if key in flat} == {
        key: x for key, x in given.items() if key in flat
    }


def test_description_includes_defaults(names):
    _, written = make(concepts.MODEL, {"kind": "mine.py:Turned", "dim": 3}, "model", names)
    assert written == {"kind": "mine.py:Turned", "dim": 3, "sharpness": 1.0, "rotation": "drawn"}
    table = {"kind": "mine.py:pairs", "vocab_size": 4, "sequences": 6}
    _, written = make(concepts.DATA, table, "data", names)
    assert written["swapped"] == 0.0
    assert (written["test_sequences"], written["label_noise"]) == (0, 0.0)


@pytest.mark.parametrize(
    ("concept", "table", "message"),
    [
        # Settings of custom code are checked in the same way.
        ("model", {"kind": "mine.py:Turned", "dim": "x"}, "model.dim: expected 'int', got 'str'"),
        ("model", {"kind": "mine.py:Turned"}, "model: missing key 'dim'"),
        (
            "model",
            {"kind": "mine.py:Turned", "dim": 3, "sharp": 1},
            r"unknown key 'sharp'; did you mean 'sharpness'",
        ),
        (
            "model",
            {"kind": "mine.py:Turned", "dim": 3, "rotation": "draw"},
            r"model.rotation: invalid enum value 'draw'; did you mean 'drawn'",
        ),
        (
            "data",
            {"kind": "mine.py:pairs", "vocab_size": 4, "sequences": 6, "swapped": 2.0},
            "data.swapped: expected 'float' <= 1.0, got 2.0$",
        ),
        (
            "data",
            {"kind": "mine.py:Pairs", "vocab_size": 0, "sequences": 6},
            "data.vocab_size: expected 'int' >= 1",
        ),
        (
            "data",
            {"kind": "mine.py:pairs", "vocab_size": 4, "sequences": 6, "label_noise": 0.7},
            "data.label_noise: expected 'float' <= 0.5",
        ),
        ("data", {"kind": "mine.py:pairs", "vocab_siz": 4}, r"data: unknown key 'vocab_siz'; did you mean"),
        (
            "loss",
            {"kind": "mine.py:softened", "softnes": 1},
            "unknown key 'softnes'; did you mean 'softness'",
        ),
        ("start", {"kind": "mine.py:constant", "value": "x"}, "start.value: expected 'float', got 'str'"),
        ("phase", {"kind": "mine.py:Wander", "name": "a"}, "phase: missing key 'step_size'"),
        (
            "phase",
            {"kind": "mine.py:Wander", "name": "a", "step_size": 1, "steps": 0},
            "phase.steps: expected",
        ),
        ("probe", {"kind": "mine.py:spread", "scal": 1.0}, "unknown key 'scal'; did you mean 'scale'"),
        ("figure", {"kind": "mine.py:last_losses", "metric": 3}, "figure.metric: expected 'str', got 'int'"),
        # The kind is checked too.
        (
            "model",
            "mine.py:pairs",
            "model: mine.py:pairs: argument 'key' is not keyword-only; a model function takes only",
        ),
        (
            "phase",
            "mine.py:pairs",
            "mine.py:pairs: declares no trained parameters; add the decorator @ja.declare",
        ),
        (
            "model",
            {"kind": "mine.py:WithoutOutputs"},
            "mine.py:WithoutOutputs does not define 'outputs'; a model must be",
        ),
        (
            "model",
            {"kind": "mine.py:Underived", "dim": 3},
            "mine.py:Underived does not derive from jaxattn.Model; a model must be a function",
        ),
        (
            "model",
            {"kind": "mine.py:NOT_CALLABLE"},
            "mine.py:NOT_CALLABLE is neither a class nor a function; a model",
        ),
        (
            "loss",
            {"kind": "mine.py:softend"},
            r"loss.kind: .* 'softend' does not exist .*; did you mean mine.py:softened",
        ),
        (
            "loss",
            {"kind": "main.py:softened"},
            r"loss.kind: main.py: no such file; did you mean mine.py",
        ),
        ("loss", {"kind": 3}, "loss.kind: expected a name, got 3"),
        ("loss", 3, "loss: expected a table or a name, got 3"),
        ("model", {"dim": 3}, "model: missing key 'kind'; known: one_layer, "),
        ("figure", "nosuch", "figure.kind: unknown 'nosuch'"),
    ],
)
def test_invalid_components_raise_a_one_line_error_with_location_and_remedy(concept, table, message, names):
    with pytest.raises(ja.InputError, match=message) as caught:
        made(concept, table, names)
    assert "\n" not in str(caught.value)


def test_exception_in_a_constructor_shows_the_custom_code(names):
    with pytest.raises(
        UserCodeError, match="model: RaisesWhenMade raised an exception on construction"
    ) as caught:
        made("model", {"kind": "mine.py:RaisesWhenMade", "dim": 3}, names)
    assert 'raise KeyError("not like this")' in caught.value.trace
    assert "kinds.py" not in caught.value.trace


def test_python_objects_have_import_paths():
    names = ImportPaths()
    path = f"{__name__}:Own"
    assert describe(Own(dim=3), names) == {"kind": path, "dim": 3, "share": 0.5}
    assert names.load(path) is Own
    assert components_of(own_loss, names) == f"{__name__}:own_loss"
    assert describe(ja.models.OneLayer(dim=4), names) == {"kind": "one_layer", "dim": 4}
    assert components_of("hinge", names) == "hinge"


class Own(ja.Model):
    dim: int
    share: Annotated[float, msgspec.Meta(le=1)] = 0.5

    def init(self, key, like, *, dtype):
        raise NotImplementedError

    def outputs(self, params, corpus):
        raise NotImplementedError


def own_loss(logits, labels):
    return logits * labels


def test_settings_that_cannot_be_stored_raise():
    class Holding(ja.Model):
        thing: object = None

    with pytest.raises(
        ja.InputError, match=r"a setting cannot be stored: .*use numbers, strings, lists or tables"
    ):
        describe(Holding(object()), ImportPaths())


def test_traced_settings_are_not_checked(names):
    for concept, table, key in (
        ("model", {"kind": "mine.py:Turned", "dim": 3}, "sharpness"),
        ("loss", {"kind": "mine.py:softened"}, "softness"),
        ("data", {"kind": "mine.py:pairs", "vocab_size": 4, "sequences": 6}, "swapped"),
    ):
        thing = made(concept, table, names)

        def replaced(x, thing=thing, key=key):
            changed = msgspec.structs.replace(thing, **{key: x})
            assert getattr(changed, key) is x
            assert type(changed) is type(thing)

        jax.eval_shape(replaced, 1.0)


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: ja.models.OneLayer(dim="8"), "OneLayer.dim: "),
        (lambda: ja.models.OneLayer(dim=8.0), "OneLayer.dim: "),
        (lambda: ja.models.MultiHead(dim=8, heads=0), "MultiHead.heads: expected 'int' >= 1, got 0"),
        (
            lambda: ja.dynamics.Descent(name="a", train="p", optimizer="sgd", step_size=0.1, steps=3),
            "Descent.train: expected a list, got 'p'; write ['p']",
        ),
        (
            lambda: ja.dynamics.Descent(name="a", train=["p"], optimizer="sgd", step_size=-0.1, steps=3),
            "Descent.step_size: expected 'float' > 0.0, got -0.1",
        ),
    ],
)
def test_objects_are_checked_when_they_are_made(make_it, message):
    with pytest.raises(ja.InputError, match=re.escape(message)) as caught:
        make_it()
    assert "\n" not in str(caught.value)


def test_objects_hold_plain_python_values():
    model = ja.models.OneLayer(dim=np.int64(8))
    assert type(model.dim) is int
    phase = ja.dynamics.Descent(
        name="a", train=["p"], optimizer="sgd", step_size=np.float32(0.5), steps=np.int32(3)
    )
    assert (phase.train, type(phase.step_size), type(phase.steps)) == (("p",), float, int)


def test_settings_are_fields_or_keyword_only_arguments(names):
    def listed(target):
        return [field.name for field in fields_of(target)]

    assert listed(ja.models.MultiHead) == ["dim", "heads"]
    assert listed(names.load("mine.py:Turned")) == ["dim", "sharpness", "rotation"]
    own = ["vocab_size", "sequences", "swapped"]
    of_every = ["test_sequences", "validation_sequences", "label_noise"]
    assert sorted(listed(type(made("data", OWN["data"][0], names)))) == sorted([*own, *of_every])
    assert listed(type(made("loss", "mine.py:softened", names))) == ["softness"]


@pytest.mark.parametrize(
    ("concept", "code", "message"),
    [
        (
            "model",
            "class Taken(ja.Model):\n    dim: int = 3\n    outputs: int = 3",
            "'outputs' of Taken is also an attribute of Model",
        ),
        (
            "model",
            "class Taken(ja.Model):\n    cuts_batches: bool = True",
            "annotate it as a ClassVar, or",
        ),
        (
            "loss",
            "def Taken(logits, labels, *, check: int = 3): ...",
            "'check' of taken.py:Taken",
        ),
        (
            "probe",
            "def Taken(params, corpus, *, labels: int = 3): ...",
            "'labels' of taken.py:Taken",
        ),
        (
            "probe",
            "def Taken(params, corpus, *, name: str = ''): ...",
            "'name' is a built-in setting; rename",
        ),
        (
            "data",
            "def Taken(key, *, label_noise: float = 0.1): ...",
            "'label_noise' is a built-in setting",
        ),
    ],
)
def test_setting_with_the_name_of_a_base_attribute_raises(concept, code, message, tmp_path):
    (tmp_path / "taken.py").write_text(
        f"import jaxattn as ja\n\n{code}\n\n\nclass More:\n    pass\n", encoding="utf-8"
    )
    text = (tmp_path / "taken.py").read_text(encoding="utf-8")
    if concept == "model":
        methods = "\n    def init(self, key, like, *, dtype): ...\n"
        methods += "" if "outputs:" in code else "    def outputs(self, params, corpus): ...\n"
        (tmp_path / "taken.py").write_text(text.replace(code, code + methods), encoding="utf-8")
    with pytest.raises(ja.InputError, match=message) as caught:
        made(concept, "taken.py:Taken", ImportPaths(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_setting_may_have_the_name_of_an_attribute_of_another_custom_class(tmp_path):
    (tmp_path / "own.py").write_text(
        """from typing import ClassVar

import jaxattn as ja


class Fixed(ja.Model):
    size: ClassVar[int] = 2

    def init(self, key, like, *, dtype): ...

    def outputs(self, params, data): ...


class Any(Fixed, kw_only=True):
    width: int = 3

    @property
    def size(self):
        return self.width


class Wide(Any, kw_only=True):
    size: int = 4
""",
        encoding="utf-8",
    )
    assert made("model", "own.py:Wide", ImportPaths(tmp_path)).size == 4


def test_unresolved_annotation_raises_a_one_line_error():
    def loss(logits, labels, *, power: "Nowhere" = 1):  # noqa: F821
        return logits

    names = ImportPaths(given={"mine:loss": loss})
    with pytest.raises(
        ja.InputError, match=r"loss: an annotation of loss cannot be evaluated: name 'Nowhere'"
    ):
        made("loss", "mine:loss", names)


def test_mutable_defaults_are_not_shared():
    class Listed(ja.Model):
        sizes: list[int] = msgspec.field(default_factory=lambda: [1, 2])
        kind_of: Literal["a", "b"] = "a"

    one, other = convert(Listed, {}, ""), convert(Listed, {}, "")
    one["sizes"].append(3)
    assert other["sizes"] == [1, 2]


def test_suggestion_is_the_nearest_name_or_the_list_of_all_names():
    assert nearest("dims", ["dim", "kind"]) == "; did you mean 'dim'?"
    assert nearest("zzz", ["dim", "kind"]) == "; known: dim, kind"
    assert nearest("zzz", []) == ""
