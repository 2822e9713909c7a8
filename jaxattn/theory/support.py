"""The exact solution once it is known which pairs are tight."""

import numpy as np

from jaxattn.theory.certificate import bounds


def polish(rows: np.ndarray, multipliers: np.ndarray, tight: np.ndarray) -> np.ndarray:
    """Solve for the multipliers with the tight pairs as equalities; keep the old ones if they are better.

    The shortest p with A p = 1 is A⁺ 1. Of all λ with Aᵀ λ = p, it takes the one nearest to the given
    multipliers, which stays positive also where λ is not unique.

    Args:
        rows: (m, r) float64; the differences, longest about 1.
        multipliers: (m,) float64; approximate λ ≥ 0, not all zero, of any scale.
        tight: (m,) bool; which pairs have margin 1 in the solution.

    Returns:
        (m,) float64; λ ≥ 0.
    """
    if not tight.any():
        return multipliers
    u, size, vt = np.linalg.svd(rows[tight], full_matrices=False)
    rank = int((size > 1e-10 * size[0]).sum())
    if rank == 0:
        return multipliers
    u, size, vt = u[:, :rank], size[:rank], vt[:rank]
    inverse = vt.T @ (u.sum(axis=0) / size)
    start = multipliers[tight]
    if start.any():
        start = start * (inverse @ inverse / start.sum())
    exact = np.zeros_like(multipliers)
    exact[tight] = np.maximum(start + u @ ((vt @ (inverse - rows[tight].T @ start)) / size), 0)
    if not exact.any():
        return multipliers
    lower, upper = bounds(rows, exact)
    old_lower, old_upper = bounds(rows, multipliers)
    better = lower > 0 and lower * old_upper > old_lower * upper
    return exact if better else multipliers
