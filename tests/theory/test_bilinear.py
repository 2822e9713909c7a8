"""Max-margin matrices against explicit features, another solver, closed forms, and contradictions."""

import clarabel
import numpy as np
import pytest
from scipy import sparse

import jaxattn as ja
from jaxattn.theory import Status, bilinear_max_margin
from jaxattn.theory.bilinear import matrix_norm


def problem(seed, n=8, tokens=6, a=5, b=4):
    """Differences, queries and sequences of the selection of a random matrix."""
    rng = np.random.default_rng(seed)
    x, z, W = rng.normal(size=(n, tokens, a)), rng.normal(size=(n, b)), rng.normal(size=(a, b))
    top = np.einsum("nta,ab,nb->nt", x, W, z).argmax(axis=1)
    u = x[np.arange(n), top][:, None] - x
    others = np.arange(tokens) != top[:, None]
    return u[others], z, np.repeat(np.arange(n), tokens - 1)


def solve(P, q, A, b, cones):
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    solver = clarabel.DefaultSolver(sparse.csc_matrix(P), q, sparse.csc_matrix(A), b, cones, settings)
    return np.array(solver.solve().x)


def frobenius_by_clarabel(u, z, sequence):
    features = np.einsum("ca,cb->cab", u, z[sequence]).reshape(len(u), -1)
    size = features.shape[1]
    cones = [clarabel.NonnegativeConeT(len(u))]
    W = solve(np.eye(size), np.zeros(size), -features, -np.ones(len(u)), cones)
    return W.reshape(u.shape[1], -1)


def nuclear_by_clarabel(u, z, sequence):
    """Minimise the half trace of [[A, W], [Wᵀ, B]], a positive semidefinite matrix."""
    a, b = u.shape[1], z.shape[1]
    rows, columns = np.tril_indices(a + b)
    i, j = columns, rows  # upper triangle, column by column
    features = np.zeros((len(u), len(i)))
    inside = (i < a) & (j >= a)
    features[:, inside] = u[:, i[inside]] * z[sequence][:, j[inside] - a] / np.sqrt(2)
    A = np.concatenate([-features, -np.eye(len(i))])
    cones = [clarabel.NonnegativeConeT(len(u)), clarabel.PSDTriangleConeT(a + b)]
    limits = np.concatenate([-np.ones(len(u)), np.zeros(len(i))])
    x = solve(np.zeros((len(i), len(i))), 0.5 * (i == j), A, limits, cones)
    W = np.zeros((a, b))
    W[i[inside], j[inside] - a] = x[inside] / np.sqrt(2)
    return W


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("norm", "other"), [("frobenius", frobenius_by_clarabel), ("nuclear", nuclear_by_clarabel)]
)
def test_matrix_matches_an_independent_solver(norm, other, seed):
    given = problem(seed)
    solution, expected = bilinear_max_margin(*given, norm=norm), other(*given)
    assert 1 / matrix_norm(expected, norm) == pytest.approx(solution.margin, rel=1e-6)
    np.testing.assert_allclose(solution.matrix, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_certificate_can_be_verified_with_numpy(norm):
    u, z, sequence = problem(7, n=20, tokens=9)
    solution = bilinear_max_margin(u, z, sequence, norm=norm)
    values = np.array([x @ solution.matrix @ z[i] for x, i in zip(u, sequence, strict=True)])
    assert values.min() == pytest.approx(1, abs=1e-9)
    assert 1 / matrix_norm(solution.matrix, norm) == pytest.approx(solution.margin, rel=1e-12)
    Y = sum(w * np.outer(x, z[i]) for w, x, i in zip(solution.multipliers, u, sequence, strict=True))
    dual = np.linalg.norm(Y, "fro" if norm == "frobenius" else 2)
    assert dual / solution.multipliers.sum() == pytest.approx(solution.margin_bound, rel=1e-9)
    assert (solution.multipliers >= 0).all()
    assert solution.margin <= solution.margin_bound * (1 + 1e-12)
    assert solution.duality_gap < (1e-9 if norm == "frobenius" else 1e-6)


def test_single_query_gives_the_same_matrix_for_both_norms():
    rng = np.random.default_rng(0)
    u, z = rng.normal(size=(6, 4)) + 2, rng.normal(size=(1, 3))
    first, second = (
        bilinear_max_margin(u, z, np.zeros(6, int), norm=norm) for norm in ("frobenius", "nuclear")
    )
    np.testing.assert_allclose(first.matrix, second.matrix, rtol=1e-4)
    assert np.linalg.matrix_rank(first.matrix, tol=1e-6) == 1


def test_diagonal_example_matches_the_closed_form():
    """Pairs e_k, e_k force W_kk ≥ 1: the identity is shortest, of length √k and k."""
    u = z = np.eye(3)
    for norm, length in (("frobenius", np.sqrt(3)), ("nuclear", 3.0)):
        solution = bilinear_max_margin(u, z, np.arange(3), norm=norm)
        np.testing.assert_allclose(solution.matrix, np.eye(3), atol=1e-6)
        assert solution.margin == pytest.approx(1 / length, rel=1e-7)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("scale", [1e-200, 1e-60, 1e60, 1e200])
def test_margin_scales_with_the_data(norm, scale):
    u, z, sequence = problem(3)
    one = bilinear_max_margin(u, z, sequence, norm=norm)
    other = bilinear_max_margin(scale * u, z / 8, sequence, norm=norm)
    assert other.margin == pytest.approx(one.margin * scale / 8, rel=1e-6)


def test_rotations_leave_the_margin_unchanged():
    u, z, sequence = problem(5)
    rng = np.random.default_rng(1)
    turns = [np.linalg.qr(rng.normal(size=(k, k)))[0] for k in (u.shape[1], z.shape[1])]
    one = bilinear_max_margin(u, z, sequence)
    other = bilinear_max_margin(u @ turns[0], z @ turns[1], sequence)
    assert other.margin == pytest.approx(one.margin, rel=1e-10)
    np.testing.assert_allclose(turns[0] @ other.matrix @ turns[1].T, one.matrix, atol=1e-9)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_contradictory_pairs_are_proven_infeasible(norm):
    u, z = np.array([[1.0, 2.0], [-1.0, -2.0]]), np.array([[1.0, 0.5]])
    solution = bilinear_max_margin(u, z, np.zeros(2, int), norm=norm)
    assert (solution.status, solution.margin, solution.duality_gap) == (Status.INFEASIBLE, 0.0, 1.0)
    u = np.array([[1.0, 2.0], [0.0, 0.0]])  # equal tokens
    assert bilinear_max_margin(u, z, np.zeros(2, int), norm=norm).status == Status.INFEASIBLE


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("small", [1e-15, 1e-18, -1e-20])
def test_almost_contradictory_pairs_are_not_reported_as_infeasible(norm, small):
    """The matrix (1, 2 / small) separates (1, 0) and (-1, small) exactly, but their sum is tiny."""
    u = np.array([[1.0, 0.0], [-1.0, small]])
    solution = bilinear_max_margin(u, np.ones((1, 1)), np.zeros(2, int), norm=norm)
    assert solution.status != Status.INFEASIBLE
    # 2 u_1 + u_2 + u_3 = 0 exactly.
    u = np.array([[1.0, 0.0], [-1.0, 0.3], [-1.0, -0.3]])
    solution = bilinear_max_margin(u, np.ones((1, 1)), np.zeros(3, int), norm=norm)
    assert solution.status == Status.INFEASIBLE


def test_products_out_of_range_are_rejected():
    u = np.array([[1e160, 0.0], [1e160, 1e150]])
    with pytest.raises(ja.InputError, match=r"products are out of range; rescale one of them"):
        bilinear_max_margin(u, np.full((1, 1), 1e160), np.zeros(2, int))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_very_different_norms_are_not_reported_as_infeasible(norm):
    """The margin of e_1 and δ e_2 with one query is that of p = (1, 1/δ): δ / √(1 + δ²)."""
    for small in (1e-3, 1e-9, 1e-17):
        solution = bilinear_max_margin(np.diag([1.0, small]), np.ones((1, 1)), np.zeros(2, int), norm=norm)
        assert solution.status != Status.INFEASIBLE
        if solution.margin > 0:
            assert (
                solution.margin
                <= small / np.hypot(1, small) * (1 + 1e-9)
                <= solution.margin_bound * (1 + 1e-6)
            )
    assert (
        bilinear_max_margin(np.diag([1.0, 1e-3]), np.ones((1, 1)), np.zeros(2, int)).status == Status.SOLVED
    )


def test_problem_without_pairs_has_an_infinite_margin():
    solution = bilinear_max_margin(np.zeros((0, 3)), np.ones((2, 4)), np.zeros(0, int))
    assert solution.status == Status.NO_PAIRS
    assert solution.margin == np.inf


def test_unknown_sequences_and_nan_raise_one_line_errors():
    with pytest.raises(ja.InputError, match="expected indices from 0 to 0"):
        bilinear_max_margin(np.ones((2, 3)), np.ones((1, 3)), np.array([0, 1]))
    with pytest.raises(ja.InputError, match="queries contains NaN or inf"):
        bilinear_max_margin(np.ones((1, 3)), np.full((1, 3), np.nan), np.zeros(1, int))
