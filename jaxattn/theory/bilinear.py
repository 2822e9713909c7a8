"""Max-margin matrices for bilinear scores xᵀ W z, in the Frobenius and nuclear norms, with certificates.

The scores in an attention head are bilinear in a token x and a query z. With W = W_Kᵀ W_Q, gradient flow on W
is biased towards a small Frobenius norm, and gradient flow on W_K and W_Q towards a small nuclear norm.
"""

from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxattn.core.errors import InputError
from jaxattn.theory.active_set import active_set
from jaxattn.theory.infeasible import proves_no_matrix
from jaxattn.theory.selection import require_finite
from jaxattn.theory.solution import Status

Norm = Literal["frobenius", "nuclear"]
# Maximum number of violated pairs per sequence to add to the working set in each round.
_ADDED = 2
_MAX_ROUNDS = 200
# Scores, and sums of differences, below this fraction of the lengths involved are treated as rounding error.
_VANISHES = 1e-14
# Relative duality gap for the first rounds of the barrier method, and its reduction factor in later rounds.
_COARSE = 1e-2
# Factor between successive values of the barrier parameter t, maximum number of values, maximum number of
# Newton steps per value, and Newton decrement at which these steps stop.
_FASTER, _MAX_VALUES, _NEWTON_STEPS, _CENTRED = 12.0, 30, 40, 1e-9
# Maximum number of points on the central path from which its end is extrapolated.
_EXTRAPOLATED = 5


class BilinearMargin(NamedTuple):
    """Max-margin matrix and its certificate, in float64.

    A pair (u, z) consists of a token difference u and a query z. The margin of a matrix V is min uᵀ V z / ‖V‖
    over all pairs. For multipliers λ ≥ 0 and Y = Σ λ u zᵀ, summed over pairs, every matrix has a margin of at
    most ‖Y‖* / Σ λ. Here ‖·‖* is the dual norm: the Frobenius norm is its own dual, and the spectral norm is
    the dual of the nuclear norm.

    Attributes:
        matrix: (a, b); the minimum-norm W with uᵀ W z ≥ 1 for all pairs, or zero if none was found.
        margin: the margin of W; 0 if W does not separate the pairs, inf if there are no pairs.
        margin_bound: ‖Y‖* / Σ λ, an upper bound on the margin of every matrix; inf if there are no pairs.
        multipliers: (m,); λ.
        status: SOLVED, LOOSE (the gap is above the tolerance), NO_PAIRS (no pairs), INFEASIBLE (Y vanishes
            although some multipliers are nonzero) or UNDECIDED.
    """

    matrix: np.ndarray
    margin: float
    margin_bound: float
    multipliers: np.ndarray
    status: Status

    @property
    def duality_gap(self) -> float:
        """Duality gap 1 - (margin / margin_bound)².

        It is 0 if there are no pairs, and 1 if W does not separate the pairs.
        """
        if self.status == Status.NO_PAIRS:
            return 0.0
        return max(1 - (self.margin / self.margin_bound) ** 2, 0.0) if self.margin > 0 else 1.0


class _Pairs(NamedTuple):
    """Pairs c, each with a token difference u_c and the query z_i(c) of its sequence i(c).

    Differences and queries are scaled to a maximum norm of 1.

    Attributes:
        u: (m, a); differences of tokens.
        z: (n, r); queries in coordinates of their span.
        sequence: (m,); index i(c) of each pair's sequence.
    """

    u: np.ndarray
    z: np.ndarray
    sequence: np.ndarray

    def of(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the differences u, (k, a), and the queries z, (k, r), of the k chosen pairs."""
        return self.u[chosen], self.z[self.sequence[chosen]]

    def values(self, W: np.ndarray) -> np.ndarray:
        """Return the product uᵀ W z for each pair, (m,)."""
        return np.einsum("ca,ca->c", self.u, (self.z @ W.T)[self.sequence])

    def weighted_sum(self, multipliers: np.ndarray) -> np.ndarray:
        """Return the matrix Σ λ u zᵀ, (a, r), summed over pairs."""
        used = np.flatnonzero(multipliers)
        u, z = self.of(used)
        return (u * multipliers[used, None]).T @ z


def bilinear_max_margin(
    differences: Float[np.ndarray, "m a"],
    queries: Float[np.ndarray, "n b"],
    sequence: Int[np.ndarray, " m"],
    *,
    norm: Norm = "frobenius",
    tolerance: float = 1e-8,
) -> BilinearMargin:
    """Find the minimum-norm W that scores each selected token at least 1 above the others in its sequence.

        W_mm = argmin ‖W‖  s.t.  u_cᵀ W z_i(c) ≥ 1  for all pairs c,

    where u_c = x_s - x_t for a selected token s and another token t in sequence i(c), and z_i is the query of
    sequence i. Violated pairs are added as cutting planes. For the Frobenius norm, each subproblem is solved
    by a dual active-set method, which needs only the inner products among the u and among the z. For the
    nuclear norm, it is solved by a barrier method on the dual problem: maximise Σ λ subject to
    ‖Σ_c λ_c u_c z_i(c)ᵀ‖_2 ≤ 1.

    Args:
        differences: (m, a) float; u for each pair.
        queries: (n, b) float; z for each sequence.
        sequence: (m,) int in [0, n); the sequence of each pair.
        norm: "frobenius" or "nuclear".
        tolerance: relative duality gap up to which the problem counts as solved.

    Returns:
        The matrix with its certificate. If the problem has no solution, `status` records this.

    Raises:
        InputError: the shapes do not match, an array contains NaN or inf, or products are out of range.

    Source: Tarzanagh et al. 2023 (arXiv 2308.16898), the attention SVM in both norms.

    Example:
        >>> differences, queries = np.eye(2), np.eye(2)
        >>> ja.theory.bilinear_max_margin(differences, queries, np.arange(2)).matrix.round(4).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    u, z = np.asarray(differences, np.float64), np.asarray(queries, np.float64)
    sequence = np.asarray(sequence)
    if u.ndim != 2 or z.ndim != 2 or sequence.shape != u.shape[:1]:
        raise InputError(
            f"shapes do not match: differences {u.shape}, queries {z.shape}, sequence {sequence.shape}; "
            "expected (m, a), (n, b) and (m,)"
        )
    require_finite(differences=u, queries=z)
    if len(u) and not 0 <= sequence.min() <= sequence.max() < len(z):
        raise InputError(
            f"sequence: expected indices from 0 to {len(z) - 1}, got {sequence.min()} to {sequence.max()}"
        )
    shape = (u.shape[1], z.shape[1])
    if len(u) == 0:
        return BilinearMargin(np.zeros(shape), np.inf, np.inf, np.zeros(0), Status.NO_PAIRS)
    vanishing = ~((u != 0).any(axis=1) & (z != 0).any(axis=1)[sequence])
    if vanishing.any():
        return BilinearMargin(np.zeros(shape), 0.0, 0.0, 1.0 * vanishing, Status.INFEASIBLE)
    basis, scale = span(z), (_largest_length(u), _largest_length(z))
    if not 0 < scale[0] * scale[1] < np.inf:
        raise InputError(
            f"differences of length {scale[0]:.0e} and queries of length {scale[1]:.0e}: products are out of "
            "range; rescale one of them"
        )
    pairs = _Pairs(u / scale[0], (z / scale[1]) @ basis, sequence)
    W, multipliers = (_frobenius if norm == "frobenius" else _nuclear)(pairs, tolerance)
    found = _certify(pairs, W, multipliers, norm, tolerance, scale[0] * scale[1], basis)
    if found.status == Status.INFEASIBLE:
        # A sum that vanishes in floating point is no proof.
        used = np.flatnonzero(multipliers)
        if not proves_no_matrix(u[used], z[sequence[used]], multipliers[used]):
            return found._replace(status=Status.UNDECIDED)
    return found


def matrix_norm(W: np.ndarray, norm: Norm) -> float:
    """Return the Frobenius or nuclear norm of a matrix."""
    return float(np.linalg.norm(W, "fro" if norm == "frobenius" else "nuc"))


def _dual_norm(Y: np.ndarray, norm: Norm) -> float:
    return float(np.linalg.norm(Y, "fro" if norm == "frobenius" else 2))


def span(z: Float[np.ndarray, "n b"]) -> Float[np.ndarray, "b r"]:
    """Return an orthonormal basis, as columns, of the span of the rows of z, which must not all be zero."""
    _, size, vt = np.linalg.svd(z / np.abs(z).max(), full_matrices=False)
    return vt[size > 1e-13 * size[0]].T


def _largest_length(rows: np.ndarray) -> float:
    # Rescale, because squares of very small or large entries would underflow or overflow.
    largest = np.abs(rows).max()
    return float(largest * np.linalg.norm(rows / largest, axis=1).max())


def _frobenius(pairs: _Pairs, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Run a dual active-set method with cutting planes. Return the W and λ with the smallest duality gap."""
    chosen = _shortest(pairs)
    multipliers, best = np.zeros(len(pairs.u)), None
    for _ in range(_MAX_ROUNDS):
        u, z = pairs.of(chosen)
        # Rows with the same inner products as the matrices u zᵀ of the chosen pairs. A zero row is appended
        # below, so that each row's difference from it is the row itself.
        rows = _cholesky((u @ u.T) * (z @ z.T))
        solution = active_set(
            np.concatenate([rows, np.zeros((1, rows.shape[1]))]),
            np.arange(len(chosen)),
            np.full(len(chosen), len(chosen)),
            tolerance=tolerance / 4,
            max_steps=100 * len(chosen) + 1000,
            start=np.flatnonzero(multipliers[chosen]),
        )
        multipliers = np.zeros(len(pairs.u))
        multipliers[chosen] = np.maximum(solution.multipliers, 0)
        W = pairs.weighted_sum(multipliers)
        values = pairs.values(W)
        floor = values[chosen].min()
        if not floor > 0:  # the multipliers prove that no matrix separates these pairs
            return W, multipliers
        gap = _gap(values, W, W, multipliers, "frobenius")
        if best is None or gap < best[0]:
            best = gap, W, multipliers
        violated = np.flatnonzero(values < floor - max(tolerance / 8, 1e-13) * abs(floor))
        if gap <= tolerance or len(violated) == 0:
            break
        chosen = np.union1d(chosen, violated[_worst(values[violated], pairs.sequence[violated], _ADDED)])
    assert best is not None
    return best[1], best[2]


def _shortest(pairs: _Pairs) -> np.ndarray:
    """Return the index of the pair with the shortest difference, the hardest one, in each sequence."""
    return _worst(np.linalg.norm(pairs.u, axis=1), pairs.sequence, 1)


def _worst(values: np.ndarray, sequence: np.ndarray, number: int) -> np.ndarray:
    """Return the indices of the `number` smallest values in each sequence."""
    order = np.lexsort((values, sequence))
    _, first = np.unique(sequence[order], return_index=True)
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return order[rank < number]


def _gap(values: np.ndarray, W: np.ndarray, Y: np.ndarray, multipliers: np.ndarray, norm: Norm) -> float:
    if not values.min() > 0:
        return 1.0
    ratio = values.min() / matrix_norm(W, norm) / (_dual_norm(Y, norm) / multipliers.sum())
    return max(1 - float(ratio) ** 2, 0.0)


def _certify(
    pairs: _Pairs,
    W: np.ndarray,
    multipliers: np.ndarray,
    norm: Norm,
    tolerance: float,
    scale: float,
    basis: np.ndarray,
) -> BilinearMargin:
    Y, total = pairs.weighted_sum(multipliers), multipliers.sum()
    bound = _dual_norm(Y, norm) / total * scale
    values = pairs.values(W)
    if not values.min() > _VANISHES * np.linalg.norm(W):
        u, z = pairs.of(np.arange(len(pairs.u)))
        reach = multipliers @ (np.linalg.norm(u, axis=1) * np.linalg.norm(z, axis=1))
        status = Status.INFEASIBLE if np.linalg.norm(Y) <= _VANISHES * reach else Status.UNDECIDED
        return BilinearMargin(np.zeros((W.shape[0], len(basis))), 0.0, bound, multipliers, status)
    margin = float(values.min()) / matrix_norm(W, norm) * scale
    shortest = W / (values.min() * scale)
    solved = 1 - (margin / bound) ** 2 <= tolerance
    status = Status.SOLVED if solved else Status.LOOSE
    return BilinearMargin(shortest @ basis.T, margin, bound, multipliers, status)


def _cholesky(gram: np.ndarray) -> np.ndarray:
    """Return rows L, (m, r), with L Lᵀ = gram, where r is the numerical rank."""
    from scipy.linalg.lapack import dpstrf  # slow to import

    factor, pivots, rank, _ = dpstrf(gram, lower=1, tol=1e-13 * gram.diagonal().max())
    rows = np.zeros((len(gram), rank))
    rows[pivots - 1] = np.tril(factor)[:, :rank]
    return rows


def _nuclear(pairs: _Pairs, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Run a barrier method with cutting planes. Return the W and λ with the smallest duality gap."""
    # The active pairs for the Frobenius norm are a good starting set.
    W, multipliers = _frobenius(pairs, 1e-6)
    if not pairs.values(W).min() > 0:
        return W, multipliers
    chosen = np.union1d(_shortest(pairs), np.flatnonzero(multipliers))
    target, best = _COARSE, None
    for _ in range(_MAX_ROUNDS):
        inside, W = _central_path(*pairs.of(chosen), target)
        multipliers = np.zeros(len(pairs.u))
        multipliers[chosen] = inside
        values = pairs.values(W)
        gap = _gap(values, W, pairs.weighted_sum(multipliers), multipliers, "nuclear")
        improved = best is None or gap < best[0]
        if improved:
            best = gap, W, multipliers
        violated = np.setdiff1d(np.flatnonzero(values < values[chosen].min()), chosen)
        if len(violated):
            chosen = np.union1d(chosen, violated[_worst(values[violated], pairs.sequence[violated], _ADDED)])
        elif gap <= tolerance or (not improved and target < tolerance):
            break
        else:
            target = max(target * _COARSE, tolerance / 2)
    assert best is not None
    return best[1], best[2]


def _central_path(u: np.ndarray, z: np.ndarray, target: float) -> tuple[np.ndarray, np.ndarray]:
    """Follow the central path of the dual problem until the relative gap is at most `target`. Return λ and W.

        λ(t) = argmin -t Σ λ - log det(1 - YᵀY) - Σ log λ,   W(t) = (2/t) Y (1 - YᵀY)⁻¹,   Y = Σ λ u zᵀ.

    At λ(t), all pairs have uᵀ W z = 1 + 1/(t λ) ≥ 1, and the gap vanishes as t grows. The path ends early if
    rounding prevents a smaller gap.
    """
    multipliers = np.full(len(u), 0.5 / np.linalg.norm(u.T @ z, 2))
    t, products = 1 / multipliers[0], (u @ u.T, z @ z.T)
    best: tuple[float, np.ndarray, np.ndarray] = (1.0, multipliers, u.T @ z)
    path: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(_MAX_VALUES):
        try:
            multipliers, W = _centre(u, z, products, multipliers, t)
        except np.linalg.LinAlgError:  # rounding has made the Hessian indefinite
            break
        path = [*path, (multipliers, W)][-_EXTRAPOLATED:]
        points = [path[-1], *(_at_infinity(path[-k:]) for k in range(2, len(path) + 1))]
        found = min(((_path_gap(u, z, *point), *point) for point in points), key=lambda x: x[0])
        if not found[0] < best[0] and best[0] < 1:
            break
        best = found if found[0] < best[0] else best
        if best[0] <= target:
            break
        t *= _FASTER
    return np.maximum(best[1], 0), best[2]


def _at_infinity(path: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Extrapolate λ and W to t = ∞ using the polynomial in 1/t through the given points."""
    x = _FASTER ** np.arange(len(path), 0, -1)  # proportional to 1/t
    weights = [np.prod([other / (other - each) for other in x if other != each]) for each in x]
    multipliers, W = zip(*path, strict=True)
    return np.tensordot(weights, multipliers, 1), np.tensordot(weights, W, 1)


def _path_gap(u: np.ndarray, z: np.ndarray, multipliers: np.ndarray, W: np.ndarray) -> float:
    multipliers = np.maximum(multipliers, 0)
    values = np.einsum("ca,ca->c", u, z @ W.T)
    return _gap(values, W, (u * multipliers[:, None]).T @ z, multipliers, "nuclear")


def _centre(
    u: np.ndarray, z: np.ndarray, products: tuple[np.ndarray, np.ndarray], multipliers: np.ndarray, t: float
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise the barrier function at t by Newton's method with a line search. Return λ and W."""
    from scipy.linalg import cho_factor, cho_solve  # slow to import

    def barrier(x: np.ndarray) -> float:
        size = np.linalg.svd((u * x[:, None]).T @ z, compute_uv=False) if x.min() > 0 else np.ones(1)
        if not size[0] < 1:
            return np.inf
        return float(-t * x.sum() - np.log1p(-(size**2)).sum() - np.log(x).sum())

    last = np.inf
    for _ in range(_NEWTON_STEPS):
        left, size, right = np.linalg.svd((u * multipliers[:, None]).T @ z, full_matrices=False)
        apart = (1 - size) * (1 + size)
        zs, us = z @ right.T, u @ left
        # Inner products with respect to (1 - YYᵀ)⁻¹, (1 - YᵀY)⁻¹ and Y (1 - YᵀY)⁻¹.
        outer = (products[0] + (us * (1 / apart - 1)) @ us.T) * (products[1] + (zs * (1 / apart - 1)) @ zs.T)
        mixed = (us * (size / apart)) @ zs.T
        # Steps are scaled by λ, so that the Hessian of the logarithmic terms is the identity.
        gradient = multipliers * (2 * np.diagonal(mixed) - t) - 1
        hessian = 2 * (outer + mixed * mixed.T) * np.outer(multipliers, multipliers)
        hessian[np.diag_indices(len(u))] += 1
        step = -cho_solve(cho_factor(hessian, overwrite_a=True, check_finite=False), gradient)
        decrement = -(gradient @ step)
        if decrement < _CENTRED**2 or (decrement < 1e-8 and decrement > last / 4):
            break
        last = decrement
        length = min(1.0, 0.95 / max(-step.min(), 1e-300))
        if decrement > 0.1:  # below 0.1, full steps converge, and rounding would mislead a line search
            now = barrier(multipliers)
            while barrier(multipliers * (1 + length * step)) > now - 0.1 * length * decrement:
                length /= 2
        multipliers = multipliers * (1 + length * step)
    return multipliers, (2 / t * left * (size / apart)) @ right
