"""Max-margin solutions and certificates of limits do not depend on names, signs and rotations."""

import numpy as np
import pytest
from invariances.problems import (
    changed_problems,
    check,
    examples,
    problems,
    scores,
    twice,
    with_moved_keys,
    with_unused_token,
)

import jaxattn as ja

# A solution has a relative duality gap of at most 1e-10 where it is solved, so ‖p - p_*‖² ≤ 1e-10 ‖p‖².
CLOSE = 2e-5


def solve(problem, p):
    """Select by p, and return the selection, the max-margin solution and the certificate of the limit."""
    own = scores(problem)
    chosen = ja.theory.selection(p, own)
    return chosen, ja.theory.max_margin(own, chosen), ja.theory.certify_limit(own, 100 * p, chosen)


def assert_same_solution(one, other, p):
    """Compare the verdicts of two solutions, and their numbers; `p` is that of the other, moved back."""
    assert one.status == other.status
    assert one.num_pairs == other.num_pairs
    if one.feasible:
        np.testing.assert_allclose(other.margin, one.margin, rtol=CLOSE)
        np.testing.assert_allclose(p, one.p, rtol=0, atol=CLOSE * np.linalg.norm(one.p))


def assert_same_limit(one, other):
    """Compare the verdict and the first condition that fails, without its numbers."""
    assert one.holds == other.holds
    assert one.reason.partition("(")[0].partition(",")[0] == other.reason.partition("(")[0].partition(",")[0]
    assert one.resolved == other.resolved


@pytest.mark.parametrize("classes", [2, 3])
@examples(12, 300)
def test_verdicts_and_solutions_do_not_depend_on_names_signs_and_rotations(classes, examples):
    def holds(changes):
        original, *others = changes.values()
        chosen, solution, limit = solve(original.problem, original.problem.p)
        for change in others:
            own, found, end = solve(change.problem, change.problem.p)
            assert change.selected(np.asarray(own.mask)) == original.selected(np.asarray(chosen.mask))
            assert_same_solution(solution, found, change.vectors(found.p))
            assert_same_solution(limit.direction, end.direction, change.vectors(end.direction.p))
            assert_same_limit(limit, end)

    check(holds, changed_problems(classes), examples=examples)


@examples(12, 300)
def test_verdicts_and_solutions_do_not_depend_on_repeated_sequences_and_unused_tokens(examples):
    def holds(problem):
        _, solution, limit = solve(problem, problem.p)
        for changed in (twice(problem), with_unused_token(problem), with_moved_keys(problem, np.ones(4))):
            _, found, end = solve(changed, problem.p)
            assert_same_solution(solution, found, found.p)
            assert_same_limit(limit, end)

    check(holds, problems(), examples=examples)
