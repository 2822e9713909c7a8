"""The answer to a max-margin problem, with a certificate computed from E and the multipliers alone."""

from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from flax import struct

from jaxattn.theory.constraints import Constraints
from jaxattn.trees import Leaf

# A margin below this share of the longest embedding is rounding, and counts as none.
INFEASIBLE = 1e-11
# Tokens whose embeddings differ by less than this share of the longest one are the same to a solver.
COINCIDE = 1e-13
# Ties, and pairs of which no margin is required, must hold to this share of the margin for p to be feasible.
_UNTIED = 1e-8


class Status(IntEnum):
    """How a max-margin problem ended."""

    SOLVED = 0
    NOTHING = 1
    LOOSE = 2
    INFEASIBLE = 3
    CIRCLE = 4
    UNDECIDED = 5
    INVALID = 6


_REASONS = {
    Status.SOLVED: "solved to the tolerance",
    Status.NOTHING: "no token has to be told from another: nothing to separate, p = 0",
    Status.LOOSE: "p separates the selection, but its duality gap is above the tolerance",
    Status.INFEASIBLE: "no direction separates the selection: the multipliers sum its differences to zero",
    Status.CIRCLE: "no scores fit the selection: along its pairs, tokens outrank each other in a circle",
    Status.UNDECIDED: "undecided: the solver found neither a separating direction nor a proof of none",
    Status.INVALID: "not tried: E holds NaN or inf, or a sequence has no selected token",
}


@struct.dataclass
class MaxMargin:
    """A max-margin direction and its certificate. NumPy arrays, float64; a batch adds a leading axis.

    With pairs (s, s') and ties (s, s''), p = Σ λ (E_s - E_s') + Σ μ (E_s - E_s''), λ ≥ 0. The largest
    margin of any unit direction lies between `margin` and `margin_bound`, so

        ‖p - p_mm‖² ≤ duality_gap ‖p‖²   and   1 - cos(p, p_mm) ≤ 1 - √(1 - duality_gap).

    If the problem is infeasible, Σ λ (E_s - E_s') + Σ μ (E_s - E_s'') ≈ 0 with Σ λ = 1: no direction
    can have a positive product with every difference.

    Attributes:
        p: (d,); the shortest vector with p·(E_s - E_s') ≥ 1 for all pairs; NaN if there is none.
        margin: (); 1 / ‖p‖; 0 if no separating direction was found, inf if there is no pair.
        margin_bound: (); upper bound on the margin, ‖Σ λ (E_s - E_s') + Σ μ (E_s - E_s'')‖ / Σ λ.
        pairs: (k, 2) int32; the support: pairs (s, s') with positive multiplier.
        multipliers: (k,); λ of the support; 0 for the padding of a batch.
        ties: (t, 2) int32; tied tokens, each with the smallest token of its class.
        tie_multipliers: (t,); μ, of any sign.
        primal_residual: (); largest violation of a pair or tie by p; NaN if not feasible.
        dual_residual: (); ‖p - Σ λ (E_s - E_s') - Σ μ (E_s - E_s'')‖ / ‖p‖, summed pair by pair;
            if infeasible ‖Σ λ (E_s - E_s') + Σ μ (E_s - E_s'')‖ relative to the longest embedding.
        duality_gap: (); 1 - (margin / margin_bound)², the relative gap of ½ ‖p‖²; 1 if not feasible.
        num_pairs: () int; distinct pairs of the problem.
        iterations: () int; iterations of the solver.
        status: () int8; a `Status`.
        solver: which solver ran (static).
    """

    p: Leaf
    margin: Leaf
    margin_bound: Leaf
    pairs: Leaf
    multipliers: Leaf
    ties: Leaf
    tie_multipliers: Leaf
    primal_residual: Leaf
    dual_residual: Leaf
    duality_gap: Leaf
    num_pairs: Leaf
    iterations: Leaf
    status: Leaf
    solver: str = struct.field(pytree_node=False, default="")

    @property
    def feasible(self) -> Leaf:
        """Whether p satisfies all constraints; bool, or (S,) bool for a batch."""
        feasible = np.isin(self.status, [Status.SOLVED, Status.NOTHING, Status.LOOSE])
        return bool(feasible) if feasible.ndim == 0 else feasible

    @property
    def reason(self) -> str | list[str]:
        """How the problem ended, in words; a list for a batch."""
        if np.ndim(self.status) == 0:
            return _REASONS[Status(int(self.status))]
        return [_REASONS[Status(int(status))] for status in self.status]


# A relative duality gap below this may come from rounding in the sum of large multipliers.
_ROUNDING = 1e-5


class Solution(NamedTuple):
    """What a solver hands over; the certificate takes nothing in it on trust.

    Attributes:
        multipliers: (m,) float64; λ of every pair, of any scale.
        iterations: iterations used.
    """

    multipliers: np.ndarray
    iterations: int


def certify(
    E: np.ndarray,
    constraints: Constraints,
    multipliers: np.ndarray,
    tie_multipliers: np.ndarray,
    *,
    tolerance: float,
    iterations: int = 0,
    solver: str = "",
) -> MaxMargin:
    """Recompute p from E and the multipliers, scale it to feasibility, and bound the margin both ways.

    Args:
        E: (V, d) float64.
        constraints: m pairs and t ties.
        multipliers: (m,); λ of any scale; negative ones count as 0.
        tie_multipliers: (t,); μ at the same scale.
        tolerance: largest duality gap of a solved problem.
        iterations: for the statistics.
        solver: for the statistics.

    Returns:
        The answer.
    """
    better, worse, ties, _, required = constraints
    if not required.any():
        return unsolved(Status.NOTHING, E.shape[1], ties=ties, solver=solver)
    support = np.flatnonzero(multipliers > 0)
    weight, pairs = multipliers[support], np.stack([better[support], worse[support]], axis=1)
    total = weight @ required[support]
    weight, tie_weight = weight / total, tie_multipliers / total
    w = _combine(E, pairs, weight) + _combine(E, ties, tie_weight)
    length = float(np.linalg.norm(w))
    longest = np.sqrt(np.square(E).sum(axis=1).max())

    scores = E @ w
    lowest, sunk = reached(scores[better] - scores[worse], required)
    untied = float(np.abs(scores[ties[:, 0]] - scores[ties[:, 1]]).max(initial=sunk))
    found: dict[str, Any] = {
        "pairs": pairs,
        "ties": ties,
        "num_pairs": len(better),
        "iterations": iterations,
        "margin_bound": length,
        "solver": solver,
    }
    rounding = INFEASIBLE * longest
    if not (lowest > rounding * length and untied <= _UNTIED * lowest):
        proven = length <= rounding
        answer = unsolved(Status.INFEASIBLE if proven else Status.UNDECIDED, E.shape[1])
        residual = length / longest
        return replace(
            answer, multipliers=weight, tie_multipliers=tie_weight, dual_residual=residual, **found
        )
    differences = np.concatenate([E[pairs[:, 0]] - E[pairs[:, 1]], E[ties[:, 0]] - E[ties[:, 1]]])
    p = w / lowest
    if tolerance < 1 - (lowest / length**2) ** 2 < _ROUNDING:
        p = _met(E, constraints, differences, np.append(required[support], np.zeros(len(ties))), p)
        scores = E @ p
        untied = lowest * float(np.abs(scores[ties[:, 0]] - scores[ties[:, 1]]).max(initial=0.0))
    margin = 1 / float(np.linalg.norm(p))
    scale = 1 / (margin * length)
    weight, tie_weight = scale * weight, scale * tie_weight
    scores = E @ p
    summed = np.append(weight, tie_weight) @ differences
    violation = float((required - (scores[better] - scores[worse])).max())
    gap = max(0.0, 1 - (margin / length) ** 2)
    return MaxMargin(
        p=p,
        margin=margin,
        multipliers=weight,
        tie_multipliers=tie_weight,
        primal_residual=max(violation, untied / lowest, 0.0),
        dual_residual=np.linalg.norm(p - summed) / np.linalg.norm(p),
        duality_gap=gap,
        status=np.int8(Status.SOLVED if gap <= tolerance else Status.LOOSE),
        **found,
    )


def unsolved(status: Status, dim: int, *, ties: np.ndarray | None = None, solver: str = "") -> MaxMargin:
    """Make the answer to a problem without pairs, or to one that was not solved."""
    nothing = status == Status.NOTHING
    ties = np.zeros((0, 2), np.int32) if ties is None else ties
    return MaxMargin(
        p=np.full(dim, 0.0 if nothing else np.nan),
        margin=np.float64(np.inf if nothing else 0.0),
        margin_bound=np.float64(np.inf),
        pairs=np.zeros((0, 2), np.int32),
        multipliers=np.zeros(0),
        ties=ties,
        tie_multipliers=np.zeros(len(ties)),
        primal_residual=np.float64(0.0 if nothing else np.nan),
        dual_residual=np.float64(0.0 if nothing else np.nan),
        duality_gap=np.float64(0.0 if nothing else 1.0),
        num_pairs=0,
        iterations=0,
        status=np.int8(status),
        solver=solver,
    )


def _met(
    E: np.ndarray, constraints: Constraints, tight: np.ndarray, needed: np.ndarray, p: np.ndarray
) -> np.ndarray:
    """Move p by as little as meets tight constraints as equalities; keep it if that makes it longer.

    Where the margin is small the multipliers are large, their sum has rounding errors of ε Σ λ, and its
    smallest margin is lower by as much. The bound from above does not suffer: it is relative to ‖Σ λ ...‖.
    """
    from scipy.linalg import lstsq  # slow to import

    moved = p + lstsq(tight, needed - tight @ p, lapack_driver="gelsy")[0]
    scores = E @ moved
    lowest, sunk = reached(scores[constraints.better] - scores[constraints.worse], constraints.required)
    if not (lowest > 0 and sunk <= _UNTIED * lowest):
        return p
    moved = moved / lowest
    return moved if np.linalg.norm(moved) < np.linalg.norm(p) else p


def bounds(
    rows: np.ndarray, multipliers: np.ndarray, required: np.ndarray | float = 1.0
) -> tuple[float, float]:
    """Bound the largest margin of a unit direction, the largest m with A p ≥ m b, from below and above.

    min over b > 0 of (A w) / b / ‖w‖ ≤ margin ≤ ‖w‖ / λ·b  with  w = Aᵀ λ.

    Args:
        rows: (m, r); the differences A.
        multipliers: (m,); λ ≥ 0, λ·b > 0.
        required: b ≥ 0, (m,) or one for all.

    Returns:
        The two bounds; the lower one is negative if A w is where b = 0.
    """
    required = np.broadcast_to(required, len(rows))
    w = rows.T @ multipliers
    length = float(np.linalg.norm(w))
    lowest, sunk = reached(rows @ w, required)
    if sunk > _UNTIED * lowest:
        lowest = -sunk
    return lowest / max(length, np.finfo(float).tiny), length / float(multipliers @ required)


def reached(differences: np.ndarray, required: np.ndarray) -> tuple[float, float]:
    """Compute the largest m with A w ≥ m b where b > 0, and by how much A w ≥ 0 fails where b = 0."""
    strict = required > 0
    lowest = float((differences[strict] / required[strict]).min(initial=np.inf))
    return lowest, -float(differences[~strict].min(initial=0.0))


def _combine(E: np.ndarray, pairs: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Compute Σ weight (E_s - E_s') through the vocabulary, so that no (pairs, d) array is needed."""
    vocab = len(E)
    return E.T @ (
        np.bincount(pairs[:, 0], weight, minlength=vocab) - np.bincount(pairs[:, 1], weight, minlength=vocab)
    )
