"""Max-margin problems whose differences vary widely in length, solved with normalised differences."""

import numpy as np

from jaxattn.theory.active_set import active_set
from jaxattn.theory.certificate import INFEASIBLE, Solution, bounds, lengths
from jaxattn.theory.constraints import Constraints

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
    rows = _orthogonal_to(rows, E[ties[:, 0]] - E[ties[:, 1]])
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


def _orthogonal_to(rows: np.ndarray, ties: np.ndarray) -> np.ndarray:
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
