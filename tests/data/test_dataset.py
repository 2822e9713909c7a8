"""Tests of datasets: examples, frozen subclasses and arrays with wrong shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxattn as ja
from jaxattn.base import Dataset
from jaxattn.data.corpus import check_classes


class Pairs(Dataset):
    left: jax.Array
    right: jax.Array


def pairs(n=5):
    left = jnp.arange(2.0 * n).reshape(n, 2)
    return Pairs(targets=jnp.arange(n), left=left, right=-left)


def test_take_selects_examples_under_jit_and_vmap():
    data, index = pairs(), jnp.array([[4, 0], [1, 3]])
    taken = jax.jit(jax.vmap(data.take))(index)
    for lane, (first, second) in enumerate(np.asarray(index)):
        one = jax.tree.map(lambda x, lane=lane: x[lane], taken)
        assert one.num_examples == 2
        np.testing.assert_array_equal(one.left, np.asarray(data.left)[[first, second]])
        np.testing.assert_array_equal(one.targets, [first, second])


def test_a_subclass_is_a_frozen_pytree():
    data = pairs()
    assert len(jax.tree.leaves(data)) == 3
    with pytest.raises(AttributeError):
        data.left = 0
    assert data.num_classes is None


class Coded(Dataset):
    codes: jax.Array
    size: int = struct.field(pytree_node=False)


def test_a_static_field_is_not_traced():
    data = Coded(targets=jnp.arange(3), codes=jnp.arange(3), size=7)
    data.check()
    assert [name for name, _ in data.arrays()] == ["targets", "codes"]
    assert jax.jit(lambda d: d.take(jnp.array([2])))(data).size == 7


@pytest.mark.parametrize("wrong", [jnp.ones((4, 2)), jnp.float32(1)])
def test_arrays_with_a_wrong_number_of_rows_are_rejected(wrong):
    pairs().check()
    with pytest.raises(ja.InputError, match=r"right: float32\[.*\] for 5 targets; expected one row"):
        pairs().replace(right=wrong).check()


def test_targets_that_are_not_classes_are_rejected():
    check_classes(jnp.array([-1, 1]), 2)
    with pytest.raises(ja.InputError, match=r"label 0 is invalid; the labels for 2 classes are \[-1, 1\]"):
        check_classes(jnp.array([0, 1]), 2)
    with pytest.raises(ja.InputError, match=r"labels for 50 classes are 0 to 49"):
        check_classes(jnp.array([50]), 50)
