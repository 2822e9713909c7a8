"""Dual active-set method with constraint generation, and normalisation of max-margin problems."""

from typing import Any

import numpy as np

from jaxattn.core.arithmetic import lengths
from jaxattn.theory.certificate import COINCIDE, INFEASIBLE, Solution, bounds
from jaxattn.theory.constraints import Constraints

# Maximum number of violated pairs to examine between two scans of all pairs.
_POOL = 64
# Maximum number of entries of the difference matrix for which every iteration scans all pairs.
_WHOLE = 200_000
# A difference counts as linearly dependent on the active differences if its orthogonal component is shorter
# than this.
_DEPENDENT = 1e-11


class _Factor:
    """QR factors N = Q R of the matrix of active differences, (r, k), updated when columns change."""

    def __init__(self, dim: int) -> None:
        self._q = np.zeros((dim, dim + 1), order="F")
        self._r = np.zeros((dim + 1, dim + 1), order="F")
        self.active: list[int] = []

    @property
    def q(self) -> np.ndarray:
        return self._q[:, : len(self.active)]

    @property
    def r(self) -> np.ndarray:
        return self._r[: len(self.active), : len(self.active)]

    def split(self, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Qᵀ n and the component z of n that is orthogonal to the columns of Q."""
        inside = self.q.T @ n
        z = n - self.q @ inside
        # If most of n cancels, a second pass keeps Q orthogonal up to rounding.
        if z @ z < 0.25 * (n @ n):
            more = self.q.T @ z
            inside, z = inside + more, z - self.q @ more
        return inside, z

    def solve(self, x: np.ndarray, *, transpose: bool = False) -> np.ndarray:
        from scipy.linalg.lapack import dtrtrs  # slow to import; much faster than solve_triangular

        return dtrtrs(self.r, x, trans=int(transpose))[0] if len(x) else x

    def append(self, pair: int, inside: np.ndarray, z: np.ndarray) -> None:
        k, length = len(self.active), np.linalg.norm(z)
        self._q[:, k] = z / length
        self._r[:k, k], self._r[k, k] = inside, length
        self.active.append(pair)

    def refresh(self, differences: np.ndarray) -> None:
        """Recompute the factors from the active differences, (k, r), to remove rounding errors."""
        k = len(self.active)
        self._q[:, :k], self._r[:k, :k] = np.linalg.qr(differences.T)

    def delete(self, position: int | np.integer) -> None:
        from scipy.linalg import qr_delete

        k = len(self.active) - 1
        q, r = qr_delete(self.q, self.r, position, which="col", overwrite_qr=True, check_finite=False)
        self._q[:, :k], self._r[:k, :k] = q[:, :k], r[:k, :k]
        self.active.pop(position)


def active_set(
    rows: np.ndarray,
    better: np.ndarray,
    worse: np.ndarray,
    required: np.ndarray | float = 1.0,
    *,
    tolerance: float,
    max_steps: int,
    start: np.ndarray | None = None,
) -> Solution:
    """Solve min ½ ‖p‖² s.t. p·(L_s - L_s') ≥ b for all pairs (s, s').

    The method keeps p optimal for a set of active pairs. It scans all pairs using the scores L p, adds a
    violated pair, and drops active pairs whose multipliers would become negative. ‖p‖ only increases, so
    1 / ‖p‖ is an upper bound on the margin. If a violated difference is a combination of active
    differences with coefficients ≤ 0, the coefficients prove that no direction separates the selected
    tokens. The full difference matrix is formed only for small problems.

    A scan costs O(V r + m) and a step O(r k), with k ≤ r active pairs. Memory is O(V r + r² + m).

    Args:
        rows: L, (V, r) float64; embeddings, scaled to a maximum norm of about 1.
        better: (m,) int; the selected token s in each pair.
        worse: (m,) int; the unselected token s' in each pair.
        required: b ≥ 0, not all zero; (m,) or a scalar.
        tolerance: relative duality gap at which the method stops. Rounding may stop it earlier.
        max_steps: maximum number of steps, each of which adds or drops one pair.
        start: (k,) int; indices of initial active pairs, such as those with positive multipliers in the
            solution of a problem with fewer pairs.

    Returns:
        The multipliers of the last active pairs, and the number of steps. If the problem is infeasible, the
        differences weighted by the multipliers sum to zero up to rounding, which proves it.

    Source: Goldfarb and Idnani, Mathematical Programming 27 (1983); partial pricing is added here.
    """
    factor, required = _Factor(rows.shape[1]), np.broadcast_to(required, len(better))
    p, multipliers, steps, fresh = np.zeros(rows.shape[1]), np.zeros(0), 0, False

    def difference(pair: Any) -> np.ndarray:
        return rows[better[pair]] - rows[worse[pair]]

    def spread_out(values: np.ndarray) -> np.ndarray:
        full = np.zeros(len(better))
        full[factor.active] = values
        return full

    if start is not None and len(start):
        factor.active = [int(pair) for pair in start]
        factor.refresh(difference(factor.active))
        p, multipliers = _solve_active(factor, required)
    all_differences = difference(slice(None)) if len(better) * rows.shape[1] <= _WHOLE else None
    while steps < max_steps:
        scores = rows @ p
        violation = required - (scores[better] - scores[worse])
        slack = max(tolerance / 4, 1e-14 * float(np.linalg.norm(p)))
        if violation.max() <= slack:
            if fresh:
                break
            factor.refresh(difference(factor.active))
            p, multipliers = _solve_active(factor, required)
            fresh = True
            continue
        fresh = False
        if all_differences is None:
            pool = _most_violated(violation, worse, slack)
            differences = difference(pool)
            violation = required[pool] - differences @ p
            enough = max(violation.max() / 2, slack)
        else:
            pool, differences, enough = np.arange(len(better)), all_differences, slack
        while violation.max() > enough and steps < max_steps:
            chosen = int(violation.argmax())
            pair = int(pool[chosen])
            n = differences[chosen]
            p, multipliers, more, separates = _add_pair(factor, p, multipliers, pair, n, required[pair])
            steps += more
            if not separates:
                proof = spread_out(multipliers)
                proof[pair] += 1.0
                return Solution(proof, steps)
            violation = required[pool] - differences @ p
        # The factors represent the active pairs exactly, whereas running sums accumulate rounding errors.
        p, multipliers = _solve_active(factor, required)
    return Solution(spread_out(multipliers), steps)


def _add_pair(
    factor: _Factor, p: np.ndarray, multipliers: np.ndarray, pair: int, n: np.ndarray, required: float
) -> tuple[np.ndarray, np.ndarray, int, bool]:
    """Add a violated pair with difference n, and drop pairs whose multipliers would become negative.

    Return p, the multipliers, the number of steps, and whether the pair was added. If it was not, no
    direction separates the selected tokens: the multipliers, together with 1 for the new pair, prove this.
    """
    own, steps = 0.0, 0
    while True:
        steps += 1
        inside, z = factor.split(n)
        fall = factor.solve(inside)
        falling = np.flatnonzero(fall > 1e-12 * np.abs(fall).max(initial=0.0))
        ratio = multipliers[falling] / fall[falling]
        partial = ratio.min(initial=np.inf)
        independent = z @ z > max(_DEPENDENT**2 * (n @ n), COINCIDE**2)
        full = (required - n @ p) / (z @ z) if independent else np.inf
        step = min(partial, full)
        if step == np.inf:
            return p, -fall, steps, False
        if independent:
            p = p + step * z
        multipliers, own = multipliers - step * fall, own + step
        if full <= partial:
            factor.append(pair, inside, z)
            return p, np.append(multipliers, own), steps, True
        leaving = falling[ratio.argmin()]
        factor.delete(leaving)
        multipliers = np.delete(multipliers, leaving)


def _solve_active(factor: _Factor, required: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    y = factor.solve(required[factor.active], transpose=True)
    return factor.q @ y, np.maximum(factor.solve(y), 0)


def _most_violated(violation: np.ndarray, worse: np.ndarray, slack: float) -> np.ndarray:
    """Return up to _POOL pairs violated by more than `slack`, worst first, one per unselected token."""
    pairs = np.flatnonzero(violation > slack)
    keep = 50 * _POOL
    if len(pairs) > keep:
        pairs = pairs[np.argpartition(-violation[pairs], keep)[:keep]]
    pairs = pairs[np.argsort(-violation[pairs], kind="stable")]
    first = np.sort(np.unique(worse[pairs], return_index=True)[1])
    return pairs[first[:_POOL]]


# A projected vector shorter than this fraction of its original length is treated as rounding error.
_ROUNDING = 1e-14
# The constraint of a pair is relaxed to Â p ≥ 0 if its required margin, after normalisation, is below this
# fraction of the largest.
_LITTLE = 1e-12
# Bound on the rounding error in p and in products with p, relative to ‖p‖, including a safety factor.
_SPARE = 16 * np.finfo(float).eps


def solve_normalised(E: np.ndarray, found: Constraints) -> tuple[Solution, np.ndarray | None]:
    """Solve a max-margin problem with normalised differences.

    Let A_i be the difference of pair i, projected orthogonally to the ties, Â_i = A_i / ‖A_i‖, and b_i its
    required margin. First compute the direction with the largest minimum cosine with the A_i,

        q = argmin ‖q‖²  s.t.  Â_i·q ≥ 1.

    It exists if and only if a separating direction does, and this problem is well scaled. Then compute the
    minimum-norm p with Â_i·p ≥ b_i / ‖A_i‖, and shift it along q to remove violations due to rounding.

    Args:
        E: (V, d) float64; the keys.
        found: m pairs with different keys, and t ties.

    Returns:
        The multipliers, and p (d,). If the problem is infeasible: multipliers that prove it, and None.
    """
    better, worse, ties, _, required = found
    rows, strict = E[better] - E[worse], required > 0
    size = lengths(rows)
    rows = orthogonal_to(rows, E[ties[:, 0]] - E[ties[:, 1]])
    left = lengths(rows)
    inside = left <= _ROUNDING * size
    if (inside & strict).any():  # the ties alone exclude a positive margin for these pairs
        return Solution(1.0 * (np.arange(len(rows)) == (inside & strict).argmax()), 0), None
    left = np.where(inside, np.inf, left)
    rows, height = rows / left[:, None], required / left
    height = height / height.max()
    basis, rows = (None, rows) if len(rows) >= E.shape[1] else _in_span(rows)
    clear = _shortest_p(rows, 1.0 * strict)
    proof = Solution(clear.multipliers / left, clear.iterations)
    if not bounds(rows, clear.multipliers, 1.0 * strict)[1] > INFEASIBLE:
        return proof, None
    q = max(_directions(rows, 1.0 * strict, clear.multipliers), key=lambda q: _cosine(rows[strict], q))
    gain = (rows @ q)[strict]
    if not gain.min() > 0:
        return proof, None
    best = _shortest_p(rows, np.where(height > _LITTLE, height, 0.0))
    moved = []
    for p in _directions(rows, height, best.multipliers):
        short = (height - rows @ p)[strict] + _SPARE * np.linalg.norm(p)
        moved.append(p + max(float((short / gain).max()), 0.0) * q)
    p = min(moved, key=np.linalg.norm)
    iterations = clear.iterations + best.iterations
    return Solution(best.multipliers / left, iterations), p if basis is None else basis @ p


def _shortest_p(rows: np.ndarray, required: np.ndarray) -> Solution:
    m, dim = rows.shape
    keys = np.concatenate([rows, np.zeros((1, dim))])
    limits = {"tolerance": 0.0, "max_steps": 100 * dim + 1000}
    return active_set(keys, np.arange(m), np.full(m, m), required, **limits)


def _directions(rows: np.ndarray, required: np.ndarray, multipliers: np.ndarray) -> list[np.ndarray]:
    p = rows.T @ multipliers
    summed = p * ((multipliers @ required) / (p @ p))
    # For small margins, the sum loses digits, so also try the solution of A p = b over the pairs with λ > 0.
    tight, solved = multipliers > 0, summed
    for _ in range(2):
        short = required[tight] - rows[tight] @ solved
        solved = solved + np.linalg.lstsq(rows[tight], short, rcond=None)[0]
    return [summed, solved]


def _cosine(rows: np.ndarray, q: np.ndarray) -> float:
    return float((rows @ q).min() / np.linalg.norm(q))


def orthogonal_to(rows: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Return the rows projected orthogonally to the differences of ties, of any lengths."""
    size = lengths(ties)
    ties = ties[size > 0] / size[size > 0, None]
    if len(ties) == 0:
        return rows
    _, share, vt = np.linalg.svd(ties, full_matrices=False)
    along = vt[share > 1e-12 * share[0]]
    for _ in range(2):  # two passes make the result orthogonal up to rounding
        rows = rows - (rows @ along.T) @ along
    return rows


def _in_span(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # The rounding error in each row is proportional to its length.
    q, r = np.linalg.qr(rows.T)
    return q, r.T
