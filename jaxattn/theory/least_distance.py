"""Exact reference for one small problem: least-distance programming by non-negative least squares."""

import numpy as np

from jaxattn.theory.certificate import COINCIDE, INFEASIBLE, Solution, bounds
from jaxattn.theory.support import polish


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
