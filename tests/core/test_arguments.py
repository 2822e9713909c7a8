"""Arguments of public functions are checked against their annotations."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.core.arguments import checked
from jaxattn.core.errors import nearest

SIZES = {"vocab_size": 8, "relevant": 2, "length": 4, "sequences": 8}


@pytest.fixture(scope="module")
def corpus():
    return ja.data.assumption1(jax.random.key(0), **SIZES)


@pytest.fixture(scope="module")
def params():
    return ja.models.one_layer.init(jax.random.key(1), vocab_size=8, dim=16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, p: ja.data.assumption1(0, **SIZES), "assumption1: key: expected a PRNG key"),
        (lambda c, p: ja.models.one_layer.init(3, vocab_size=8, dim=2), "one_layer.init: key: expected"),
        (
            lambda c, p: ja.data.assumption1(jax.random.key(0), **SIZES | {"length": 0}),
            "assumption1.length: expected 'int' >= 1, got 0",
        ),
        (
            lambda c, p: ja.dynamics.one_step(p, c, step_size=[1.0, 2.0]),
            "one_step.step_size: expected 'float', got 'array'",
        ),
        (
            lambda c, p: ja.dynamics.one_step(p, c, step_size="1"),
            "one_step.step_size: expected 'float', got 'str'",
        ),
        (
            lambda c, p: ja.dynamics.exact_flow(ja.theory.scores.one_layer(p, c), p.p, until_norm="far"),
            "exact_flow.until_norm: expected 'float', got 'str'",
        ),
        (
            lambda c, p: ja.dynamics.exact_flow(ja.theory.scores.one_layer(p, c), [0.0] * 16),
            "exact_flow.p: expected an array, got a list",
        ),
        (
            lambda c, p: ja.dynamics.exact_flow(p, p.p),
            "exact_flow.scores: expected 'Scores', got 'Params'",
        ),
        (
            lambda c, p: ja.theory.certify_exactly(ja.theory.scores.one_layer(p, c), c, None),
            "certify_exactly.selection: expected 'Selection', got 'Corpus'",
        ),
    ],
)
def test_invalid_arguments_raise_one_line_with_the_place(call, message, corpus, params):
    with pytest.raises(ja.InputError, match=re.escape(message)) as caught:
        call(corpus, params)
    assert "\n" not in str(caught.value)


def test_a_forgotten_key_names_the_function():
    with pytest.raises(TypeError, match=r"missing .*'key'"):
        ja.data.assumption1(**SIZES)


def test_numbers_of_numpy_and_traced_numbers_are_accepted(corpus, params):
    given = ja.data.assumption1(jax.random.key(0), **{name: np.int64(x) for name, x in SIZES.items()})
    assert (np.asarray(given.bags.index) == np.asarray(corpus.bags.index)).all()
    old = jax.random.PRNGKey(0)
    assert ja.data.assumption1(old, **SIZES).vocab_size == 8
    steps = jax.vmap(lambda size: ja.dynamics.one_step(params, corpus, step_size=size).E)(jnp.ones(3))
    alone = ja.dynamics.one_step(params, corpus, step_size=1.0).E
    np.testing.assert_allclose(steps[1], alone, rtol=1e-6)


def test_parameters_may_be_a_plain_dict(corpus, params):
    plain = {"E": params.E, "p": params.p, "v": params.v}
    moved = ja.dynamics.one_step(plain, corpus, step_size=3.0)
    assert set(moved) == {"E", "p", "v"}
    np.testing.assert_array_equal(moved["E"], ja.dynamics.one_step(params, corpus, step_size=3.0).E)
    found, expected = (ja.theory.scores.one_layer(x, corpus).values for x in (plain, params))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.more
@pytest.mark.parametrize("flow", [ja.dynamics.joint_flow, ja.dynamics.full_flow])
def test_flows_take_a_plain_dict(flow, corpus, params):
    plain = {"E": params.E, "p": params.p, "v": params.v}
    np.testing.assert_array_equal(flow(plain, corpus).p, flow(params, corpus).p)


def test_checked_functions_keep_their_signature():
    def own(key, *, number: float = 1.0, anything=None):
        """Do something."""
        return key, number, anything

    wrapped = checked(own)
    assert (wrapped.__doc__, wrapped.__name__) == (own.__doc__, "own")
    key = jax.random.key(0)
    assert wrapped(key, number=2, anything="x") == (key, 2.0, "x")
    with pytest.raises(ja.InputError, match=r"own\.number"):
        wrapped(key, number="x")


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("AdamW", ["adam", "adamw", "sgd"], "adamw"),
        ("lr", ["steps", "step_size"], "step_size"),
        ("learning_rate", ["steps", "step_size"], "step_size"),
        ("epochs", ["steps", "step_size"], "steps"),
        ("vocab", ["vocab_size", "length"], "vocab_size"),
    ],
)
def test_the_nearest_name_ignores_case_and_knows_synonyms(given, known, meant):
    assert nearest(given, known) == f"; did you mean '{meant}'?"


def test_labels_of_zero_and_one_are_explained():
    with pytest.raises(ja.InputError, match=r"for labels 0 and 1, pass 2 \* labels - 1"):
        ja.data.from_sequences([[0], [1]], [0, 1], vocab_size=2)
    with pytest.raises(ja.InputError, match=r"for labels 0 and 1"):
        ja.data.from_sequences([[0], [1]], [True, False], vocab_size=2)
    with pytest.raises(ja.InputError, match=r"token id -1 in sequence 0 .*leave padding out"):
        ja.data.from_sequences([[0, -1], [1]], [1, -1], vocab_size=2)
