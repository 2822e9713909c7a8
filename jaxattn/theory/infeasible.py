"""Proof that no direction separates the selected tokens.

Let D_i be the differences of pairs and T_j the differences of ties. By Gordan's and Motzkin's theorems, the
constraints p·D_i > 0, p·T_j = 0 have no solution if and only if Σ λ_i D_i + Σ μ_j T_j = 0 for some nonzero
λ ≥ 0. A sum that is small in floating point does not prove this: the differences (1, 1e-16) and (-1, 1e-16)
have a small sum, but (0, 1) separates them. A small sum counts as a proof only if exact multipliers exist
nearby:

- If there are more differences than dimensions and they span the whole space, the remainder of the sum is a
  combination of the differences. Its coefficients must be too small to make any λ_i negative.
- Otherwise, the multipliers of a basis are computed in rational arithmetic, and the sum is checked to be
  exactly zero in every coordinate.
"""

import math
from fractions import Fraction
from operator import mul

import numpy as np
from jaxtyping import Float

# Singular values below this fraction of the largest may be rounding error.
_DEPENDENT = 1e-9
# Maximum number of multipliers computed in rational arithmetic.
_MAX = 60
# Maximum number of entries of the rows, for matrices.
_MAX_ENTRIES = 100_000
# The prime modulo which ranks are computed.
_PRIME = 2**31 - 19


def proves_infeasible(
    E: np.ndarray, pairs: np.ndarray, ties: np.ndarray, multipliers: np.ndarray, tie_multipliers: np.ndarray
) -> bool:
    """Return whether multipliers near the given ones are proven to make a sum of differences exactly zero.

    The sum is Σ λ (E_s - E_s') over pairs plus Σ μ (E_s - E_s'') over ties. False does not prove that no
    such multipliers exist.

    Args:
        E: (V, d) float64.
        pairs: (k, 2) int; pairs (s, s').
        ties: (t, 2) int; pairs of tied tokens (s, s'').
        multipliers: (k,); λ > 0 for each pair.
        tie_multipliers: (t,); μ for each tie.
    """
    ends = np.concatenate([pairs, ties])
    differences = E[ends[:, 0]] - E[ends[:, 1]]
    if not differences.any():
        return True
    size = np.abs(differences).max(axis=1)
    size[size == 0] = 1
    rows, weight = differences / size[:, None], np.append(multipliers, tie_multipliers) * size
    if _proved_by_span(rows, weight, len(pairs)):
        return True
    return (
        len(ends) <= _MAX
        and _rational_multipliers(_exact(E, ends), rows, weight, size, len(pairs)) is not None
    )


def proves_no_matrix(
    u: Float[np.ndarray, "k a"], z: Float[np.ndarray, "k b"], multipliers: Float[np.ndarray, " k"]
) -> bool:
    """Return whether multipliers near the given ones are proven to make Σ λ u zᵀ exactly zero.

    False does not prove that no such multipliers exist. In particular, large problems are not tried.

    Args:
        u: nonzero token differences.
        z: nonzero queries.
        multipliers: λ > 0.
    """
    if len(u) > _MAX or u.shape[1] * z.shape[1] * len(u) > _MAX_ENTRIES:
        return False
    lengths = np.abs(u).max(axis=1), np.abs(z).max(axis=1)
    size = lengths[0] * lengths[1]
    if not (np.isfinite(size) & (size > 0)).all():
        return False
    rows = (u / lengths[0][:, None])[:, :, None] * (z / lengths[1][:, None])[:, None, :]
    exact = [
        [Fraction(x) * Fraction(y) for x in one for y in other]
        for one, other in zip(u.tolist(), z.tolist(), strict=True)
    ]
    rows = rows.reshape(len(u), -1)
    return _rational_multipliers(exact, rows, multipliers * size, size, len(u)) is not None


def _exact(E: np.ndarray, ends: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(x) - Fraction(y) for x, y in zip(E[s], E[t], strict=True)] for s, t in ends]


def exact_multipliers(
    E: np.ndarray, pairs: np.ndarray, multipliers: np.ndarray, maximum: int = 128
) -> list[Fraction] | None:
    """Return multipliers near the given ones for which the sum of differences is exactly zero, or None.

        λ ≥ 0, not all zero, with Σ λ (E_s - E_s') = 0

    Args:
        E: (V, d) float64.
        pairs: (k, 2) int; pairs (s, s').
        multipliers: (k,); λ > 0 for each pair.
        maximum: maximum k. Computing 100 multipliers takes about 10 seconds, and the time grows like k⁵.
    """
    differences = E[pairs[:, 0]] - E[pairs[:, 1]]
    size = np.abs(differences).max(axis=1)
    equal = np.flatnonzero(size == 0)
    if len(equal):
        return [Fraction(int(i == equal[0])) for i in range(len(pairs))]
    if len(pairs) > maximum:
        return None
    rows, weight = differences / size[:, None], multipliers * size
    return _rational_multipliers(_exact(E, pairs), rows, weight, size, len(pairs))


def residues(x: np.ndarray) -> np.ndarray:
    """Return finite floats modulo the prime of `exact_rank`, as int64 with the shape of x."""
    mantissa, exponent = np.frexp(x)
    powers, place = np.unique(exponent, return_inverse=True)
    units = np.array([pow(2, int(power) - 53, _PRIME) for power in powers])
    return (mantissa * 2.0**53).astype(np.int64) % _PRIME * units[place.reshape(x.shape)] % _PRIME


def exact_rank(rows: np.ndarray) -> int:
    """Return the rank of a matrix of exact numbers, given their residues modulo a prime of 31 bits.

    The result is never too large. It is too small only if the prime divides every minor of the size of the
    rank.

    Args:
        rows: (k, d) int64; sums and differences of `residues`.
    """
    rows = rows % _PRIME
    rank = 0
    for column in range(rows.shape[1]):
        pivots = np.flatnonzero(rows[rank:, column])
        if len(pivots) == 0:
            continue
        rows[[rank, rank + pivots[0]]] = rows[[rank + pivots[0], rank]]
        head = rows[rank] * pow(int(rows[rank, column]), -1, _PRIME) % _PRIME
        rest = rows[rank + 1 :]
        rows[rank + 1 :] = (rest - rest[:, column, None] * head) % _PRIME
        rank += 1
        if rank == len(rows):
            break
    return rank


def not_orthogonal(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return whether each row has a nonzero product with some row of another matrix, (k,) bool.

    A product that is a multiple of the prime of `exact_rank` counts as zero.

    Args:
        rows: (k, d) int64; sums and differences of `residues`.
        others: (l, d) int64; the same.
    """
    rows, others = rows % _PRIME, others % _PRIME
    found = np.zeros(len(rows), bool)
    for other in others:
        left = np.flatnonzero(~found)
        found[left] = (rows[left] * other % _PRIME).sum(axis=1) % _PRIME != 0
    return found


def _proved_by_span(rows: np.ndarray, weight: np.ndarray, pairs: int) -> bool:
    k, dim = rows.shape
    if k <= dim:
        return False
    u, size, vt = np.linalg.svd(rows, full_matrices=False)
    if not size[-1] > _DEPENDENT * size[0]:
        return False
    left = u @ (vt @ (weight @ rows) / size)
    # Account for rounding errors in sums over k rows.
    rounding = k * np.finfo(float).eps * np.abs(weight).sum() / size[-1]
    return bool((np.abs(left) + rounding < weight)[:pairs].all())


def _rational_multipliers(
    exact: list[list[Fraction]], rows: np.ndarray, weight: np.ndarray, size: np.ndarray, pairs: int
) -> list[Fraction] | None:
    """Return multipliers near `weight` / `size` for which the exact rows sum to zero, or None.

    `rows` are the exact rows divided by `size`, in floating point. The first `pairs` multipliers must be
    nonnegative, and one of them positive.
    """
    from scipy.linalg import qr  # slow to import

    _, triangle, order = qr(rows.T, mode="economic", pivoting=True)
    size_of = np.abs(np.diag(triangle))
    rank = int((size_of > _DEPENDENT * size_of[0]).sum())
    basis, others = order[:rank], order[rank:]
    if len(others) == 0:
        return None
    columns = qr(rows[basis], mode="r", pivoting=True)[1][:rank]
    known = {int(i): Fraction(weight[i] / size[i]) for i in others}
    system = [
        [exact[int(i)][j] for i in basis] + [-sum(x * exact[i][j] for i, x in known.items())] for j in columns
    ]
    solved = _solve_integers(system)
    if solved is None:
        return None
    known |= {int(i): x for i, x in zip(basis, solved, strict=True)}
    positive = all(known[i] >= 0 for i in range(pairs)) and any(known[i] > 0 for i in range(pairs))
    zero = all(sum(x * exact[i][j] for i, x in known.items()) == 0 for j in range(len(exact[0])))
    return [known[i] for i in range(len(exact))] if positive and zero else None


def _solve_integers(system: list[list[Fraction]]) -> list[Fraction] | None:
    """Solve a square linear system by Bareiss elimination; return None if it is singular.

    The last column is the right-hand side.
    """
    rows = []
    for row in system:
        scale = math.lcm(*(x.denominator for x in row))
        rows.append([int(x * scale) for x in row])
    size, divisor = len(rows), 1
    for k in range(size):
        pivot = next((i for i in range(k, size) if rows[i][k]), None)
        if pivot is None:
            return None
        rows[k], rows[pivot] = rows[pivot], rows[k]
        head = rows[k]
        for i in range(k + 1, size):
            factor, left = rows[i][k], rows[i][k:]
            # The divisions are exact, because all entries are minors of the system.
            rows[i][k:] = [(head[k] * x - factor * y) // divisor for x, y in zip(left, head[k:], strict=True)]
        divisor = head[k]
    solution = [0] * size
    for k in reversed(range(size)):
        later = sum(map(mul, rows[k][k + 1 : -1], solution[k + 1 :]))
        solution[k] = (divisor * rows[k][-1] - later) // rows[k][k]
    return [Fraction(x, divisor) for x in solution]
