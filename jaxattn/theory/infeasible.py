"""Proofs that no direction separates a selection.

By Gordan's and Motzkin's theorems the constraints p·D_i > 0, p·T_j = 0 have no solution if and only if
Σ λ_i D_i + Σ μ_j T_j = 0 for some λ ≥ 0 that is not zero. With floating-point multipliers the sum is small,
not zero. A small sum alone is no proof: the differences (±1, 1e-16) have one too, but (0, 1) separates them.
So a small sum counts as a proof only if exact multipliers exist nearby:

- If there are more differences than dimensions and they span the whole space, the remainder of the sum is a
  combination of them, with coefficients that are too small to change a sign.
- Otherwise the multipliers of a basis are solved for in rational numbers, and every coordinate is checked.
"""

from fractions import Fraction

import numpy as np

# Singular values below this fraction of the largest one may be rounding.
_DEPENDENT = 1e-9
# Largest number of multipliers that are solved for in rational numbers.
_MOST = 60


def proves_infeasible(
    E: np.ndarray, pairs: np.ndarray, ties: np.ndarray, multipliers: np.ndarray, tie_multipliers: np.ndarray
) -> bool:
    """Return True if exact multipliers with a sum of zero are proven to exist near the given ones.

    Args:
        E: (V, d) float64.
        pairs: (k, 2) int; pairs (s, s') with a multiplier.
        ties: (t, 2) int.
        multipliers: (k,); λ > 0.
        tie_multipliers: (t,); μ.

    Returns:
        True if they are proven to exist; False does not prove the contrary.
    """
    ends = np.concatenate([pairs, ties])
    differences = E[ends[:, 0]] - E[ends[:, 1]]
    if not differences.any():
        return True
    size = np.abs(differences).max(axis=1)
    size[size == 0] = 1
    rows, weight = differences / size[:, None], np.append(multipliers, tie_multipliers) * size
    spanned = _spanned(rows, weight, len(pairs))
    return spanned or (len(ends) <= _MOST and _exactly(E, ends, rows, weight, size, len(pairs)))


def _spanned(rows: np.ndarray, weight: np.ndarray, pairs: int) -> bool:
    """Return True if the rows are overcomplete and span the space, and the remainder changes no sign."""
    k, dim = rows.shape
    if k <= dim:
        return False
    u, size, vt = np.linalg.svd(rows, full_matrices=False)
    if not size[-1] > _DEPENDENT * size[0]:
        return False
    left = u @ (vt @ (weight @ rows) / size)
    # Sums over k rows have rounding errors too.
    rounding = k * np.finfo(float).eps * np.abs(weight).sum() / size[-1]
    return bool((np.abs(left) + rounding < weight)[:pairs].all())


def _exactly(
    E: np.ndarray, ends: np.ndarray, rows: np.ndarray, weight: np.ndarray, size: np.ndarray, pairs: int
) -> bool:
    """Solve for the multipliers of a basis in rational numbers, with the other ones given; check the sum."""
    from scipy.linalg import qr  # slow to import

    _, triangle, order = qr(rows.T, mode="economic", pivoting=True)
    size_of = np.abs(np.diag(triangle))
    rank = int((size_of > _DEPENDENT * size_of[0]).sum())
    basis, others = order[:rank], order[rank:]
    columns = qr(rows[basis], mode="r", pivoting=True)[1][:rank]
    exact = {
        int(i): [Fraction(E[ends[i, 0], j]) - Fraction(E[ends[i, 1], j]) for j in range(E.shape[1])]
        for i in range(len(ends))
    }
    known = {int(i): Fraction(weight[i] / size[i]) for i in others}
    system = [
        [exact[int(i)][j] for i in basis] + [-sum(x * exact[i][j] for i, x in known.items())] for j in columns
    ]
    solved = _solve(system)
    if solved is None:
        return False
    known |= {int(i): x for i, x in zip(basis, solved, strict=True)}
    positive = all(known[i] >= 0 for i in range(pairs)) and any(known[i] > 0 for i in range(pairs))
    return positive and all(sum(x * exact[i][j] for i, x in known.items()) == 0 for j in range(E.shape[1]))


def _solve(system: list[list[Fraction]]) -> list[Fraction] | None:
    """Solve a square system, with the right side in the last column, by Gauss-Jordan elimination."""
    for column in range(len(system)):
        pivot = next((row for row in range(column, len(system)) if system[row][column] != 0), None)
        if pivot is None:
            return None
        system[column], system[pivot] = system[pivot], system[column]
        head = system[column][column]
        system[column] = [x / head for x in system[column]]
        for row, values in enumerate(system):
            if row != column and (factor := values[column]) != 0:
                system[row] = [x - factor * y for x, y in zip(values, system[column], strict=True)]
    return [row[-1] for row in system]
