import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.theory import (
    Scores,
    Selection,
    Status,
    max_margin,
    max_margin_batch,
    selection,
    selection_from_tokens,
)

# Duality gap up to which a problem counts as solved. The solver may stop with a gap just below it.
TOLERANCE = 1e-12


@pytest.fixture(params=["every pair", "pools"])
def pricing(request, monkeypatch):
    """Scan all pairs in each step, as for small problems, or pools of pairs, as for large ones."""
    if request.param == "pools":
        monkeypatch.setattr(importlib.import_module("jaxattn.theory.active_set"), "_WHOLE", 0)


def length(x):
    return np.linalg.norm(x)


def constraints_by_loop(instance, bags):
    """Return the pairs and ties of every sequence."""
    pairs, ties = set(), set()
    for tokens in bags(instance.corpus):
        highest = max(instance.scores[s] for s in tokens)
        best = [s for s in tokens if instance.scores[s] == highest]
        pairs |= {(s, t) for s in best for t in tokens if t not in best}
        ties |= {(best[0], s) for s in best[1:]}
    return sorted(pairs), sorted(ties)


def combine(E, solution):
    """Σ λ (E_s - E_s') + Σ μ (E_s - E_s'')."""
    (s, t), (x, y) = solution.pairs.T, solution.ties.T
    return solution.multipliers @ (E[s] - E[t]) + solution.tie_multipliers @ (E[x] - E[y])


def check(instance, solution, bags, shortest):
    """Check an answer against its problem and the independent solver."""
    E = instance.E
    pairs, ties = constraints_by_loop(instance, bags)
    expected = shortest([E[s] - E[t] for s, t in pairs], np.ones(len(pairs)), [E[s] - E[t] for s, t in ties])
    assert solution.feasible == (expected is not None)
    real = solution.multipliers != 0
    assert (solution.multipliers >= 0).all()
    assert set(map(tuple, solution.pairs[real].tolist())) <= set(pairs)
    if not solution.feasible:
        # A non-negative combination of the differences is zero, so they cannot all be positive.
        assert solution.status == Status.INFEASIBLE
        np.testing.assert_allclose(solution.multipliers.sum(), 1, rtol=1e-14)
        np.testing.assert_allclose(combine(E, solution), 0, atol=1e-13 * np.abs(E).max())
        assert np.isnan(solution.p).all()
        assert solution.margin == 0
        return
    assert solution.status == Status.SOLVED
    # The independent solution has an error of up to 3e-11.
    assert length(solution.p - expected) < 1e-8 * length(expected)
    assert min((E[s] - E[t]) @ solution.p for s, t in pairs) > 1 - 1e-12
    assert all(abs((E[s] - E[t]) @ solution.p) < 1e-11 for s, t in ties)
    np.testing.assert_allclose(combine(E, solution), solution.p, atol=1e-12 * length(solution.p))
    np.testing.assert_allclose(solution.margin, 1 / length(solution.p), rtol=1e-13)
    np.testing.assert_allclose(solution.margin_bound, solution.margin, rtol=TOLERANCE)
    assert solution.duality_gap <= TOLERANCE
    assert solution.primal_residual < 1e-12
    assert solution.dual_residual < 1e-12


@pytest.mark.usefixtures("pricing")
def test_the_solver_matches_an_independent_solver(instances, loops, shortest):
    bags, _ = loops
    count = 0
    for instance in instances:
        solution = max_margin(Scores(instance.E, instance.corpus), instance.selection, tolerance=TOLERANCE)
        check(instance, solution, bags, shortest)
        count += solution.feasible
    assert 5 < count < len(instances) - 3


def stacked(instances):
    """Combine problems of the same size into a batch."""
    corpora = jax.tree.map(lambda *x: jnp.stack(x), *(x.corpus for x in instances))
    mask = np.stack([np.asarray(x.selection.mask) for x in instances])
    return np.stack([x.E for x in instances]), corpora, Selection(mask)


def posed(instances):
    E, corpora, chosen = stacked(instances)
    return Scores(E, corpora), chosen


@pytest.mark.parametrize("wide", [True, False], ids=["V < d", "V > d"])
def test_batch_matches_individually_solved_problems(instances, loops, shortest, wide):
    bags, _ = loops
    group = [x for x in instances if (x.E.shape[1] > len(x.E)) == wide]
    batch = max_margin_batch(*posed(group), tolerance=TOLERANCE)
    assert batch.p.shape == (len(group), group[0].E.shape[1])
    assert len(batch.reason) == len(group)
    for seed, instance in enumerate(group):
        solution = jax.tree.map(lambda x: x[seed], batch)  # noqa: B023
        check(instance, solution, bags, shortest)
        alone = max_margin(Scores(instance.E, instance.corpus), instance.selection, tolerance=TOLERANCE)
        assert batch.reason[seed] == alone.reason
        if alone.feasible:
            assert length(solution.p - alone.p) < 1e-10 * length(alone.p)


def test_failed_seeds_do_not_affect_other_seeds(instances):
    group = [x for x in instances if x.E.shape[1] > len(x.E)]
    E, corpora, chosen = stacked(group)
    healthy = max_margin_batch(Scores(E, corpora), chosen)
    # Seeds with NaN in E, with a sequence without selected token, and with every token selected.
    where, count = [0, 4, len(E)], len(E) + 3
    order = np.insert(np.arange(len(E)), where, 0)
    E, corpora, mask = jax.tree.map(lambda x: np.array(x)[order], (E, corpora, chosen.mask))
    nan, without, everything = np.flatnonzero(np.insert(np.zeros(count - 3, int), where, 1))
    E[nan, 3, 3] = np.nan
    mask[without, 2] = False
    mask[everything] = True
    batch = max_margin_batch(Scores(E, corpora), Selection(mask))
    assert batch.status[nan] == batch.status[without] == Status.INVALID
    assert batch.status[everything] == Status.NO_PAIRS
    assert batch.feasible[[nan, without, everything]].tolist() == [False, False, True]
    assert np.isnan(batch.p[[nan, without]]).all()
    assert (batch.p[everything] == 0).all()
    assert batch.margin[[nan, without, everything]].tolist() == [0, 0, np.inf]
    others = np.delete(np.arange(count), [nan, without, everything])
    for name in ("p", "margin", "duality_gap", "status", "num_pairs"):
        np.testing.assert_array_equal(getattr(batch, name)[others], getattr(healthy, name))


def test_problems_in_a_batch_can_share_a_corpus(instances):
    corpus, _, _, chosen = instances[0]
    E = np.stack([x.E for x in instances[:10]])
    batch = max_margin_batch(Scores(E, corpus), Selection(np.stack([chosen.mask] * 10)))
    for seed in range(10):
        alone = max_margin(Scores(E[seed], corpus), chosen)
        assert length(batch.p[seed] - alone.p) < 1e-10 * length(alone.p)


def test_problems_without_pairs_are_accepted_in_a_batch(instances):
    corpus, E, _, _ = instances[0]
    everything = np.asarray(corpus.bags.count) > 0
    mask = np.stack([everything, np.zeros_like(everything)])
    batch = max_margin_batch(Scores(np.stack([E, E]), corpus), Selection(mask))
    assert batch.status.tolist() == [Status.NO_PAIRS, Status.INVALID]
    with pytest.raises(ja.InputError, match="one of each per seed"):
        max_margin_batch(Scores(np.zeros((0, *E.shape)), corpus), Selection(mask[:0]))


@pytest.mark.usefixtures("pricing")
def test_orthogonal_embeddings_match_a_manual_calculation():
    """Token 0 above 1 and 2, lengths l = 2, 1, 3: minimise Σ a_s² / l_s² with a_0 = 1 + a_1 = 1 + a_2.

    So a_0 = (w_1 + w_2) / (w_0 + w_1 + w_2) with w = 1 / l², and λ_s = -w_s a_s for the lower tokens.
    """
    corpus = ja.data.from_sequences([[0, 1], [0, 2], [2, 0, 0]], [1, 1, -1], vocab_size=3)
    E, w = np.diag([2.0, 1.0, 3.0]), np.array([1 / 4, 1, 1 / 9])
    solution = max_margin(Scores(E, corpus), selection_from_tokens(np.array([True, False, False]), corpus))
    top = (w[1] + w[2]) / w.sum()
    scores = np.array([top, top - 1, top - 1])
    np.testing.assert_allclose(solution.p, scores / np.diag(E), rtol=1e-13)
    np.testing.assert_allclose(solution.margin, 1 / np.sqrt((w * scores**2).sum()), rtol=1e-13)
    assert solution.pairs.tolist() == [[0, 1], [0, 2]]
    np.testing.assert_allclose(solution.multipliers, -w[1:] * scores[1:], rtol=1e-13)
    assert solution.num_pairs == 2


@pytest.mark.usefixtures("pricing")
def test_problem_with_a_tie_matches_a_manual_calculation():
    """Tokens 0 and 1 tie above token 2: a_0 = a_1 = 1 + a_2, so a_0 = w_2 / (w_0 + w_1 + w_2)."""
    corpus = ja.data.from_sequences([[0, 1, 2]], [1], vocab_size=3)
    E, w = np.diag([2.0, 1.0, 3.0]), np.array([1 / 4, 1, 1 / 9])
    solution = max_margin(Scores(E, corpus), selection_from_tokens(np.array([True, True, False]), corpus))
    top = w[2] / w.sum()
    np.testing.assert_allclose(solution.p, np.array([top, top, top - 1]) / np.diag(E), rtol=1e-13)
    assert solution.pairs.tolist() == [[0, 2]]
    assert solution.ties.tolist() == [[0, 1]]
    np.testing.assert_allclose(solution.multipliers, (w[0] + w[1]) * top, rtol=1e-13)
    np.testing.assert_allclose(solution.tie_multipliers, -w[1] * top, rtol=1e-13)


@pytest.mark.usefixtures("pricing")
def test_pair_implied_by_other_pairs_has_no_multiplier():
    """Tokens 0, 1, 2 on a line: the pair (0, 2) is implied, and p = 1/2 by the closest pair."""
    corpus = ja.data.from_sequences([[0, 1], [1, 2], [0, 2]], [1, 1, 1], vocab_size=3)
    first = Selection(np.asarray(corpus.bags.index) == np.array([[0], [1], [0]]))
    solution = max_margin(Scores(np.array([[7.0], [3.0], [1.0]]), corpus), first)
    np.testing.assert_allclose(solution.p, [0.5], rtol=1e-14)
    assert solution.pairs.tolist() == [[1, 2]]
    assert solution.num_pairs == 3
    np.testing.assert_allclose(solution.multipliers, [0.25], rtol=1e-14)


@pytest.mark.usefixtures("pricing")
def test_selecting_a_token_between_two_others_is_infeasible():
    """E_2 = (E_0 + 3 E_1) / 4: with weights 1/4 and 3/4 the differences sum to zero."""
    corpus = ja.data.from_sequences([[0, 2], [1, 2]], [1, -1], vocab_size=3)
    E = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0], [1 / 4, -3 / 4, 5 / 4]])
    solution = max_margin(Scores(E, corpus), selection_from_tokens(np.array([False, False, True]), corpus))
    assert solution.status == Status.INFEASIBLE
    assert "no direction separates" in solution.reason
    assert solution.pairs.tolist() == [[2, 0], [2, 1]]
    np.testing.assert_allclose(solution.multipliers, [1 / 4, 3 / 4], rtol=1e-12)
    assert solution.dual_residual < 1e-14
    assert np.isnan(solution.p).all()


def test_constraints_that_form_a_cycle_are_infeasible_for_any_embeddings(rng):
    """0 > 1 and 2 > 3 > 0, where 1 and 2 tie: the pairs and the tie sum to zero exactly."""
    corpus = ja.data.from_sequences([[0, 1], [1, 2], [2, 3], [3, 0], [4, 5]], [1] * 5, vocab_size=6)
    index = np.asarray(corpus.bags.index)
    mask = np.array(
        [np.isin(row, best) for row, best in zip(index, [[0], [1, 2], [2], [3], [4]], strict=True)]
    )
    solution = max_margin(Scores(rng.normal(size=(6, 9)), corpus), Selection(mask))
    assert solution.status == Status.CYCLE
    assert "in a cycle" in solution.reason
    assert solution.infeasible
    assert not solution.feasible
    assert sorted(solution.pairs.tolist()) == [[0, 1], [2, 3], [3, 0]]
    for E in (rng.normal(size=(6, 9)), rng.normal(size=(6, 2))):
        again = max_margin(Scores(E, corpus), Selection(mask))
        assert (again.multipliers > 0).all()
        np.testing.assert_allclose(combine(E, again), 0, atol=1e-15)


def test_identical_embeddings_are_infeasible(rng, instances):
    """If all are equal, any p selects every token, and any other selection is infeasible."""
    corpus, E, scores, chosen = instances[0]
    same = np.tile(E[:1], (12, 1))
    solution = max_margin(Scores(same, corpus), selection(rng.normal(size=16), Scores(same, corpus)))
    assert solution.status == Status.NO_PAIRS
    better, worse = max_margin(Scores(E, corpus), chosen).pairs[0]
    twins = E.copy()
    twins[worse] = twins[better]
    for alike in (same, twins):
        solution = max_margin(Scores(alike, corpus), chosen)
        assert solution.status == Status.INFEASIBLE
        np.testing.assert_allclose(combine(alike, solution), 0, atol=1e-13)
    # The two lowest tokens need not be separated.
    lowest = E.copy()
    lowest[np.argsort(scores)[:2]] = 5.0 * (np.arange(16) == 3)
    E = np.stack([same, lowest, twins] + [E] * 7)
    batch = max_margin_batch(Scores(E, corpus), Selection(np.stack([chosen.mask] * 10)))
    infeasible = [Status.INFEASIBLE, Status.SOLVED, Status.INFEASIBLE]
    assert batch.status.tolist() == infeasible + [Status.SOLVED] * 7
    exact = max_margin(Scores(lowest, corpus), chosen)
    assert length(batch.p[1] - exact.p) < 1e-10 * length(exact.p)


@pytest.mark.usefixtures("pricing")
def test_selecting_every_token_leaves_no_pairs(instances):
    corpus, E, _, _ = instances[0]
    solution = max_margin(Scores(E, corpus), selection(np.zeros(16), Scores(E, corpus)))
    assert solution.feasible
    assert solution.status == Status.NO_PAIRS
    assert solution.margin == np.inf
    np.testing.assert_array_equal(solution.p, 0)
    assert solution.num_pairs == len(solution.multipliers) == 0
    assert solution.duality_gap == solution.primal_residual == 0


def test_repeating_sequences_and_tokens_does_not_change_the_solution(rng):
    sequences = [rng.integers(0, 12, 5).tolist() for _ in range(8)]
    E, scores = rng.normal(size=(12, 16)), rng.normal(size=12)
    answers = []
    for lists in (sequences, [row + row[::-1] for row in sequences] + sequences[::2]):
        corpus = ja.data.from_sequences(lists, [1] * len(lists), vocab_size=12)
        answers.append(max_margin(Scores(E, corpus), selection(scores, Scores(np.eye(12), corpus))))
    for one, other in zip(*map(jax.tree.leaves, answers), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("pricing")
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scaling_the_embeddings_does_not_change_the_direction(instances, scale):
    for corpus, E, _, chosen in instances[::4]:
        expected = max_margin(Scores(E, corpus), chosen)
        solution = max_margin(Scores(scale * E, corpus), chosen)
        assert solution.status == expected.status
        np.testing.assert_allclose(scale * solution.p, expected.p, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(solution.margin / scale, expected.margin, rtol=1e-12)


def test_solution_for_a_larger_tolerance_is_certified(instances):
    for corpus, E, _, chosen in instances[:10]:
        exact = max_margin(Scores(E, corpus), chosen)
        rough = max_margin(Scores(E, corpus), chosen, tolerance=0.5)
        assert rough.status == Status.SOLVED
        assert rough.duality_gap <= 0.5
        assert rough.margin <= exact.margin * (1 + 1e-12)
        assert rough.margin_bound >= exact.margin * (1 - 1e-12)
    impossible = max_margin(Scores(E, corpus), chosen, tolerance=-1.0)
    assert impossible.status == Status.LOOSE
    assert impossible.feasible


def test_float32_and_jax_arrays_are_accepted(instances):
    corpus, E, _, chosen = instances[0]
    single = E.astype(np.float32)
    expected = max_margin(Scores(single.astype(np.float64), corpus), chosen)
    for given in (single, jnp.asarray(single)):
        solution = max_margin(Scores(given, corpus), chosen)
        assert solution.p.dtype == np.float64
        np.testing.assert_array_equal(solution.p, expected.p)


def test_invalid_input_is_rejected(instances):
    corpus, E, _, chosen = instances[0]
    with pytest.raises(ja.InputError, match="keys contains NaN"):
        max_margin(Scores(np.where(E == E[3, 3], np.nan, E), corpus), chosen)  # noqa: SIM300
    with pytest.raises(ja.InputError, match="no selected token"):
        max_margin(Scores(E, corpus), selection_from_tokens(np.arange(12) == 0, corpus))
    with pytest.raises(ja.InputError, match=r"keys: expected shape \(12, D\)"):
        max_margin(Scores(E[:11], corpus), chosen)
    with pytest.raises(ja.InputError, match="recompute the selection for this corpus"):
        max_margin(Scores(E, corpus), Selection(np.ones((3, 3), bool)))
    with pytest.raises(ja.InputError, match="one of each per seed"):
        max_margin_batch(Scores(np.stack([E, E]), corpus), Selection(np.asarray(chosen.mask)[None]))
    with pytest.raises(ja.InputError, match="one of each per seed"):
        max_margin_batch(Scores(np.stack([E, E]), corpus), chosen)


@pytest.mark.usefixtures("pricing")
def test_a_small_margin_with_large_multipliers_is_accurate(rng):
    """Differences ±e + ε f: p = f/ε is the sum of two multiples of 1/(2 ε²), 5e9 each, that almost cancel."""
    small = 1e-5
    e, f = np.linalg.qr(rng.normal(size=(30, 30)))[0][:2]
    E = np.stack([0 * e, -(e + small * f), e - small * f])
    corpus = ja.data.from_sequences([[0, 1], [0, 2]], [1, -1], vocab_size=3)
    found = max_margin(Scores(E, corpus), selection_from_tokens(np.arange(3) == 0, corpus))
    np.testing.assert_allclose(found.margin, small, rtol=1e-9)
    assert found.duality_gap < 1e-10
    assert found.reason == "solved to the tolerance"
    np.testing.assert_allclose(found.p, f / small, atol=1e-9 / small)
