"""Exact references for one small problem: least-distance programming by non-negative least squares.

`with_care` takes differences of any lengths, nearly parallel ones and small margins.
"""

import numpy as np

from jaxattn.theory.certificate import COINCIDE, INFEASIBLE, Solution, bounds, lengths
from jaxattn.theory.constraints import Constraints


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


def least_distance(rows: np.ndarray, required: np.ndarray | float = 1.0) -> Solution:
    """Solve min ‖p‖² s.t. A p ≥ b with an active-set method that ends at the exact answer.

    min_{u ≥ 0} ‖[Aᵀ; h bᵀ] u - (0, ..., 0, 1)‖² has a zero residual if and only if the constraints are
    infeasible, and then u is the proof; else u is a multiple of the multipliers.

    Args:
        rows: (m, r) float64; the differences A, longest about 1.
        required: b ≥ 0, not all zero; (m,) or one for all.

    Returns:
        The multipliers; if infeasible, those of the proof.

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, problem LDP.
    """
    from scipy.optimize import nnls  # slow to import

    required = np.broadcast_to(required, len(rows))
    lengths = np.where(required > 0, np.linalg.norm(rows, axis=1), np.inf)
    if lengths.min() <= COINCIDE:
        return Solution(1.0 * (lengths == lengths.min()), 0)
    multipliers = np.full(len(rows), 1 / len(rows))
    height = 1.0
    # Rounding is smallest where h is near the margin, which one pass or several find.
    for attempt in range(8):
        matrix = np.vstack([rows.T, height * required])
        target = np.append(np.zeros(rows.shape[1]), 1.0)
        try:
            multipliers, _ = nnls(matrix, target, maxiter=30 * max(matrix.shape))
        except RuntimeError:  # too many iterations: the certificate judges what there is
            break
        bound = bounds(rows, multipliers, required)[1]
        if not bound > INFEASIBLE or (attempt and bound > height / 10):
            break
        height = bound
    multipliers = polish(rows, multipliers, multipliers > 0, required)
    return Solution(multipliers, int((multipliers > 0).sum()))


# What is shorter than this share of what it was projected from is rounding.
_ROUNDING = 1e-14
# Normalised pairs of which less than this share of the most is required only bound p from one side.
_LITTLE = 1e-12
# Rounding of p and of a product with it, relative to its length, with some to spare.
_SPARE = 16 * np.finfo(float).eps


def with_care(E: np.ndarray, found: Constraints) -> tuple[Solution, np.ndarray | None]:
    """Solve a max-margin problem after normalising the differences of its pairs.

    With unit rows Â_i = A_i / ‖A_i‖, orthogonal to the ties, the direction of the largest cosine to all,

        q = argmin ‖q‖²  s.t.  Â q ≥ 1,

    exists if and only if a separating one does, whatever the lengths, and if not, least-distance programming
    ends with the multipliers that prove it. The shortest p is sought with Â p ≥ b / ‖A‖, and moved along q by
    as much as rounding has left it short of a pair.

    Args:
        E: (V, d) float64.
        found: m pairs, none of one embedding twice if something is required of it, and t ties.

    Returns:
        The multipliers and p (d,); if infeasible, those of the proof and None.

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, problem LDP.
    """
    better, worse, ties, _, required = found
    rows, strict = E[better] - E[worse], required > 0
    size = lengths(rows)
    rows = _across(rows, E[ties[:, 0]] - E[ties[:, 1]])
    left = lengths(rows)
    inside = left <= _ROUNDING * size
    if (inside & strict).any():  # the ties alone contradict these pairs
        return Solution(1.0 * (np.arange(len(rows)) == (inside & strict).argmax()), 0), None
    left = np.where(inside, np.inf, left)
    rows, height = rows / left[:, None], required / left
    height = height / height.max()
    basis, rows = (None, rows) if len(rows) >= E.shape[1] else _shortened(rows)
    clear = least_distance(rows, 1.0 * strict)
    proof = Solution(clear.multipliers / left, clear.iterations)
    if not bounds(rows, clear.multipliers, 1.0 * strict)[1] > INFEASIBLE:
        return proof, None
    q = max(_directions(rows, 1.0 * strict, clear.multipliers), key=lambda q: _cosine(rows[strict], q))
    gain = (rows @ q)[strict]
    if not gain.min() > 0:
        return proof, None
    best = least_distance(rows, np.where(height > _LITTLE, height, 0.0))
    moved = []
    for p in _directions(rows, height, best.multipliers):
        short = (height - rows @ p)[strict] + _SPARE * np.linalg.norm(p)
        moved.append(p + max(float((short / gain).max()), 0.0) * q)
    p = min(moved, key=np.linalg.norm)
    iterations = clear.iterations + best.iterations
    return Solution(best.multipliers / left, iterations), p if basis is None else basis @ p


def _directions(rows: np.ndarray, required: np.ndarray, multipliers: np.ndarray) -> list[np.ndarray]:
    """Compute p = Aᵀ λ, and from A p = b where λ > 0: the sum loses digits where the margin is small."""
    p = rows.T @ multipliers
    summed = p * ((multipliers @ required) / (p @ p))
    tight, solved = multipliers > 0, summed
    for _ in range(2):
        short = required[tight] - rows[tight] @ solved
        solved = solved + np.linalg.lstsq(rows[tight], short, rcond=None)[0]
    return [summed, solved]


def _cosine(rows: np.ndarray, q: np.ndarray) -> float:
    return float((rows @ q).min() / np.linalg.norm(q))


def _across(rows: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Project rows orthogonally to ties."""
    size = lengths(ties)
    ties = ties[size > 0] / size[size > 0, None]
    if len(ties) == 0:
        return rows
    _, share, vt = np.linalg.svd(ties, full_matrices=False)
    along = vt[share > 1e-12 * share[0]]
    for _ in range(2):  # twice is enough for orthogonality to rounding
        rows = rows - (rows @ along.T) @ along
    return rows


def _shortened(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factor m rows as L Qᵀ with L (m, m), each with a rounding error relative to its own length."""
    q, r = np.linalg.qr(rows.T)
    return q, r.T
