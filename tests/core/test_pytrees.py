"""Access to parameters by name, and short printed forms of pytrees."""

import dataclasses
import re
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxattn as ja
from jaxattn.core import pytrees
from jaxattn.data.sequences import from_flat


@struct.dataclass
class Flax:
    E: object
    p: object
    power: int = struct.field(pytree_node=False, default=2)


@partial(jax.tree_util.register_dataclass, data_fields=["E", "p"], meta_fields=["power"])
@dataclasses.dataclass(frozen=True)
class Plain:
    E: object
    p: object
    power: int = dataclasses.field(default=2, metadata={"static": True})


class Tuple(NamedTuple):
    E: object
    p: object


@pytest.mark.parametrize("kind", [Flax, Plain, Tuple, dict])
def test_parameters_are_found_and_replaced_by_name(kind):
    params = kind(E=jnp.ones((3, 2)), p=jnp.zeros(2))
    assert pytrees.names(params) == ("E", "p")
    changed = pytrees.replace(params, p=jnp.ones(2))
    assert type(changed) is kind
    np.testing.assert_array_equal(pytrees.get(changed, "p"), [1, 1])
    np.testing.assert_array_equal(pytrees.get(params, "p"), [0, 0])
    assert pytrees.get(changed, "E") is pytrees.get(params, "E")
    for unknown in (lambda: pytrees.get(params, "q"), lambda: pytrees.replace(params, q=1)):
        with pytest.raises(ja.InputError, match="q: not a parameter of the model; known: E, p"):
            unknown()


class Module(NamedTuple):
    attention: dict
    head: list
    nothing: None = None


BUFFERS = {"w": np.ones(2), "ids": np.arange(2), "head": {"v": np.ones(1), "on": np.array([True])}}


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["*"], ["head.v", "w"]),
        (["head"], ["head.v"]),
        (["*", "!head"], ["w"]),
        (["!w", "*"], ["head.v"]),
        (["w", "head", "!*.v"], ["w"]),
        (["*", "!ids"], ["head.v", "w"]),
    ],
)
def test_excluded_and_integer_parameters_are_not_selected(patterns, names):
    assert list(pytrees.selected(BUFFERS, patterns)) == names


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["*", "!hed"], "hed: not a parameter of the model; did you mean 'head.v'?"),
        (["!w"], "!w: selects no parameter; add the parameters to train, such as '*'"),
        (["w", "!w"], "w, !w: excludes all parameters; add the parameters to train, such as '*'"),
        (["w", "ids"], "'ids' is int64[2]; only float parameters can be trained"),
    ],
)
def test_selection_without_trainable_parameters_raises(patterns, message):
    with pytest.raises(ja.InputError) as caught:
        pytrees.selected(BUFFERS, patterns)
    assert str(caught.value) == message


def test_gradients_ignore_integer_parameters():
    def loss(params):
        return (params["w"][params["ids"]] * jnp.array([1.0, 2.0])).sum() * params["head"]["v"].sum()

    value, gradients = pytrees.gradients_by_name(loss, BUFFERS | {"ids": np.array([1, 1])}, ["*"])
    assert value == 3
    np.testing.assert_array_equal(gradients["w"], [0, 3])
    np.testing.assert_array_equal(gradients["head.v"], [3])
    assert set(gradients) == {"w", "head.v"}


MODULE = Module({"kernel": np.ones((2, 3)), "bias": np.zeros(3)}, [np.ones(3), {"kernel": np.ones(1)}])


def test_nested_parameters_are_named_after_their_paths():
    known = ("attention.bias", "attention.kernel", "head.0", "head.1.kernel")
    assert pytrees.names(MODULE) == known
    changed = pytrees.replace(MODULE, **{"head.1.kernel": np.array([7.0])})
    assert type(changed) is Module
    assert changed.head[1]["kernel"] == 7
    for name in known[:3]:
        assert pytrees.get(changed, name) is pytrees.get(MODULE, name)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["attention.*"], ["attention.bias", "attention.kernel"]),
        (["head"], ["head.0", "head.1.kernel"]),
        (["*.kernel", "attention"], ["attention.kernel", "head.1.kernel", "attention.bias"]),
        (["*"], ["attention.bias", "attention.kernel", "head.0", "head.1.kernel"]),
    ],
)
def test_patterns_select_parameters(patterns, names):
    assert list(pytrees.selected(MODULE, patterns)) == names


@pytest.mark.parametrize("pattern", ["atention.*", "attention.kernl", "head.2"])
def test_an_unmatched_pattern_error_suggests_the_nearest_path(pattern):
    with pytest.raises(ja.InputError, match=rf"{re.escape(pattern)}: not a parameter .*did you mean '\w+"):
        pytrees.selected(MODULE, ["*", pattern])


def test_two_parameters_with_the_same_path_are_rejected():
    with pytest.raises(ja.InputError, match=r"two arrays have the path a\.b; rename one"):
        pytrees.names({"a": {"b": np.ones(1)}, "a.b": np.ones(1)})


@pytest.mark.parametrize("leaf", [jnp.tanh, "relu", True])
def test_parameters_that_are_not_arrays_are_rejected(leaf):
    with pytest.raises(
        ja.InputError, match=r"parameters: act is a \w+, not an array; make it a static field"
    ):
        pytrees.names({"act": leaf, "w": np.ones(2)})


def test_parameters_without_names_are_rejected():
    with pytest.raises(ja.InputError, match=r"a function, which has no parameter names; return"):
        pytrees.names(lambda x: x)
    wanted = "an array float32.3., which has no parameter names; return"
    with pytest.raises(ja.InputError, match=wanted):
        jax.eval_shape(pytrees.names, jnp.zeros(3))


@pytest.fixture(scope="module")
def things():
    corpus = ja.data.from_sequences([[0, 2, 2], [1, 2], [0]], labels=[1, -1, 1], vocab_size=3)
    params = ja.models.one_layer.init(jax.random.key(1), vocab_size=3, dim=4)
    scores = ja.theory.scores.one_layer(params, corpus)
    chosen = ja.theory.selection(params.p, scores)
    return {
        "Corpus": corpus,
        "Splits": ja.data.Splits(corpus, ja.data.token_statistics(corpus), corpus),
        "Params": params,
        "MaxMargin": ja.theory.max_margin(scores, chosen),
        "RelaxedMaxMargin": ja.theory.relaxed_max_margin(scores, chosen),
        "Limit": ja.theory.certify_limit(scores, params.p, chosen),
        "Scores": scores,
        "Ragged": corpus.bags,
        "Vectors": ja.data.Vectors(targets=corpus.targets, X=jnp.ones((3, 2, 4)), classes=2),
        "Sequences": from_flat(
            np.array([0, 2, 1, 0]), np.array([2, 1, 1]), [1, -1, 1], vocab_size=3, classes=2
        ),
    }


NAMES = ["Corpus", "Ragged", "Vectors", "Sequences", "Splits", "Params", "Scores"]
NAMES += ["MaxMargin", "RelaxedMaxMargin", "Limit"]


@pytest.mark.parametrize("name", NAMES)
def test_reprs_have_at_most_five_lines_of_100_characters(things, name):
    lines = repr(things[name]).split("\n")
    assert lines[0].startswith(f"{name}(")
    assert len(lines) <= 5
    assert max(map(len, lines)) <= 100
    assert "Array" not in repr(things[name])
    assert things[name]._repr_html_().startswith(f"<b>{name}</b> (")


@pytest.mark.more
def test_path_repr_is_short(things):
    path = ja.dynamics.exact_flow(things["Scores"], things["Params"].p, until_norm=5.0, points=5)
    test_reprs_have_at_most_five_lines_of_100_characters({"Path": path}, "Path")


def test_reprs_show_shapes_and_values(things):
    assert "3 sequences, 1 to 3 tokens in each, 6 in all, V = 3, 2 classes" in repr(things["Corpus"])
    assert "E (3, 4) float32, p (4,) float32" in repr(things["Params"])
    found = things["MaxMargin"]
    assert f"margin {float(found.margin):.4g}" in repr(found)
    assert f"duality_gap {float(found.duality_gap):.4g}" in repr(found).replace("\n  ", " ")
    assert "support" in repr(things["RelaxedMaxMargin"])
    assert "Corpus(3 sequences" in repr(things["Scores"])
    assert "validation none" in repr(things["Splits"]).replace("\n  ", " ")


def test_traced_batched_and_abstract_arrays_have_short_reprs(things):
    seen = []

    def look(corpus, params):
        seen.extend([repr(corpus), repr(params)])
        return params

    twice = jax.tree.map(lambda x: jnp.stack([x, x]), (things["Corpus"], things["Params"]))
    jax.vmap(look)(*twice)
    shapes = jax.eval_shape(look, things["Corpus"], things["Params"])
    assert seen[0] == seen[2] == "Corpus(3 sequences, V = 3, 2 classes)"
    assert "E (3, 4) float32" in repr(shapes)
    assert repr(twice[0]) == "Corpus(2 corpora, each of 3 sequences, V = 3, 2 classes)"
    assert "2 classes" in repr(jax.tree.map(np.shape, things["Corpus"]))


def test_no_patterns_select_no_parameter():
    """A phase may train nothing."""
    assert pytrees.selected({"w": jnp.ones(3)}, ()) == {}
