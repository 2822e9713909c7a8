"""Margins in ℓ_q, compared with Clarabel's power cones and with linear programs."""

import math
from pathlib import Path

import clarabel
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csc_matrix

import jaxattn as ja
from jaxattn.attention.scores import from_query
from jaxattn.lab.study.import_paths import ImportPaths
from jaxattn.theory import Scores, max_margin, selection, selection_from_tokens

BOOK = Path(__file__).parents[2] / "sweeps" / "neighbours"
lq_max_margin = ImportPaths(BOOK).load("lq_margin.py:lq_max_margin")


def rows_of(instance, loops):
    """Return the differences of all pairs and of all ties, from the sequences."""
    bags, selected = loops
    pairs, ties = [], []
    for tokens, best in zip(
        bags(instance.corpus), selected(instance.corpus, instance.selection), strict=True
    ):
        pairs += [instance.E[s] - instance.E[t] for s in best for t in tokens if t not in best]
        ties += [instance.E[s] - instance.E[best[0]] for s in best[1:]]
    dim = instance.E.shape[1]
    return np.array(pairs).reshape(-1, dim), np.array(ties).reshape(-1, dim)


def smallest_norm(pairs, ties, q):
    """min ‖p‖_q by Clarabel: min Σ r_j with |p_j| ≤ r_j^(1/q) t^(1-1/q), Σ r_j = t; over x = (p, r, t)."""
    dim = pairs.shape[1]
    size = 2 * dim + 1
    rows = np.zeros((len(ties) + 1 + len(pairs) + 3 * dim, size))
    rows[: len(ties), :dim] = ties
    rows[len(ties), dim:] = [1.0] * dim + [-1.0]
    rows[len(ties) + 1 : len(ties) + 1 + len(pairs), :dim] = -pairs
    for j in range(dim):
        first = len(ties) + 1 + len(pairs) + 3 * j
        rows[first, dim + j], rows[first + 1, -1], rows[first + 2, j] = -1, -1, -1
    right = np.zeros(len(rows))
    right[len(ties) + 1 : len(ties) + 1 + len(pairs)] = -1
    cones = [clarabel.ZeroConeT(len(ties) + 1), clarabel.NonnegativeConeT(len(pairs))]
    cones += [clarabel.PowerConeT(1 / q)] * dim
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    problem = csc_matrix((size, size)), np.eye(size)[-1], csc_matrix(rows), right, cones, settings
    found = clarabel.DefaultSolver(*problem).solve()
    return float(found.obj_val) if "Solved" in str(found.status) else math.inf


@pytest.mark.parametrize(
    "q", [1.25, pytest.param(1.75, marks=pytest.mark.more), pytest.param(3.0, marks=pytest.mark.more), 6.0]
)
@pytest.mark.more
def test_norms_match_a_conic_solver(instances, loops, q):
    """With ties, and without a separating direction, too."""
    seen = set()
    for instance in instances[::3]:
        pairs, ties = rows_of(instance, loops)
        found = lq_max_margin(Scores(instance.E, instance.corpus), instance.selection, q=q)
        expected = smallest_norm(pairs, ties, q)
        seen.add((found.feasible, len(ties) > 0))
        assert found.feasible == (expected < math.inf)
        if found.feasible:
            np.testing.assert_allclose(1 / found.margin, expected, rtol=1e-7)
            assert found.duality_gap < 1e-10
            assert (pairs @ found.p).min() > 1 - 1e-9
            assert np.abs(ties @ found.p).max(initial=0) < 1e-8
        else:
            assert found.infeasible
    assert len(seen) == 4


@pytest.mark.parametrize("q", [1.0, math.inf])
def test_l1_and_linf_margins_match_linear_programs(instances, loops, q):
    """min t with |p_j| ≤ t, and min Σ r_j with |p_j| ≤ r_j: other programs than the solved ones."""
    for instance in instances[:4]:
        pairs, ties = rows_of(instance, loops)
        dim = pairs.shape[1]
        bound = np.ones((dim, 1)) if q == math.inf else np.eye(dim)
        rows = np.block([[-pairs, np.zeros((len(pairs), bound.shape[1]))]])
        rows = np.vstack([rows, *(np.hstack([sign * np.eye(dim), -bound]) for sign in (1, -1))])
        expected = linprog(
            np.append(np.zeros(dim), np.ones(bound.shape[1])),
            A_ub=rows,
            b_ub=np.append(-np.ones(len(pairs)), np.zeros(2 * dim)),
            A_eq=np.hstack([ties, np.zeros((len(ties), bound.shape[1]))]),
            b_eq=np.zeros(len(ties)),
            bounds=(None, None),
        ).fun
        found = lq_max_margin(Scores(instance.E, instance.corpus), instance.selection, q=q)
        np.testing.assert_allclose(1 / found.margin, expected, rtol=1e-9)
        np.testing.assert_allclose(np.linalg.norm(found.p, q), expected, rtol=1e-9)
        assert found.duality_gap < 1e-9


def test_l2_margin_matches_max_margin(rng):
    X, z = rng.normal(size=(4, 5, 6)), rng.normal(size=(4, 3))
    scores = from_query(X, z, np.ones(4, int))
    chosen = selection(rng.normal(size=18), scores)
    norms = (1.0, 1.5, 2.0, 2.5, math.inf)
    found = [lq_max_margin(scores, chosen, q=q) for q in norms]
    np.testing.assert_array_equal(found[2].p, max_margin(scores, chosen).p)
    # ‖p‖_q decreases with q, so margins increase.
    assert (np.diff([solution.margin for solution in found]) > 0).all()
    for q, solution in zip(norms, found, strict=True):
        assert np.linalg.norm(solution.p, q) <= min(np.linalg.norm(x.p, q) for x in found) * (1 + 1e-9)
        y = solution.multipliers @ (scores.keys[solution.pairs[:, 0]] - scores.keys[solution.pairs[:, 1]])
        dual = {1.0: math.inf, math.inf: 1.0}.get(q) or q / (q - 1)
        bound = np.linalg.norm(y, dual) / solution.multipliers.sum()
        np.testing.assert_allclose(solution.margin_bound, bound, rtol=1e-12)


def test_one_pair_matches_the_closed_form(rng):
    """For a difference x, ‖p‖_∞ is smallest for p = sign(x)/‖x‖_1, and ‖p‖_1 for the largest entry alone."""
    x = np.array([0.5, -2.0, 1.0])
    scores = from_query(np.stack([x, 0 * x])[None], np.ones((1, 1)), np.ones(1, int))
    chosen = selection(x, scores)
    np.testing.assert_allclose(lq_max_margin(scores, chosen, q=math.inf).p, np.sign(x) / 3.5, rtol=1e-12)
    np.testing.assert_allclose(lq_max_margin(scores, chosen, q=1.0).p, [0, -0.5, 0], atol=1e-12)
    y = np.abs(x) ** 0.5 * np.sign(x)  # q = 3: p ∝ |x|^(1/(q-1)) sign x
    np.testing.assert_allclose(lq_max_margin(scores, chosen, q=3.0).p, y / (x @ y), rtol=1e-5)


@pytest.mark.parametrize("q", [40.0, 40 / 39])
def test_margin_scales_with_the_keys_without_overflow(rng, q):
    keys = rng.normal(size=(5, 3))
    corpus = ja.data.from_sequences([[0, 1], [0, 2, 3, 4]], [1, 1], vocab_size=5)
    chosen, units = selection_from_tokens(np.arange(5) < 1, corpus), (2.0**-40, 1.0, 2.0**40)
    found = [lq_max_margin(Scores(unit * keys, corpus), chosen, q=q) for unit in units]
    for unit, solution in zip(units, found, strict=True):
        np.testing.assert_allclose(solution.margin / unit, found[1].margin, rtol=1e-9)
        np.testing.assert_allclose(solution.margin_bound / unit, found[1].margin_bound, rtol=1e-9)


@pytest.mark.parametrize("small", [1e-11, 1e-12])
def test_margin_below_rounding_error_is_bounded(small):
    """Differences ±e + ε f, p = f/ε: with weights up to 1e6, rounding is as large as the margin."""
    e, f = np.linalg.qr(np.random.default_rng(4).normal(size=(4, 4)))[0][:2]
    rows = np.stack([small * f + e, small * f - e])
    corpus = ja.data.from_sequences([[0, 1], [0, 2]], [1, 1], vocab_size=3)
    chosen = selection_from_tokens(np.arange(3) < 1, corpus)
    found = lq_max_margin(Scores(np.concatenate([np.zeros((1, 4)), -rows]), corpus), chosen, q=12.0)
    assert found.feasible
    assert (rows @ found.p).min() > 1 - 1e-3
    np.testing.assert_allclose(found.margin * np.linalg.norm(found.p, 12), 1, rtol=1e-12)
    assert found.margin <= found.margin_bound


def test_empty_and_invalid_problems_are_handled(rng):
    scores = from_query(rng.normal(size=(2, 1, 3)), np.ones((2, 1)), np.ones(2, int))
    chosen = selection(np.ones(3), scores)
    assert not lq_max_margin(scores, chosen, q=3.0).p.any()
    with pytest.raises(ja.InputError, match=r"q: 0\.5; give a norm from 1 to inf"):
        lq_max_margin(scores, chosen, q=0.5)
    with pytest.raises(ja.InputError, match="keys contains NaN or inf"):
        lq_max_margin(Scores(np.full((2, 3), np.nan), scores.corpus), chosen, q=3.0)
    with pytest.raises(
        ja.InputError, match=r"keys: expected shape \(2, d\), one row per token, got \(1, 3\)"
    ):
        lq_max_margin(Scores(np.ones((1, 3)), scores.corpus), chosen, q=3.0)
