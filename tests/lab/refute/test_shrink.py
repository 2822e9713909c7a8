"""Shrinking on a predicate."""

import numpy as np
import pytest

from jaxattn.lab.refute import batch, read_claim, shrink
from jaxattn.lab.refute import space as spaces


@pytest.fixture
def shrunk(write_claim):
    """Shrink an instance of ‖x‖² > bound."""

    def run(x, **options):
        claim = read_claim(str(write_claim(**options)))
        holds = shrink.one_by_one(lambda one: batch.verdict(claim, one) == "")
        return shrink.shrink(claim, spaces.from_lists({"x": x}), holds)[0]["x"].tolist()

    return run


def test_counterexample_shrinks_to_the_smallest(shrunk):
    """For ‖x‖² > 20, one entry of at most 4 is too little, and two entries of 3 are too."""
    assert shrunk([-4, 2, 0, 3]) == [3]
    assert shrunk([-4, 3, 4, 1], bound=20) in ([4, 3], [4, 4])


def test_assumptions_hold_for_every_accepted_instance(write_claim):
    claim = read_claim(str(write_claim(bound=-1)))
    accepted = []

    def holds(candidates):
        index = next((i for i, one in enumerate(candidates) if batch.verdict(claim, one) == ""), None)
        accepted.extend([] if index is None else [candidates[index]])
        return index

    found, calls = shrink.shrink(claim, spaces.from_lists({"x": [-4, 2]}), holds)
    # x = 0 violates ‖x‖² ≤ -1 too, but not the assumption.
    assert found["x"].tolist() == [1]
    assert all(one["x"].any() for one in accepted)
    assert calls > 0


def test_fixed_axes_and_the_limit_of_calls_are_kept(write_claim):
    import dataclasses

    claim = dataclasses.replace(read_claim(str(write_claim())), fixed=("n",))
    holds = shrink.one_by_one(lambda one: batch.verdict(claim, one) == "")
    start = spaces.from_lists({"x": [-4, 2, 0, 3]})
    found, _ = shrink.shrink(claim, start, holds)
    assert sorted(np.abs(found["x"]).tolist()) in ([0, 1, 2, 2], [0, 0, 0, 3])
    assert shrink.shrink(claim, start, holds, calls=0) == (start, 0)


def test_a_boundary_case_is_no_counterexample(write_claim):
    claim = read_claim(str(write_claim(boundary="'a tie' * (len(x) == 1)")))
    holds = shrink.one_by_one(lambda one: batch.verdict(claim, one) == "")
    found, _ = shrink.shrink(claim, spaces.from_lists({"x": [-4, 2, 0, 3]}), holds)
    assert len(found["x"]) == 2
    assert batch.verdict(claim, spaces.from_lists({"x": [3]})) == "a tie"
