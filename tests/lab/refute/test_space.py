"""Spaces of integer instances, compared with loops."""

import itertools

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.lab.refute import space as spaces
from jaxattn.lab.refute.space import Integers, Space

PLANE = Space({"x": Integers("token dim", -1, 1), "w": Integers("token", 0, 2)}, ({"token": 2, "dim": 1},))
LARGE = Space({"x": Integers("token dim", -5, 5), "c": Integers("", 0, 3)}, ({"token": 4, "dim": 3},))


def entries(batch, index):
    return tuple(int(c) for x in batch.values() for c in np.ravel(x[index]))


def test_enumeration_lists_every_instance_once():
    batch = spaces.enumerate_all(PLANE, 0)
    expected = list(itertools.product((-1, 0, 1), (-1, 0, 1), (0, 1, 2), (0, 1, 2)))
    assert [entries(batch, i) for i in range(len(batch["x"]))] == expected
    assert PLANE.number(0) == len(expected) == 81


def test_samples_are_uniform_in_their_ranges(rng):
    batch = spaces.sample(LARGE, 0, 4000, rng)
    assert batch["x"].shape == (4000, 4, 3)
    assert batch["c"].shape == (4000,)
    for name, values in (("x", range(-5, 6)), ("c", range(4))):
        found, counts = np.unique(batch[name], return_counts=True)
        assert found.tolist() == list(values)
        share = 1 / len(values)
        # Four standard deviations of a binomial count.
        assert np.abs(counts / batch[name].size - share).max() < 4 * np.sqrt(share / batch[name].size)


def test_mutations_change_few_entries_and_stay_in_range(rng):
    parents = spaces.sample(LARGE, 0, 1, rng)
    children = spaces.mutate(LARGE, 0, parents, 500, rng)
    changed = (children["x"] != parents["x"]).sum(axis=(1, 2)) + (children["c"] != parents["c"])
    # Three changes at most; a copied row changes three entries.
    assert changed.max() <= 9
    assert (changed == 1).mean() > 0.2
    assert np.abs(children["x"]).max() <= 5
    assert children["c"].min() >= 0


def test_lists_and_batches_convert_back(rng):
    batch = spaces.sample(LARGE, 0, 3, rng)
    again = spaces.stack([spaces.from_lists(spaces.to_lists(spaces.pick(batch, i))) for i in range(3)])
    for name, x in batch.items():
        np.testing.assert_array_equal(again[name], x)
    assert spaces.pad(batch, 5)["x"].shape[0] == 5


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Space({"x": Integers("n", 0, 1)}, ()), "sizes is empty"),
        (Space({"x": Integers("n", 2, 1)}, ({"n": 1},)), r"x: 2\.\.1 is empty"),
        (Space({"x": Integers("n m", 0, 1)}, ({"n": 1},)), "no length for axis 'm'"),
    ],
)
def test_invalid_space_is_rejected(space, message):
    with pytest.raises(ja.InputError, match=message):
        space.check()
