"""Classes that are made from functions have the settings of their signatures."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn import losses
from jaxattn.base import Task
from jaxattn.base.from_function import settings_class
from jaxattn.base.model import LossFromFunction, StartFromFunction
from jaxattn.base.probe import ProbeContext, ProbeFromFunction
from jaxattn.data import Splits
from jaxattn.dynamics import Descent
from jaxattn.models import OneLayer


def test_a_loss_function_returns_one_number_per_example():
    def powered(logits, labels, *, power: float):
        return (logits - labels) ** power

    loss = settings_class(powered, LossFromFunction, kind="mine.py:powered")(power=2)
    np.testing.assert_array_equal(loss(jnp.array([1.0, 2.0]), jnp.array([1, -1])), [0, 9])


QUERY = Descent(name="query", train=("p",), optimizer="sgd", step_size=1.0, steps=1)
SHOWN = ProbeContext(3.0, Task(OneLayer(dim=1), losses.DEFAULT, Splits(4.0)), QUERY)


def test_a_probe_function_returns_a_number_or_a_dictionary():
    def product(params, corpus, *, scale: float = 1.0):
        return scale * params * corpus

    made = settings_class(product, ProbeFromFunction)
    assert made(scale=2.0).measure(SHOWN) == {"product": 24.0}
    assert made(name="other").measure(SHOWN) == {"other": 12.0}

    def both(params, corpus):
        return {"sum": params + corpus, "row": jnp.arange(3)}

    found = settings_class(both, ProbeFromFunction)().measure(SHOWN)
    assert found["sum"] == 7
    np.testing.assert_array_equal(found["row"], [0.0, 1.0, 2.0])


def test_declare_sets_class_attributes_and_the_check_function():
    def not_zero(scale, times=1):
        if scale == 0:
            raise ja.InputError("scale: 0; give another number")

    @ja.declare(check=not_zero, rotation_invariant=True)
    def scaled(key, drawn, *, scale: float):
        return scale * drawn

    made = settings_class(scaled, StartFromFunction)
    assert made.rotation_invariant
    made(scale=2.0).check()
    with pytest.raises(ja.InputError, match="scale: 0; give another number"):
        made(scale=0.0).check()


def test_repeated_declarations_are_merged():
    @ja.declare(coupled=True)
    @ja.declare(skip_reason=lambda settings, outputs, data: "never")
    def mine(outputs, targets):
        raise NotImplementedError

    made = settings_class(mine, LossFromFunction)
    assert made.coupled
    assert made().skip_reason(None, None) == "never"


def test_a_declared_function_becomes_a_method():
    @ja.declare(skip_reason=lambda settings, outputs, data: f"power {settings.power}", coupled=True)
    def powered(outputs, targets, *, power: int = 2):
        raise NotImplementedError

    made = settings_class(powered, LossFromFunction)
    assert made.coupled
    assert made(power=3).skip_reason(None, None) == "power 3"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"coupld": True}, "declare: LossFromFunction has no attribute 'coupld'; did you mean 'coupled'"),
        (
            {"check": lambda other: None},
            "declare: the check function takes 'other', which is not a setting; remove it",
        ),
    ],
)
def test_an_unknown_declared_attribute_is_rejected(declared, message):
    @ja.declare(**declared)
    def mine(outputs, targets):
        raise NotImplementedError

    with pytest.raises(ja.InputError, match=message):
        settings_class(mine, LossFromFunction)


def test_a_start_function_can_accept_token_names():
    def spelled(key, drawn, *, tokens, times: int = 1):
        return times * len(tokens)

    made = settings_class(spelled, StartFromFunction)
    assert made.arguments == ("times",)
    assert made(times=3)(None, None, ["a", "b"]) == 6


def test_allowing_traced_arrays_does_not_change_the_range_of_a_float_setting():
    def powered(outputs, targets, *, power: "ja.Positive | jnp.ndarray | None" = None):
        raise NotImplementedError

    (field,) = settings_class(powered, LossFromFunction).__annotations__.values()
    assert field == ja.Positive | None
