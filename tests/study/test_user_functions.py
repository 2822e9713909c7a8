"""Functions of the user's own as what they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import base, losses
from jaxattn.base import Task
from jaxattn.data.splits import Splits, token_statistics
from jaxattn.dynamics import Descent
from jaxattn.models import OneLayer
from jaxattn.probes import ProbeContext
from jaxattn.study.user_functions import LossOfFunction, ProbeOfFunction, class_of, data


def labels_only(key, *, sequences: int = 6):
    raise NotImplementedError


def test_a_loss_returns_one_number_a_sequence():
    def powered(logits, labels, *, power: float):
        return (logits - labels) ** power

    loss = class_of(powered, "mine.py:powered", LossOfFunction)(power=2)
    np.testing.assert_array_equal(loss(jnp.array([1.0, 2.0]), jnp.array([1, -1])), [0, 9])


QUERY = Descent(name="query", train=("p",), optimizer="sgd", step_size=1.0, steps=1)
SHOWN = ProbeContext(3.0, Task(OneLayer(dim=1), losses.DEFAULT, Splits(4.0)), QUERY)


def test_a_probe_is_named_by_its_function_or_names_its_own_numbers():
    def product(params, corpus, *, scale: float = 1.0):
        return scale * params * corpus

    made = class_of(product, "mine.py:product", ProbeOfFunction)
    assert made(scale=2.0).measure(SHOWN) == {"product": 24.0}
    assert made(name="other").measure(SHOWN) == {"other": 12.0}

    def both(params, corpus):
        return {"sum": params + corpus, "row": jnp.arange(3)}

    found = class_of(both, "mine.py:both", ProbeOfFunction)().measure(SHOWN)
    assert found["sum"] == 7
    np.testing.assert_array_equal(found["row"], [0.0, 1.0, 2.0])


def test_a_function_is_one_class_however_often_it_is_named(study):
    one, other = study("own").base.data, study("own").base.data
    assert type(one) is type(other)
    assert one == other
    assert type(one).__name__ == "pairs"


def test_what_a_data_function_takes_says_what_it_is(study):
    assert issubclass(data(labels_only, "mine.py:it"), base.DrawnData)
    drawn, shared = study("own").base.data, study("own", data="mine.py:fixed").base.data
    assert isinstance(drawn, base.DrawnData)
    assert isinstance(shared, base.SharedData)


@pytest.mark.more
def test_a_generator_draws_every_split_with_its_own_size(study):
    data = study("own").base.data
    splits = data.draw(jax.random.key(0))
    assert (splits.train.num_examples, splits.test.num_examples, splits.validation) == (12, 8, None)
    assert list(data.tokens) == [str(s) for s in range(10)]
    np.testing.assert_array_equal(splits.tokens.count, token_statistics(splits.train).count)
    validated = study("own", data=study("own").tree["data"] | {"validation_sequences": 4, "label_noise": 0.5})
    assert validated.base.data.held_out
    noisy = validated.base.data.draw(jax.random.key(0))
    assert noisy.validation.num_examples == 4
    assert (noisy.train.targets != splits.train.targets).any()
    np.testing.assert_array_equal(noisy.test.targets, splits.test.targets)


def test_a_shared_corpus_is_made_once_with_its_settings(study):
    loaded = study("own", data={"kind": "mine.py:fixed", "sequences": 6}).base.data.load()
    assert loaded.shared
    assert loaded.splits.train.num_examples == 6
    assert loaded.tokens == [str(s) for s in range(10)]
