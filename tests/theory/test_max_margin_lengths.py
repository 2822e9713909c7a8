"""Differences of any lengths, with answers checked in rational arithmetic."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy.optimize import linprog

import jaxattn as ja
from jaxattn.theory import (
    Scores,
    Selection,
    Status,
    constraints,
    differentiable_direction,
    max_margin,
    max_margin_batch,
    max_margin_from_constraints,
    selection_from_tokens,
)

WAYS = ("alone", "batch", "required")


tokens_of = jax.jit(selection_from_tokens)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def posed(rows, ties=()):
    """Build sequences of two tokens whose difference is a row; the first token may tie with others."""
    ties = np.reshape(ties, (-1, rows.shape[1]))
    E, top = np.concatenate([0 * rows[:1], -ties, -rows]), 1 + len(ties)
    lists = [[*range(top), top + i] for i in range(len(rows))]
    corpus = ja.data.from_sequences(lists, [1] * len(lists), vocab_size=len(E))
    return Scores(E, corpus), tokens_of(np.arange(len(E)) < top, corpus)


def solve(scores, chosen, way, rng):
    """Solve a problem alone or in a batch; return the answer and the required margins."""
    E, corpus = scores.keys, scores.corpus
    required = dict.fromkeys(range(len(E)), 1.0)
    if way == "required":
        found = constraints(corpus, chosen)
        some = rng.choice([0.0, 0.5, 1.0], len(found.worse))
        some[rng.integers(len(some))] = 1.0
        required = dict(zip(found.worse.tolist(), some.tolist(), strict=True))
        return max_margin_from_constraints(
            np.asarray(E, float), found._replace(required=some), tolerance=1e-10
        ), required
    if way == "batch":
        answers = max_margin_batch(Scores(np.stack([E, E]), corpus), Selection(np.stack([chosen.mask] * 2)))
        return jax.tree.map(lambda x: x[0], answers), required
    return max_margin(scores, chosen), required


def norm(exact):
    return math.sqrt(sum(float(x) ** 2 for x in exact))


def check(E, solution, required):
    """Check a feasible answer by p, and an infeasible one by its multipliers."""
    exact = [[Fraction(float(x)) for x in row] for row in E]

    def difference(pair):
        return [x - y for x, y in zip(exact[pair[0]], exact[pair[1]], strict=True)]

    top = len(solution.ties) + 1
    assert not (solution.feasible and solution.infeasible)
    if solution.feasible:
        p = [Fraction(float(x)) for x in solution.p]
        assert math.isclose(norm(p) * solution.margin, 1, rel_tol=1e-12)
        for lower in range(top, len(E)):
            value = sum(x * y for x, y in zip(difference((0, lower)), p, strict=True))
            assert value >= required[lower] - max(1e-12, float(solution.primal_residual))
            assert value > 0 or not required[lower]
        for tied in range(1, top):
            value = sum(x * y for x, y in zip(difference((0, tied)), p, strict=True))
            assert abs(value) <= 1e-8 * (1 + 1e-9)
    assert (solution.multipliers >= 0).all()
    pairs, ties = (x.tolist() for x in (solution.pairs, solution.ties))
    weights = [Fraction(float(x)) for x in (*solution.multipliers, *solution.tie_multipliers)]
    parts = [[x * y for y in difference(ends)] for x, ends in zip(weights, pairs + ties, strict=True)]
    summed = [sum(column) for column in zip(*parts, strict=True)]
    if solution.infeasible:
        share = sum(norm(part) for part, (_, t) in zip(parts, pairs, strict=False) if required[t])
        assert any(weights[: len(pairs)])
        assert norm(summed) <= solution.dual_residual * share <= 1e-14 * share
    if solution.feasible:
        total = sum(x * Fraction(required[t]) for x, (_, t) in zip(weights, pairs, strict=False))
        assert solution.margin_bound >= norm(summed) / float(total) * (1 - 1e-12)


def draw(rng):
    """Return rows, ties, and False if they contradict each other exactly."""
    dim, m = (int(x) for x in (rng.integers(2, 7), rng.integers(1, 9)))
    lengths = 10.0 ** (rng.uniform(-1, 1, (m, 1)) * rng.choice([0, 3, 12]))
    kind = rng.choice(["apart", "parallel", "contradict", "any"])
    p, rows = unit(rng.normal(size=dim)), unit(rng.normal(size=(m, dim)))
    if kind == "any":
        return lengths * rows, (), None
    if kind == "contradict":
        rows = lengths * rows
        return np.concatenate([rows, -rows[:1] * 2.0 ** rng.integers(-40, 40)]), (), False
    if kind == "parallel":
        rows = rows[:1] * rng.choice([-1, 1], (m, 1)) + 10.0 ** -rng.uniform(2, 12) * rows
    cosine = 10.0 ** -rng.choice([0.3, 1, 3, 6, 9, 11])
    rows = unit(rows - np.outer(rows @ p, p))
    rows = lengths * (rows - np.outer(rows @ p, p) + cosine * rng.uniform(1, 3, (m, 1)) * p)
    if rng.random() < 0.3:
        rows = np.concatenate([rows, rows[:1] * rng.choice([1.0, 1e5])])
    ties = rng.normal(size=(int(dim > 3 and rng.random() < 0.3), dim))
    return rows, ties - np.outer(ties @ p, p), True


@pytest.mark.more
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_solutions_are_correct_for_differences_of_any_norm(way, dtype):
    count = 150
    settled = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        rows, ties, separable = draw(rng)
        scores, chosen = posed(rows, ties)
        E = scores.keys.astype(dtype)
        solution, required = solve(Scores(E, scores.corpus), chosen, way, rng)
        check(E, solution, required)
        # Rounding to float32 changes the problem.
        if dtype == np.float64 and not len(ties):
            if separable:
                assert not solution.infeasible
            if separable is False and (way != "required" or required[1] or required[len(E) - 1]):
                assert not solution.feasible
            if way != "required":
                assert solution.feasible or solution.infeasible
        settled += solution.feasible or solution.infeasible
    assert settled > 0.85 * count


def test_the_normalised_problem_matches_an_independent_solver(rng):
    count = [0, 0]
    for _ in range(60):
        # Few shapes, since each is a compiled program.
        m, dim = int(rng.choice([3, 6, 11])), int(rng.integers(2, 5))
        rows = unit(rng.normal(size=(m, dim)))
        # The largest t with Â p ≥ t for p in a box.
        cost = np.append(np.zeros(dim), -1.0)
        best = -linprog(cost, np.c_[-rows, np.ones(m)], np.zeros(m), bounds=[(-1, 1)] * dim + [(0, None)]).fun
        solution = max_margin(*posed(10.0 ** rng.uniform(-12, 12, (m, 1)) * rows))
        assert solution.feasible == (best > 1e-9)
        assert solution.infeasible == (best <= 1e-9)
        count[best > 1e-9] += 1
    assert min(count) > 10


@pytest.mark.parametrize("way", WAYS[:2])
def test_orthogonal_differences_of_very_different_norms_are_solved(way, rng):
    """a_1 = 1e8 p_1 ≥ 1 and a_2 = 1e-3 p_2 ≥ 1."""
    problem = posed(np.diag([1e8, 1e-3]))
    solution, _ = solve(*problem, way, rng)
    assert solution.status == Status.SOLVED
    assert solution.duality_gap < 1e-12
    # The gap does not bound the first entry, which does not affect the length of p.
    assert np.linalg.norm(solution.p - [1e-8, 1e3]) <= np.sqrt(solution.duality_gap + 1e-14) * 1e3
    np.testing.assert_allclose(solution.margin, 1e-3, rtol=1e-12)
    if len(solution.pairs) == 2:
        np.testing.assert_allclose(
            differentiable_direction(problem[0].keys, solution), [1e-8, 1e3], rtol=1e-6
        )


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("small", [1e-6, 1e-9, 1e-12])
def test_small_margin_is_accurate_up_to_float64_rounding(way, small, rng):
    """Differences ±e + ε f have the solution p = f/ε, with rounding errors of 1e-16 / ε."""
    e, f = np.linalg.qr(rng.normal(size=(10, 10)))[0][:2]
    solution, _ = solve(*posed(np.stack([e + small * f, small * f - e])), way, rng)
    assert solution.feasible
    assert solution.duality_gap < 1e-10 + 1e-14 / small
    np.testing.assert_allclose(solution.margin, small, rtol=1e-14 / small)


def test_a_pair_in_the_span_of_the_ties_is_infeasible():
    """Two equal embeddings next to a tie, and a difference that is a multiple of that of the tie."""
    for rows in ([[0.0, 0.0, 0.0], [1e-9, 0.0, 0.0]], [[1e-9, 0.0, 0.0], [3e9, -6e9, 9e9]]):
        solution = max_margin(*posed(np.array(rows), [[1.0, -2.0, 3.0]]))
        assert solution.status == Status.INFEASIBLE
        assert solution.dual_residual <= 1e-14
