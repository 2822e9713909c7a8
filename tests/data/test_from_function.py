"""Data sources made from functions: splits, new batches and shared keys."""

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn import base
from jaxattn.base import DrawnData
from jaxattn.data import Splits, Vectors, token_statistics
from jaxattn.data.from_function import data_class
from jaxattn.lab.study import seed as of_seed


def labels_only(key, *, sequences: int = 6):
    raise NotImplementedError


def test_each_function_is_converted_to_a_class_only_once(study):
    one, other = study("own").base.data, study("own").base.data
    assert type(one) is type(other)
    assert one == other
    assert type(one).__name__ == "pairs"


def test_signature_of_a_data_function_determines_its_base_class(study):
    assert issubclass(data_class(labels_only), base.DrawnData)
    drawn, shared = study("own").base.data, study("own", data="mine.py:fixed").base.data
    assert isinstance(drawn, base.DrawnData)
    assert isinstance(shared, base.SharedData)


def planted(key, task_key, *, sequences: int = 6, dim: int = 3):
    """Sample targets of a teacher that all samples of a seed share."""
    X = jax.random.normal(key, (sequences, 1, dim))
    return Vectors(targets=X[:, 0] @ jax.random.normal(task_key, (dim,)), X=X)


class Planted(DrawnData):
    """The same data as `planted`, as a custom class."""

    def draw(self, key, used=None):
        task_key = jax.random.fold_in(key, 17)
        train = planted(jax.random.fold_in(key, 0), task_key, sequences=8)
        return Splits(train, test=train, task_key=jax.random.key_data(task_key))

    def batch(self, key, examples, used=None, task_key=None):
        return planted(key, task_key, sequences=examples)


def teacher(data):
    """Recover the teacher from targets that are linear in it."""
    return np.linalg.lstsq(np.asarray(data.X[:, 0]), np.asarray(data.targets), rcond=None)[0]


SIZES = {"test_sequences": 7, "validation_sequences": 9}


@pytest.mark.parametrize("made", [data_class(planted)(sequences=8, **SIZES), Planted()])
def test_all_splits_for_a_seed_share_the_task_key(made, study):
    setting = study().base._replace(data=made)
    teachers = {}
    for number in (0, 1):
        held = of_seed.draw_data(setting, of_seed.keys(number)[0])
        task = of_seed.task_of(setting, held)
        every = [held.train, held.test, held.validation, *(task.fresh(jax.random.key(k), 6) for k in (3, 4))]
        found = [teacher(each) for each in every if each is not None]
        np.testing.assert_allclose(found, [found[0]] * len(found), atol=1e-4)
        assert not np.allclose(every[-1].X, every[-2].X)
        teachers[number] = found[0]
    assert np.abs(teachers[0] - teachers[1]).max() > 0.1


def test_a_function_with_a_task_key_argument_must_also_have_a_key_argument():
    assert data_class(planted).arguments == ("sequences", "dim")

    def keyless(*, task_key, sequences: int = 3):
        raise NotImplementedError

    with pytest.raises(
        ja.InputError, match=r"keyless: a function that takes 'task_key' must also take 'key'"
    ):
        data_class(keyless)


@pytest.mark.more
def test_splits_can_have_different_sizes(study):
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


@pytest.mark.more
def test_a_shared_corpus_is_loaded_with_its_token_names(study):
    loaded = study("own", data={"kind": "mine.py:fixed", "sequences": 6}).base.data.load()
    assert loaded.shared
    assert loaded.splits.train.num_examples == 6
    assert loaded.tokens == [str(s) for s in range(10)]
