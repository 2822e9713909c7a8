"""Norms of vectors in NumPy, and their dual norms."""

import numpy as np


def dual_norm(q: float) -> float:
    """Return the exponent q* of the dual norm, where 1/q + 1/q* = 1."""
    return np.inf if q == 1 else 1.0 if q == np.inf else q / (q - 1)


def norm(x: np.ndarray, q: float) -> float:
    """Compute ‖x‖_q for a vector x, scaled so that powers do not overflow."""
    if q in (1, 2, np.inf):
        return float(np.linalg.norm(x, q))
    largest = np.abs(x).max(initial=np.finfo(float).tiny)
    return float(largest * np.linalg.norm(x / largest, q))


def lengths(rows: np.ndarray) -> np.ndarray:
    """Compute the norm of each row, (m,)."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))
