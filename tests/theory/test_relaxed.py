import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import Scores, Selection, Status, max_margin, relaxed_max_margin, selection_from_tokens


def by_loop(shortest, E, lists, labels, tied=1.0):
    """Solve both problems by sequence; every sequence selects its first token."""
    v = shortest([y * E[s[0]] for s, y in zip(lists, labels, strict=True)], np.ones(len(lists)))
    if v is None:
        return None, None
    rows, required = [], []
    for (first, *others), y in zip(lists, labels, strict=True):
        for other in others:
            rows.append(E[first] - E[other])
            between = tied if abs(y * E[other] @ v - 1) < 1e-7 else 1.0
            required.append(between if y * E[first] @ v < 1 + 1e-7 else 0.0)
    return v, shortest(rows, required) if any(required) else np.zeros(E.shape[1])


def selecting_first(lists, labels, vocab):
    corpus = ja.data.from_sequences(lists, labels, vocab_size=vocab)
    first = np.array([s[0] for s in lists])
    return corpus, Selection(np.asarray(corpus.bags.index) == first[:, None])


def posed(E, corpus, chosen):
    return Scores(E, corpus), chosen


def draw(rng, dim, sequences):
    """Tokens 0 .. 4 determine labels, at several distances from the margin; 5 .. 11 do not."""
    E = rng.normal(size=(12, dim)) / 3
    sign = np.array([1, -1, 1, -1, 1])
    E[:5, 0] += sign * np.array([1.0, 1.0, 1.5, 2.0, 2.5])
    which = rng.integers(0, 5, sequences)
    lists = [[int(k), *rng.choice(np.arange(5, 12), 3, replace=False).tolist()] for k in which]
    return E, lists, sign[which].tolist()


@pytest.mark.parametrize("dim", [8, 20], ids=["V > d", "V < d"])
def test_problems_for_p_and_v_match_an_independent_solver(rng, shortest, dim):
    relaxed = 0
    for _ in range(12):
        E, lists, labels = draw(rng, dim, 14)
        solution = relaxed_max_margin(*posed(E, *selecting_first(lists, labels, 12)))
        v, p = by_loop(shortest, E, lists, labels)
        assert solution.feasible == (p is not None)
        np.testing.assert_allclose(solution.v, v, rtol=0, atol=1e-7 * np.linalg.norm(v))
        if p is None:
            assert solution.query.status == Status.INFEASIBLE
            continue
        assert solution.duality_gap < 1e-11
        assert solution.query.primal_residual < 1e-11
        np.testing.assert_allclose(solution.p, p, rtol=0, atol=1e-7 * np.linalg.norm(p))
        # p is the sum over its pairs, and v the sum over its tokens.
        s, t = solution.query.pairs.T
        np.testing.assert_allclose(solution.multipliers @ (E[s] - E[t]), solution.p, atol=1e-10)
        margins = np.array(labels) * (E[[s[0] for s in lists]] @ solution.v)
        np.testing.assert_array_equal(solution.support, margins < 1 + 1e-7)
        if not solution.support.all():
            np.testing.assert_allclose(solution.clearance, margins[~solution.support].min() - 1, rtol=1e-9)
        full = max_margin(*posed(E, *selecting_first(lists, labels, 12)))
        relaxed += not full.feasible or np.linalg.norm(solution.p) < 0.99 * np.linalg.norm(full.p)
    assert relaxed > 5


def test_directions_of_p_and_v_match_a_manual_calculation():
    """v = (1, 0): token 0 is on its margin, token 1 is not.

    So a_0 ≥ a_2 + 1 and a_1 ≥ a_3: in the second coordinate p alone has 1 at least, in the third p_1 ≥ 2 p_2.
    """
    E = np.array([[1.0, 0.0, 0.0], [3.0, 0.0, 1.0], [1.0, -1.0, 0.0], [3.0, 2.0, 0.0]])
    problem = selecting_first([[0, 2], [1, 3]], [1, 1], 4)
    solution = relaxed_max_margin(Scores(E, problem[0]), problem[1])
    np.testing.assert_allclose(solution.v, [1, 0, 0], atol=1e-15)
    assert solution.support.tolist() == [True, False]
    assert solution.clearance == 2
    assert solution.head.pairs.tolist() == [[0, 4]]
    np.testing.assert_allclose(solution.p, [0, 1, 2], atol=1e-14)
    assert solution.query.pairs.tolist() == [[0, 2], [1, 3]]
    np.testing.assert_allclose(solution.multipliers, [5, 2], rtol=1e-13)
    np.testing.assert_allclose(solution.query.margin, 1 / np.sqrt(5))


def test_full_support_recovers_the_max_margin_problem(rng):
    E, lists, labels = draw(rng, 20, 8)
    E[:5] = np.linalg.qr(E[:5].T)[0].T
    problem = selecting_first(lists, labels, 12)
    solution = relaxed_max_margin(Scores(E, problem[0]), problem[1])
    assert solution.support.all()
    assert solution.clearance == np.inf
    np.testing.assert_array_equal(solution.p, max_margin(Scores(E, problem[0]), problem[1]).p)


def test_tied_sets_the_required_margin_of_pairs_with_both_tokens_on_the_margin(shortest):
    """Tokens 0 and 1 support v = (1, 0, 0); one sequence contains both."""
    E = np.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, -2.0]])
    lists, labels = [[0, 1], [1, 2], [0, 2]], [1, 1, 1]
    problem = selecting_first(lists, labels, 3)
    for tied in (1.0, 0.5):
        solution = relaxed_max_margin(Scores(E, problem[0]), problem[1], tied=tied)
        np.testing.assert_allclose(solution.p, by_loop(shortest, E, lists, labels, tied)[1], atol=1e-8)
        assert solution.query.pairs.tolist()[0] == [0, 1]
        np.testing.assert_allclose((E[0] - E[1]) @ solution.p, tied, rtol=1e-12)


def test_p_is_zero_if_no_pairs_must_be_separated():
    """Only the second sequence has another token, and the margin of v is not tight there."""
    E = np.array([[1.0, 0.0], [4.0, 1.0], [0.0, 1.0]])
    solution = relaxed_max_margin(*posed(E, *selecting_first([[0], [1, 2]], [1, 1], 3)))
    assert solution.feasible
    assert solution.query.status == Status.NO_PAIRS
    np.testing.assert_array_equal(solution.p, 0)
    assert solution.support.tolist() == [True, False]


def test_cycle_is_infeasible_if_it_requires_a_margin_and_otherwise_ties_its_tokens(shortest):
    lists, labels = [[0, 1], [1, 0], [2, 3]], [1, 1, 1]
    far = np.array([[3.0, 1.0, 0.0], [4.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.0, 1.0]])
    solution = relaxed_max_margin(*posed(far, *selecting_first(lists, labels, 4)))
    assert solution.support.tolist() == [False, False, True]
    np.testing.assert_allclose((far[0] - far[1]) @ solution.p, 0, atol=1e-12)
    np.testing.assert_allclose(solution.p, by_loop(shortest, far, lists, labels)[1], atol=1e-7)
    near = far / np.array([[3.0], [4.0], [1.0], [1.0]])
    solution = relaxed_max_margin(*posed(near, *selecting_first(lists, labels, 4)))
    assert solution.query.status == Status.CYCLE
    assert not solution.feasible
    assert solution.reason.startswith("v: solved")
    assert "in a cycle" in solution.reason


def test_infeasible_max_margin_problem_for_v_is_reported():
    """The same token with both labels, and points that are not separable."""
    E = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    for lists, labels, status in (
        ([[0, 2], [0, 1]], [1, -1], Status.CYCLE),
        ([[0, 2], [1, 2]], [1, 1], Status.INFEASIBLE),
    ):
        solution = relaxed_max_margin(*posed(E, *selecting_first(lists, labels, 3)))
        assert solution.head.status == status
        assert solution.infeasible
        assert solution.decided == 0
        assert not solution.feasible
        assert solution.duality_gap == 1
        assert np.isnan(solution.p).all()
        assert np.isnan(solution.v).all()
        assert not solution.support.any()
        assert solution.reason == f"v: {solution.head.reason}"


def test_invalid_input_is_rejected(rng):
    E, lists, labels = draw(rng, 20, 5)
    corpus, chosen = selecting_first(lists, labels, 12)
    three = ja.data.from_sequences(lists, [0, 1, 2, 1, 0], vocab_size=12, num_classes=3)
    with pytest.raises(ja.InputError, match="3 classes"):
        relaxed_max_margin(Scores(E, three), chosen)
    with pytest.raises(ja.InputError, match="sequence 0 has 4 selected"):
        relaxed_max_margin(Scores(E, corpus), Selection(np.asarray(corpus.bags.count) > 0))
    with pytest.raises(ja.InputError, match="sequence 0 has 0 selected"):
        relaxed_max_margin(Scores(E, corpus), selection_from_tokens(np.zeros(12, bool), corpus))
    with pytest.raises(ja.InputError, match="recompute it for this corpus"):
        relaxed_max_margin(Scores(E, corpus), Selection(np.ones((2, 2), bool)))
    with pytest.raises(ja.InputError, match=r"keys: expected shape \(12, D\)"):
        relaxed_max_margin(Scores(E[:4], corpus), chosen)
    with pytest.raises(ja.InputError, match="keys contains NaN"):
        relaxed_max_margin(Scores(np.full_like(E, np.nan), corpus), chosen)
    with pytest.raises(ja.InputError, match="tied"):
        relaxed_max_margin(Scores(E, corpus), chosen, tied=-1.0)


def test_jax_arrays_are_accepted(rng):
    E, lists, labels = draw(rng, 20, 8)
    corpus, chosen = selecting_first(lists, labels, 12)
    E = E.astype(np.float32)
    solution = relaxed_max_margin(
        Scores(jax.numpy.asarray(E), corpus), selection_from_tokens(np.arange(12) < 5, corpus)
    )
    assert solution.p.dtype == np.float64
    np.testing.assert_array_equal(solution.p, relaxed_max_margin(Scores(E.astype(float), corpus), chosen).p)


@pytest.mark.parametrize("long", [1e4, 1e8, 1e10])
def test_every_sequence_on_the_margin_of_v_is_in_the_support_if_points_are_much_longer_than_it(long):
    """The points are u plus vectors orthogonal to u with the sum 0, so v = u, and each has x·v = 1."""
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    across = long * rng.normal(size=(5, 3))
    across[-1] = -across[:-1].sum(axis=0)
    points = np.zeros((10, 4))
    points[:5] = np.column_stack([np.ones(5), across]) @ turn
    keys = np.eye(10)
    corpus = ja.data.from_sequences([[k, 5 + k] for k in range(5)], [1] * 5, vocab_size=10)
    chosen = selection_from_tokens(np.arange(10) < 5, corpus)
    found = relaxed_max_margin(Scores(keys, corpus), chosen, points=points)
    assert found.feasible
    assert found.support.all()
    np.testing.assert_allclose(found.p, np.repeat([0.5, -0.5], 5), atol=1e-12)
