"""The history of p against the max-margin direction it should end in."""

import jax
import numpy as np

from jaxattn.probes.max_margin import _facts, certified_distance
from jaxattn.theory.certificate import Status, unsolved


def test_distance_bounds_the_angle_to_every_direction_that_the_gap_leaves():
    found, off = np.array([0.3, 1e-5, 0.2]), np.array([0.2, 3e-6, 0.0])
    # 1 - cos without cancellation, 2 sin²(x/2); a gap of 1 - cos² leaves an angle of that cosine open.
    bound = certified_distance(2 * np.sin(found / 2) ** 2, np.sin(off) ** 2)
    np.testing.assert_allclose(bound, 2 * np.sin((found + off) / 2) ** 2, rtol=1e-9)
    assert np.isnan(certified_distance(np.array([np.nan]), np.array([0.1]))).all()
    np.testing.assert_array_equal(certified_distance(np.array([2.0]), np.array([0.5])), [2.0])


def test_what_is_undecided_is_neither_separable_nor_not():
    answers = [unsolved(status, 3) for status in (Status.NOTHING, Status.INFEASIBLE, Status.UNDECIDED)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *answers)
    _, feasible, *_ = _facts(stacked, np.zeros(3))
    np.testing.assert_array_equal(feasible, [1, 0, np.nan])
