"""Shortest vector that satisfies linear constraints of any sign, by least-distance programming."""

from typing import NamedTuple

import numpy as np

# Multipliers below this fraction of the largest multiplier count as zero when tight rows are solved as
# equations.
_NO_MULTIPLIER = 1e-10
# Tolerance for violations of constraints, relative to 1 + ‖p‖ · max_i ‖row_i‖.
_FEASIBLE = 1e-9
# Residuals of the least-distance problem below this value prove infeasibility.
_NO_RESIDUAL = 1e-14


class TwoSided(NamedTuple):
    """Solution of min ‖p‖² s.t. A p ≥ b, where b may have any sign.

    Attributes:
        p: (D,); the solution.
        multipliers: (m,); λ ≥ 0 with p = Aᵀ λ.
        gap: (); 1 - (2 λ·b - ‖Aᵀ λ‖²) / ‖p‖², the relative duality gap of ½ ‖p‖²; 0 if p = 0 is allowed.
        violation: (); largest component of b - A p, relative to 1 + ‖p‖ · max_i ‖row_i‖.
    """

    p: np.ndarray
    multipliers: np.ndarray
    gap: np.float64
    violation: np.float64

    @property
    def feasible(self) -> bool:
        """True if p satisfies all constraints."""
        return bool(self.violation <= _FEASIBLE)

    def in_unit(self, unit: float) -> "TwoSided":
        """Convert a solution for A to the solution for `unit` · A, where `unit` is a power of two."""
        return self._replace(p=self.p / unit, multipliers=self.multipliers / unit / unit)


def two_sided(rows: np.ndarray, required: np.ndarray) -> TwoSided:
    """Compute the shortest p with A p ≥ b.

    Args:
        rows: (m, D); A.
        required: (m,); b, of any sign.

    Returns:
        The vector and its certificate, which is computed from p, λ, A and b alone.

    Source:
        Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, problem LDP.
    """
    from scipy.optimize import nnls  # slow to import

    m, dim = rows.shape
    if not (required > 0).any():
        return TwoSided(np.zeros(dim), np.zeros(m), np.float64(0), np.float64(0))
    longest = np.sqrt(np.square(rows).sum(axis=1).max())
    scaled, height, multipliers = rows / max(longest, np.finfo(float).tiny), 1.0, np.zeros(m)
    # The rounding error is smallest if `height` is near 1/‖p‖, which a few iterations achieve.
    for _ in range(4):
        matrix = np.vstack([scaled.T, height * required])
        try:
            u, _ = nnls(matrix, np.append(np.zeros(dim), 1.0), maxiter=100 * (m + dim))
        except RuntimeError:  # too many iterations: the certificate checks the current solution
            break
        rest = 1 - height * (required @ u)
        if rest <= _NO_RESIDUAL:
            break
        multipliers = u / (rest * height * longest**2)
        height = 1 / (longest * np.linalg.norm(rows.T @ multipliers))
    p, exact = _with_equalities(rows, required, multipliers)
    size = p @ p
    gap = 1 - (2 * exact @ required - size) / size if size > 0 else 1.0
    violation = (required - rows @ p).max() / (longest * np.sqrt(size) + 1)
    return TwoSided(p, exact, np.float64(abs(gap)), np.float64(violation))


def _with_equalities(
    rows: np.ndarray, required: np.ndarray, multipliers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve A p = b on the rows with positive multipliers, and return p and the new multipliers.

    If a new multiplier is negative, the given multipliers are kept.
    """
    tight = multipliers > _NO_MULTIPLIER * multipliers.max()
    if tight.any():
        own = rows[tight]
        solved = np.linalg.lstsq(own @ own.T, required[tight], rcond=1e-13)[0]
        if (solved >= 0).all():
            multipliers = np.zeros(len(rows))
            multipliers[tight] = solved
    return rows.T @ multipliers, multipliers
