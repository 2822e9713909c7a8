"""`exact_flow` follows the same path on problems that differ in names, signs, rotations and constants."""

import jax
import numpy as np
import pytest
from dynamics import shapes
from dynamics.shapes import padded
from invariances.problems import (
    DIM,
    VOCAB,
    arrays,
    changed_problems,
    check,
    classes_and_examples,
    examples,
    problems,
    stacked,
    twice,
    with_moved_keys,
    with_moved_values,
    with_unused_token,
)

import jaxattn as ja

# Rounding errors change the steps, and a step has an error of up to rtol of the scale of p. There are some
# hundred steps.
RTOL = 1e-5
PATH = 500 * RTOL


def follow(changed):
    """Follow all problems, which have the same shape; tests of flows share the program."""
    E, p, values = (np.stack([getattr(each, name) for each in changed]) for name in ("E", "p", "values"))
    scores = ja.theory.Scores(padded(E, *E.shape[:2], shapes.DIM), stacked(changed), values)
    path = ja.dynamics.exact_flow(
        scores,
        padded(p, len(p), shapes.DIM),
        until_norm=1e4,
        max_steps=3000,
        points=shapes.POINTS,
        rtol=RTOL,
    )
    assert not path.p[..., DIM:].any()
    return path.replace(p=path.p[..., :DIM])


def assert_same_path(one, other, same_rows=True):
    """Compare the status of two paths, their rows while ‖p‖ ≤ 10, and their ends.

    Further out, forces cancel to the last digit, and rounding errors decide how far p has come by a given arc
    length until a tie is found. They also decide where a path without further digits, or steps, ends.
    """
    assert one.stop == other.stop
    gradient = [np.exp(path.log_gradient_norm[0]) for path in (one, other)]
    np.testing.assert_allclose(*gradient, rtol=1e-9, atol=1e-12)
    before = one.arc_length < one.arc_length[-1]
    decided = one.stop not in ("unresolved", "undecided", "step_budget")
    chosen = (before & (one.norm <= 10) & same_rows) | (~before & decided)
    scale = (1 + one.norm)[chosen, None]
    np.testing.assert_allclose(other.p[chosen] / scale, one.p[chosen] / scale, rtol=0, atol=PATH)


@classes_and_examples(25, 300)
def test_path_does_not_depend_on_names_signs_and_rotations(classes, examples):
    def holds(changes):
        path = follow([change.problem for change in changes.values()])
        one, *others = (take(path, k) for k in range(len(changes)))
        for other, change in zip(others, list(changes.values())[1:], strict=True):
            other = other.replace(p=change.vectors(other.p))
            assert_same_path(one, other)
            if one.stop == "norm":
                original = next(iter(changes.values()))
                assert change.selected(other.selection.mask) == original.selected(one.selection.mask)

    check(holds, changed_problems(classes), examples=examples)


def take(path, k):
    """Return the path of one problem, with NumPy arrays."""
    return jax.tree.map(lambda x: np.asarray(x[k]), path)


@classes_and_examples(10, 300)
def test_path_does_not_depend_on_constants_added_to_scores_and_outputs(classes, examples):
    """Rows are at other arc lengths, because the unit of length is the longest key; the ends are the same."""

    def holds(problem, keys, values):
        changed = with_moved_keys(problem, keys)
        if classes > 2:
            changed = with_moved_values(changed, values)
        path = follow([problem, changed] * 3)
        one, other = take(path, 0), take(path, 1)
        assert_same_path(one, other, same_rows=False)

    check(holds, problems(classes), arrays((4,)), arrays((VOCAB,)), examples=examples)


@examples(10, 200, pytest.mark.more)
def test_path_of_repeated_sequences_and_of_a_vocabulary_with_an_unused_token(examples):
    def holds(problem):
        one = take(follow([problem] * 6), 0)
        for changed in (twice(problem), with_unused_token(problem)):
            assert_same_path(one, take(follow([changed] * 6), 0))

    check(holds, problems(), examples=examples)
