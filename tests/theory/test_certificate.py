from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import Constraints, MaxMargin, Status, certify_max_margin, constraints
from jaxattn.theory.certificate import bounds
from jaxattn.theory.solution import unsolved


class Solved(NamedTuple):
    """Problems with their exact answers, and a multiplier for every pair."""

    E: np.ndarray
    constraints: Any
    multipliers: np.ndarray
    exact: MaxMargin


@pytest.fixture
def problems(instances):
    made = []
    for corpus, E, _, chosen in instances:
        exact = ja.theory.max_margin(ja.theory.Scores(E, corpus), chosen)
        found = constraints(corpus, chosen)
        every = np.stack([found.better, found.worse], axis=1)
        multipliers = np.zeros(len(every))
        for pair, value in zip(exact.pairs, exact.multipliers, strict=True):
            multipliers[(every == pair).all(axis=1)] = value
        made.append(Solved(E, found, multipliers, exact))
    return made


@pytest.fixture
def feasible(problems):
    return [x for x in problems if x.exact.feasible]


@pytest.fixture
def infeasible(problems):
    return [x for x in problems if not x.exact.feasible]


def keep_ties(E, found, multipliers):
    """Return multipliers of the ties for which p is orthogonal to the differences of tied tokens."""
    w = multipliers @ (E[found.better] - E[found.worse])
    return -np.linalg.pinv((E[found.ties[:, 0]] - E[found.ties[:, 1]]).T, rcond=1e-12) @ w


def test_any_multipliers_bound_the_margin_and_the_distance_to_the_solution(feasible, rng):
    for E, found, multipliers, exact in feasible:
        noise = np.abs(rng.normal(size=len(multipliers))) * multipliers.max()
        # Multipliers from a pseudoinverse have errors of its condition number times rounding.
        for size, least, most in [(0.0, 0.0, 1e-12), (1e-6, 1e-9, 0.01), (1e-4, 1e-7, 0.9)]:
            off = multipliers + size * noise
            solution = certify_max_margin(E, found, off, keep_ties(E, found, off), tolerance=1e-10)
            assert solution.status == (Status.LOOSE if size else Status.SOLVED)
            assert least <= solution.duality_gap <= most
            assert solution.margin <= exact.margin * (1 + 1e-12)
            assert solution.margin_bound >= exact.margin * (1 - 1e-12)
            expected = 1 - (solution.margin / solution.margin_bound) ** 2
            np.testing.assert_allclose(solution.duality_gap, expected, rtol=1e-12, atol=1e-14)
            distance = np.linalg.norm(solution.p - exact.p) / np.linalg.norm(solution.p)
            assert distance**2 <= solution.duality_gap + 1e-14
            assert solution.primal_residual < 1e-12
            generous = certify_max_margin(E, found, off, keep_ties(E, found, off), tolerance=most)
            assert generous.status == Status.SOLVED


def test_solutions_with_violated_ties_are_not_feasible(feasible):
    count = 0
    for E, found, multipliers, exact in feasible:
        if len(found.ties):
            off = exact.tie_multipliers * (1 + 1e-4)
            solution = certify_max_margin(E, found, multipliers, off, tolerance=1e-10)
            assert solution.status == Status.UNDECIDED
            assert np.isnan(solution.p).all()
            count += 1
    assert count > 5


def test_invalid_infeasibility_proofs_are_rejected(infeasible, feasible, rng):
    for E, found, multipliers, exact in infeasible:
        assert exact.status == Status.INFEASIBLE
        off = multipliers.copy()
        off[multipliers.argmax()] *= 1 + 1e-6
        solution = certify_max_margin(E, found, off, exact.tie_multipliers, tolerance=1e-10)
        assert solution.status == Status.UNDECIDED
        assert not solution.feasible
        assert not solution.infeasible
        assert solution.duality_gap == 1
    for E, found, _, _ in feasible:
        for _ in range(5):
            random = rng.exponential(size=len(found.better))
            solution = certify_max_margin(E, found, random, keep_ties(E, found, random), tolerance=1e-10)
            assert solution.status != Status.INFEASIBLE


def test_negative_multipliers_and_the_scale_of_multipliers_are_ignored(feasible):
    E, found, multipliers, exact = feasible[0]
    scaled = np.where(multipliers > 0, 1e6 * multipliers, -1.0)
    other = certify_max_margin(E, found, scaled, 1e6 * exact.tie_multipliers, tolerance=1e-10)
    assert other.status == Status.SOLVED
    np.testing.assert_allclose(other.p, exact.p, rtol=1e-12)
    np.testing.assert_allclose(other.multipliers, exact.multipliers, rtol=1e-12)


def test_bounds_contain_the_margin_of_two_orthogonal_differences():
    """A = diag(3, 4): the nearest point of the segment is at height 12/5, with weights 16/25 and 9/25."""
    rows = np.diag([3.0, 4.0])
    np.testing.assert_allclose(bounds(rows, np.array([16.0, 9.0])), 12 / 5, rtol=1e-14)
    lower, upper = bounds(rows, np.array([1.0, 1.0]))
    np.testing.assert_allclose([lower, upper], [9 / 5, 5 / 2])
    assert bounds(np.array([[1.0], [-1.0]]), np.ones(2)) == (0, 0)
    # The required margins are 2 and 0, so the margin is 3 / 2; a negative value has no margin.
    np.testing.assert_allclose(bounds(rows, np.array([1.0, 0.0]), np.array([2.0, 0.0])), 3 / 2, rtol=1e-14)
    lower, upper = bounds(np.array([[3.0, -1.0], [0.0, 1.0]]), np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    assert lower < 0
    np.testing.assert_allclose(upper, np.sqrt(10))


def test_each_seed_in_a_batch_has_a_reason():
    nothing, invalid = (unsolved(status, 3) for status in (Status.NO_PAIRS, Status.INVALID))
    assert nothing.feasible is True
    assert invalid.feasible is False
    assert "no tokens to separate" in nothing.reason
    both = replace(nothing, status=np.array([Status.NO_PAIRS, Status.INVALID], np.int8))
    assert isinstance(both, MaxMargin)
    assert both.feasible.tolist() == [True, False]
    assert both.infeasible.tolist() == [False, False]
    assert both.reason == [nothing.reason, invalid.reason]
    proven = [unsolved(status, 3).decided for status in Status]
    np.testing.assert_array_equal(proven, [1, 1, 1, 0, 0, np.nan, np.nan])
    every = replace(nothing, status=np.array(list(Status), np.int8))
    np.testing.assert_array_equal(every.decided, proven)
    words = {unsolved(status, 3).reason for status in Status}
    assert len(words) == len(Status)


def test_rounded_multipliers_prove_the_margin_for_nearly_opposite_differences():
    """Differences (±1, δ) have margin δ along (0, 1); errors ε of multipliers reduce it by ε/(2 δ²)."""
    found = Constraints(
        better=np.array([0, 1], np.int32),
        worse=np.array([2, 2], np.int32),
        ties=np.zeros((0, 2), np.int32),
        leader=np.arange(3, dtype=np.int32),
        required=np.ones(2),
    )
    E = np.array([[1.0, 0.01], [-1.0, 0.01], [0.0, 0.0]])
    solution = certify_max_margin(E, found, np.array([1.0, 1 + 1e-10]), np.zeros(0), tolerance=1e-10)
    assert solution.status == Status.SOLVED
    np.testing.assert_allclose(solution.margin, 0.01, rtol=1e-13)


def test_a_wrong_number_of_multipliers_is_rejected(feasible):
    E, found, multipliers, _ = feasible[0]
    for pairs, ties in ((multipliers[:-1], len(found.ties)), (multipliers, len(found.ties) + 1)):
        with pytest.raises(ja.InputError, match=r"pass one multiplier per pair and one per tie"):
            certify_max_margin(E, found, pairs, np.zeros(ties))


def test_custom_constraints_yield_a_certified_solution(shortest, rng):
    """Required margins 1 and 2, and a tie with a token of both pairs."""
    E = rng.normal(size=(5, 4))
    leader = ja.theory.tie_classes(np.array([3]), np.array([1]), 5)
    assert leader.tolist() == [0, 1, 2, 1, 4]
    own = ja.theory.Constraints(
        better=np.array([0, 1]), worse=np.array([1, 4]), ties=np.array([[1, 3]]), leader=leader,
        required=np.array([1.0, 2.0]),
    )  # fmt: skip
    found = ja.theory.max_margin_from_constraints(E, own)
    expected = shortest([E[0] - E[1], E[1] - E[4]], [1, 2], [E[1] - E[3]])
    np.testing.assert_allclose(found.p, expected, atol=1e-6)
    assert found.status == ja.theory.Status.SOLVED
    with pytest.raises(
        ja.InputError, match=r"keys: expected shape \(5, d\), one row per token, got \(4, 4\)"
    ):
        ja.theory.max_margin_from_constraints(E[:4], own)
    with pytest.raises(ja.InputError, match="NaN or inf"):
        ja.theory.max_margin_from_constraints(E * np.nan, own)


def close_tie(gap):
    """Tokens 0 and 1 are tied and differ by `gap` in the first coordinate; token 2 is below them."""
    found = Constraints(
        better=np.array([0], np.int32),
        worse=np.array([2], np.int32),
        ties=np.array([[0, 1]], np.int32),
        leader=np.array([0, 0, 2], np.int32),
        required=np.ones(1),
    )
    return np.array([[0, 0], [gap, 0], [-1, -1.0]]), found


@pytest.mark.parametrize("gap", [2.0**-20, 2.0**-28, 2.0**-45])
def test_p_along_the_difference_of_a_close_tie_is_not_feasible(gap):
    """p is (0, 1). Without a multiplier of the tie it would be (1, 1)/2, which violates the tie by gap/2."""
    E, found = close_tie(gap)
    solution = certify_max_margin(E, found, np.ones(1), np.array([1 / gap]))
    assert solution.status == Status.SOLVED
    np.testing.assert_allclose(solution.p, [0, 1], atol=1e-15)
    assert certify_max_margin(E, found, np.ones(1), np.zeros(1)).status == Status.UNDECIDED


def test_numbers_that_are_not_finite_prove_nothing():
    E, found = close_tie(0.5)
    one, tie = np.ones(1), np.array([2.0])
    for bad in (np.nan, np.inf):
        for solution in (
            certify_max_margin(E, found, bad * one, tie),
            certify_max_margin(E, found, one, bad * tie),
            certify_max_margin(E, found, one, tie, p=np.array([bad, 1])),
        ):
            assert solution.status == Status.UNDECIDED
            assert not solution.feasible
            assert not solution.infeasible
        with pytest.raises(ja.InputError, match="keys contains NaN or inf"):
            certify_max_margin(bad * np.ones_like(E), found, one, tie)
        with pytest.raises(ja.InputError, match=f"required: margin {bad} of pair 0; pass finite margins"):
            certify_max_margin(E, found._replace(required=bad * one), one, tie)
    with pytest.raises(ja.InputError, match=r"required: margin -1\.0 of pair 0"):
        certify_max_margin(E, found._replace(required=-one), one, tie)


def test_the_printed_form_starts_with_the_outcome_and_includes_the_gap(problems):
    for each in problems:
        exact, text = each.exact, repr(each.exact).replace("\n", " ")
        assert text.startswith(f"MaxMargin({Status(int(exact.status)).name}, {exact.reason[:10]}")
        assert f"duality_gap {float(exact.duality_gap):.4g}" in " ".join(text.split())
    assert "NO_PAIRS" in repr(unsolved(Status.NO_PAIRS, 3))


def test_the_printed_form_of_a_batch_counts_outcomes():
    each = [unsolved(Status.NO_PAIRS, 2), unsolved(Status.INVALID, 2), unsolved(Status.INVALID, 2)]
    batch = replace(each[0], **{k: np.stack([getattr(x, k) for x in each]) for k in vars(each[0])})
    assert "batch of 3: 1 NO_PAIRS, 2 INVALID" in " ".join(repr(batch).split())
