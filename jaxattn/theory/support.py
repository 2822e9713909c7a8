"""The exact solution once it is known which pairs are tight."""

import numpy as np

from jaxattn.theory.certificate import bounds


def polish(
    rows: np.ndarray, multipliers: np.ndarray, tight: np.ndarray, required: np.ndarray | float = 1.0
) -> np.ndarray:
    """Solve for the multipliers with the tight pairs as equalities; keep the old ones if they are better.

    The shortest p with A p = b is A⁺ b. Of all λ with Aᵀ λ = p, it takes the one nearest to the given
    multipliers, which stays positive also where λ is not unique.

    Args:
        rows: (m, r) float64; the differences, longest about 1.
        multipliers: (m,) float64; approximate λ ≥ 0, not all zero, of any scale.
        tight: (m,) bool; which pairs are equalities in the solution.
        required: b ≥ 0, (m,) or one for all.

    Returns:
        (m,) float64; λ ≥ 0.
    """
    if not tight.any():
        return multipliers
    needed = np.broadcast_to(required, len(rows))[tight]
    u, size, vt = np.linalg.svd(rows[tight], full_matrices=False)
    rank = int((size > 1e-10 * size[0]).sum())
    if rank == 0:
        return multipliers
    u, size, vt = u[:, :rank], size[:rank], vt[:rank]
    inverse = vt.T @ (needed @ u / size)
    start = multipliers[tight]
    if start @ needed > 0:
        start = start * (inverse @ inverse / (start @ needed))
    exact = np.zeros_like(multipliers)
    exact[tight] = np.maximum(start + u @ ((vt @ (inverse - rows[tight].T @ start)) / size), 0)
    if not exact.any():
        return multipliers
    lower, upper = bounds(rows, exact, required)
    old_lower, old_upper = bounds(rows, multipliers, required)
    better = lower > 0 and lower * old_upper > old_lower * upper
    return exact if better else multipliers
