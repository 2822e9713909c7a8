"""Certificates for max-margin problems, computed only from keys, constraints and solver output."""

from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from flax import struct
from jaxtyping import Float

from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Brief
from jaxattn.theory.constraints import Constraints
from jaxattn.theory.infeasible import proves_infeasible
from jaxattn.theory.selection import require_finite

# Relative size below which a nonzero sum of differences may be due to rounding.
INFEASIBLE = 1e-14
# Range of key lengths outside which squares of keys, or multipliers, overflow or underflow in float64.
SMALLEST, LARGEST = 1e-140, 1e140
# Embeddings count as equal if they differ by less than this fraction of the longest embedding.
COINCIDE = 1e-13
# Machine epsilon of float64, and number of pairs processed at a time in extended precision.
_EPS, _BLOCK = 2.0**-52, 4096
# A relative duality gap below this may be due to rounding in a sum with large multipliers.
_ROUNDING = 1e-5
# Tolerance for pairs with a required margin of 0, given as the cosine between p and the difference of the two
# embeddings.
_LEVEL = 1e-12
# p is feasible only if it violates ties and required margins of 0 by at most this fraction of the margin, and
# if its cosine with the key difference of each tie is at most this.
_UNTIED = 1e-8


class Status(IntEnum):
    """Outcome of a max-margin problem. `MaxMargin.reason` describes it in words.

    SOLVED: the duality gap is within the tolerance.

    NO_PAIRS: there are no pairs of tokens to separate, and p = 0.

    LOOSE: p satisfies all constraints, but its duality gap is above the tolerance. Rounding p limits the gap
    to about 4e-16 divided by the smallest cosine between p and the difference of a support pair.

    INFEASIBLE: the multipliers prove that no p satisfies all constraints.

    CYCLE: the pairs form a cycle in which each token must score higher than the next, which is
    infeasible for any keys.

    UNDECIDED: the solver found neither a feasible p nor a proof that none exists.

    INVALID: not attempted, because the input is invalid.
    """

    SOLVED = 0
    NO_PAIRS = 1
    LOOSE = 2
    INFEASIBLE = 3
    CYCLE = 4
    UNDECIDED = 5
    INVALID = 6


_REASONS = {
    Status.SOLVED: "solved to the tolerance",
    Status.NO_PAIRS: "there are no tokens to separate, so p = 0",
    Status.LOOSE: "p separates the selection, but its duality gap is above the tolerance",
    Status.INFEASIBLE: "no direction separates the selection: the multipliers sum its differences to zero",
    Status.CYCLE: "no scores fit the selection: along its pairs, tokens outrank each other in a cycle",
    Status.UNDECIDED: "undecided: the solver found neither a separating direction nor a proof of none",
    Status.INVALID: "not attempted: keys contain NaN or inf, exceed 1e140 or are all below 1e-140 (rescale "
    "them), or a sequence has no selected token",
}


@struct.dataclass(repr=False)
class MaxMargin(Brief):
    """Max-margin direction and its certificate, as float64 NumPy arrays. A batch adds a leading axis.

    E_s is the key of token s. Pairs (s, s') require p·(E_s - E_s') ≥ 1 by default, and ties (s, s'') require
    p·(E_s - E_s'') = 0. The solution is the sum p = Σ λ (E_s - E_s') + Σ μ (E_s - E_s''), λ ≥ 0. The largest
    margin of any unit direction lies between `margin` and `margin_bound`, so

        ‖p - p_mm‖² ≤ duality_gap ‖p‖²   and   1 - cos(p, p_mm) ≤ 1 - √(1 - duality_gap),

    where p_mm is the exact solution. If `certify_max_margin` is called with q ≠ 2, ‖p‖ is the ℓ_q norm, and
    the norm of the sum is the dual norm. The bounds on the margin still hold, but the bounds on the distance
    to p_mm do not.

    If the problem is infeasible, there are exact multipliers close to the returned ones, with Σ λ = 1,
    for which the sum is exactly 0, so no direction has a positive inner product with every difference. In
    that case `dual_residual` is at most 1e-14; it is the norm of the computed sum relative to the lengths
    of the differences. An undecided problem is neither `feasible` nor `infeasible`.

    Attributes:
        p: (d,); the minimum-norm vector that satisfies the constraints; NaN if none was found.
        margin: (); 1 / ‖p‖; 0 if no separating direction was found, inf if there are no pairs.
        margin_bound: (); upper bound on the margin, ‖Σ λ (E_s - E_s') + Σ μ (E_s - E_s'')‖ / Σ λ b, with
            required margins b.
        pairs: (k, 2) int32; support pairs (s, s'), which have a positive multiplier.
        multipliers: (k,); λ of the support pairs; 0 for padding in a batch.
        ties: (t, 2) int32; pairs of tied tokens that join the tokens of each group. In a solution of
            `max_margin`, each token is paired with a near one.
        tie_multipliers: (t,); μ, of any sign.
        primal_residual: (); largest violation of a constraint by p; NaN if not feasible.
        dual_residual: (); ‖p - Σ λ (E_s - E_s') - Σ μ (E_s - E_s'')‖ / ‖p‖, with the sum accumulated pair
            by pair. For q ≠ 2, the relative gap in Hölder's inequality between p and the sum. If not
            feasible: ‖Σ λ (E_s - E_s') + Σ μ (E_s - E_s'')‖ / Σ λ ‖E_s - E_s'‖, including rounding. No
            direction that satisfies the ties has a cosine above this value with every difference.
        duality_gap: (); 1 - (margin / margin_bound)², the relative gap in ½ ‖p‖²; 1 if not feasible.
        num_pairs: () int; number of distinct pairs in the problem.
        iterations: () int; number of solver iterations.
        status: () int8; a `Status`.
    """

    p: np.ndarray
    margin: float | np.ndarray
    margin_bound: float | np.ndarray
    pairs: np.ndarray
    multipliers: np.ndarray
    ties: np.ndarray
    tie_multipliers: np.ndarray
    primal_residual: float | np.ndarray
    dual_residual: float | np.ndarray
    duality_gap: float | np.ndarray
    num_pairs: int | np.ndarray
    iterations: int | np.ndarray
    status: np.int8 | np.ndarray

    @property
    def feasible(self) -> bool | np.ndarray:
        """Whether p satisfies all constraints; bool, or (S,) for a batch.

        False does not prove infeasibility.
        """
        return self._is(Status.SOLVED, Status.NO_PAIRS, Status.LOOSE)

    @property
    def infeasible(self) -> bool | np.ndarray:
        """Whether the multipliers prove that no p satisfies all constraints; bool, or (S,) for a batch."""
        return self._is(Status.INFEASIBLE, Status.CYCLE)

    @property
    def decided(self) -> float | np.ndarray:
        """1 if feasible, 0 if infeasible, NaN if neither is proven; float, or (S,) for a batch."""
        decided = np.where(self.feasible, 1.0, np.where(self.infeasible, 0.0, np.nan))
        return float(decided) if decided.ndim == 0 else decided

    def _is(self, *statuses: Status) -> bool | np.ndarray:
        found = np.isin(self.status, statuses)
        return bool(found) if found.ndim == 0 else found

    def brief(self) -> str:
        """Return a one-line summary: the outcome, margin, duality gap and sizes."""
        if np.ndim(self.status) > 0:
            status = np.asarray(self.status)
            counts = zip(*np.unique(status, return_counts=True), strict=True)
            outcome = ", ".join(f"{count} {Status(int(code)).name}" for code, count in counts)
            return f"batch of {len(status)}: {outcome}; p {np.shape(self.p)}"
        size = f"p {np.shape(self.p)}, {int(self.num_pairs)} pairs, {len(self.ties)} ties"
        numbers = f"margin {float(self.margin):.4g}, duality_gap {float(self.duality_gap):.4g}"
        return f"{Status(int(self.status)).name}, {self.reason}; {numbers}, {size}"

    @property
    def reason(self) -> str | list[str]:
        """Description of the outcome, or a list of descriptions for a batch."""
        if np.ndim(self.status) == 0:
            return _REASONS[Status(int(self.status))]
        return [_REASONS[Status(int(status))] for status in np.asarray(self.status)]


def require_margins(required: np.ndarray) -> None:
    """Raise InputError unless all required margins are finite and at least 0."""
    wrong = np.flatnonzero(~(np.isfinite(required) & (required >= 0)))
    if len(wrong):
        raise InputError(
            f"required: margin {required[wrong[0]]} of pair {wrong[0]}; pass finite margins of at least 0"
        )


class Solution(NamedTuple):
    """Solver output. The certificate relies only on its multipliers.

    Attributes:
        multipliers: (m,) float64; λ for each pair, up to a common positive factor.
        iterations: number of iterations.
    """

    multipliers: np.ndarray
    iterations: int


class _Tight(NamedTuple):
    """Pairs with a positive multiplier: indices (k,), differences (k, d); and tie differences (t, d)."""

    support: np.ndarray
    pairs: np.ndarray
    ties: np.ndarray


def certify_max_margin(
    keys: Float[np.ndarray, "V d"],
    constraints: Constraints,
    multipliers: Float[np.ndarray, " m"],
    tie_multipliers: Float[np.ndarray, " t"],
    *,
    tolerance: float = 1e-10,
    p: Float[np.ndarray, " d"] | None = None,
    q: float = 2.0,
    iterations: int = 0,
) -> MaxMargin:
    """Certify the output of a max-margin solver: a solution, or a proof of infeasibility.

    The constraints are p·(Φ_s - Φ_s') ≥ b for pairs (s, s'), where b is `required`, and p·(Φ_s - Φ_s'') = 0
    for ties (s, s''). p is scaled until it satisfies them. By Hölder's inequality with 1/q + 1/q* = 1, the
    multipliers bound the margin of every unit direction:

        1 / ‖p‖_q ≤ margin ≤ ‖Σ λ (Φ_s - Φ_s') + Σ μ (Φ_s - Φ_s'')‖_q* / Σ λ b.

    If no multiple of p satisfies the constraints, the multipliers are checked as a proof that no vector does.
    Solver errors can only widen the gap.

    Args:
        keys: (V, d) float64; Φ.
        constraints: m pairs and t ties.
        multipliers: (m,) float64; λ, up to a positive factor. Negative entries and NaN count as 0.
        tie_multipliers: (t,) float64; μ, of any sign, with the same factor as λ.
        tolerance: relative duality gap up to which the problem counts as solved.
        p: (d,) float64; the direction, with any norm. Default: Σ λ (Φ_s - Φ_s') + Σ μ (Φ_s - Φ_s'').
        q: order of the norm of p, from 1 to ∞ (`math.inf`).
        iterations: number of solver iterations, copied to the result.

    Returns:
        The certificate. Its `status` is SOLVED, LOOSE, INFEASIBLE or UNDECIDED, or NO_PAIRS if no pair has a
        positive required margin. If p, or a multiplier that is used, is not finite, it is UNDECIDED.

    Raises:
        InputError: the number of multipliers differs from the number of pairs or ties, the keys or a required
            margin contain NaN or inf, or a required margin is negative.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> chosen = ja.theory.selection_from_tokens(np.array([True, True, False]), corpus)
        >>> found = ja.theory.constraints(corpus, chosen)
        >>> mm = ja.theory.certify_max_margin(np.eye(3), found, np.array([1 / 3, 1 / 3]), np.zeros(0))
        >>> mm.feasible, bool(mm.duality_gap <= 1e-10)
        (True, True)
    """
    require_finite(keys=keys)
    require_margins(constraints.required)
    E = keys
    better, worse, ties, _, required = constraints
    if len(multipliers) != len(better) or len(tie_multipliers) != len(ties):
        raise InputError(
            f"got multipliers {np.shape(multipliers)} and tie_multipliers {np.shape(tie_multipliers)} for "
            f"{len(better)} pairs and {len(ties)} ties; pass one multiplier per pair and one per tie"
        )
    if not required.any():
        return unsolved(Status.NO_PAIRS, E.shape[1], ties=ties)
    support = np.flatnonzero(multipliers > 0)
    weight, pairs = multipliers[support], np.stack([better[support], worse[support]], axis=1)
    total = weight @ required[support]
    if not (0 < total < np.inf and np.isfinite(tie_multipliers).all()):
        return unsolved(Status.UNDECIDED, E.shape[1], ties=ties)
    both = np.concatenate([weight, tie_multipliers]) / total
    ends = np.concatenate([pairs, ties])
    differences = E[ends[:, 0]] - E[ends[:, 1]]
    summed, sizes = both @ differences, np.abs(both) * lengths(differences)
    dual = dual_norm(q)
    # Bound the componentwise relative rounding errors of the differences and of their sum.
    errors = sizes if q == 2 else np.abs(both) * [norm(row, dual) for row in differences]
    length = norm(summed, dual) + _EPS * errors.sum()
    found: dict[str, Any] = {
        "pairs": pairs,
        "ties": ties,
        "num_pairs": len(better),
        "iterations": iterations,
        "margin_bound": length,
    }
    tight = _Tight(support, *np.split(differences, [len(support)]))
    p = _scaled(E, constraints, tight, summed if p is None else p)
    weight, tie_weight = np.split(both, [len(support)])
    if p is None:
        share = sizes[: len(support)] @ (required[support] > 0)
        # If the two tokens of every pair have equal embeddings, the weighted sum is exactly zero.
        same = not differences[both != 0].any()
        residual = length / share if share > 0 else 0.0 if same else np.inf
        proven = residual <= INFEASIBLE and proves_infeasible(E, pairs, ties, weight, tie_weight)
        status = Status.INFEASIBLE if proven else Status.UNDECIDED
        found |= {"multipliers": weight, "tie_multipliers": tie_weight, "dual_residual": residual}
        return replace(unsolved(status, E.shape[1]), **found)
    if tolerance < 1 - 1 / (norm(p, q) * length) ** 2 < _ROUNDING:
        p = _tightened(E, constraints, tight, p, q)
    margin = 1 / norm(p, q)
    scale = 1 / (margin * max(norm(summed, dual), np.finfo(float).tiny))
    weight, tie_weight = scale * weight, scale * tie_weight
    values, untied = _values(E, constraints, tight, p)
    gap = max(0.0, 1 - (margin / length) ** 2)
    return MaxMargin(
        p=p,
        margin=margin,
        multipliers=weight,
        tie_multipliers=tie_weight,
        primal_residual=max(float((required - values).max()), untied, 0.0),
        dual_residual=_stationarity(p, np.append(weight, tie_weight) @ differences, q),
        duality_gap=gap,
        status=np.int8(Status.SOLVED if gap <= tolerance else Status.LOOSE),
        **found,
    )


def in_unit(solution: MaxMargin, unit: float) -> MaxMargin:
    """Return the solution for keys multiplied by `unit`, a power of two, given the solution for the keys."""
    # The multipliers of a proof of infeasibility have the sum 1 in any unit.
    force = 1 / unit if solution.feasible else 1.0
    return replace(
        solution,
        p=solution.p / unit,
        margin=solution.margin * unit,
        margin_bound=solution.margin_bound * unit,
        multipliers=solution.multipliers * force * force,
        tie_multipliers=solution.tie_multipliers * force * force,
    )


def unsolved(status: Status, dim: int, *, ties: np.ndarray | None = None) -> MaxMargin:
    """Build the result for a problem without pairs to separate, or for a problem that was not solved."""
    nothing = status == Status.NO_PAIRS
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
    )


def _values(
    E: np.ndarray, constraints: Constraints, tight: _Tight, p: np.ndarray
) -> tuple[np.ndarray, float]:
    """Compute p·(E_s - E_s') for all pairs, (m,), and an upper bound on |p·(E_s - E_s'')| for the ties.

    Rounding errors in scores are proportional to the norms of the embeddings, which may be much larger than
    the margin. Any value that may be the smallest is therefore recomputed as the product of p with the
    difference E_s - E_s'. If terms also cancel in this product, it is computed in extended precision, and a
    bound on its rounding error is subtracted.
    """
    better, worse, _, _, required = constraints
    scores, sizes, strict = E @ p, lengths(E) * np.linalg.norm(p), required > 0
    values = scores[better] - scores[worse]
    error = 32 * _EPS * (sizes[better] + sizes[worse])
    values[tight.support], error[tight.support] = _at_least(tight.pairs, p), 0
    lowest = float(((values + error)[strict] / required[strict]).min())
    if lowest > 0:
        close = np.flatnonzero((values - error <= required * lowest) & (error > 0))
        for some in np.split(close, range(_BLOCK, len(close), _BLOCK)):
            values[some] = _at_least(E[better[some]] - E[worse[some]], p)
    untied = np.abs(tight.ties @ p) + _EPS * lengths(tight.ties) * np.linalg.norm(p)
    return values, float(untied.max(initial=0.0))


def _at_least(rows: np.ndarray, p: np.ndarray) -> np.ndarray:
    values, size = rows @ p, lengths(rows) * np.linalg.norm(p)
    small = values < 1e-4 * size
    if small.any():
        exactly = rows[small].astype(np.longdouble) @ p.astype(np.longdouble)
        # Include the rounding errors of the differences, and of p when it is scaled.
        error = len(p) * float(np.finfo(np.longdouble).eps) + _EPS
        values[small] = exactly.astype(float) - error * size[small]
    return values


def _scaled(E: np.ndarray, constraints: Constraints, tight: _Tight, p: np.ndarray) -> np.ndarray | None:
    if not (np.isfinite(p).all() and p.any()):
        return None
    values, untied = _values(E, constraints, tight, p)
    lowest, sunk = reached(values, constraints.required)
    below = np.flatnonzero((values < 0) & (constraints.required == 0))
    if not (lowest > 0 and max(sunk, untied) <= _UNTIED * lowest):
        return None
    # A score difference that is small relative to the margin may be large for a tie between close embeddings.
    if (np.abs(tight.ties @ p) > _UNTIED * lengths(tight.ties) * np.linalg.norm(p)).any():
        return None
    # A value that is small relative to the margin may still be exact, if the two embeddings of the pair are
    # close to each other.
    size = lengths(E[constraints.better[below]] - E[constraints.worse[below]]) * np.linalg.norm(p)
    return p / lowest if (values[below] >= -_LEVEL * size).all() else None


def _stationarity(p: np.ndarray, summed: np.ndarray, q: float) -> float:
    """Return the relative deviation of `summed` from the gradient of ½ ‖p‖_q².

    For q ≠ 2, return the relative gap in Hölder's inequality between p and `summed`.
    """
    if q == 2:
        return float(np.linalg.norm(p - summed) / np.linalg.norm(p))
    return float(1 - p @ summed / (norm(p, q) * norm(summed, dual_norm(q))))


def _tightened(E: np.ndarray, constraints: Constraints, tight: _Tight, p: np.ndarray, q: float) -> np.ndarray:
    from scipy.linalg import lstsq  # slow to import

    rows = np.concatenate([tight.pairs, tight.ties])
    needed = np.append(constraints.required[tight.support], np.zeros(len(tight.ties)))
    size = lengths(rows)
    size[size == 0] = 1.0
    move = lstsq(rows / size[:, None], (needed - rows @ p) / size, lapack_driver="gelsy")[0]
    moved = _scaled(E, constraints, tight, p + move)
    return p if moved is None or norm(moved, q) > norm(p, q) else moved


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


def bounds(
    rows: np.ndarray, multipliers: np.ndarray, required: np.ndarray | float = 1.0
) -> tuple[float, float]:
    """Return lower and upper bounds on the margin, the largest m with A p ≥ m b for some unit vector p.

        min_i (A w)_i / (b_i ‖w‖) ≤ m ≤ ‖w‖ / (λ·b)   with   w = Aᵀ λ   and the minimum over b_i > 0.

    The lower bound is negative if A w is negative where b = 0.

    Args:
        rows: (m, r); the differences A.
        multipliers: (m,); λ ≥ 0, λ·b > 0.
        required: b ≥ 0, (m,) or a scalar.
    """
    required = np.broadcast_to(required, len(rows))
    w = rows.T @ multipliers
    length = float(np.linalg.norm(w))
    lowest, sunk = reached(rows @ w, required)
    if sunk > _UNTIED * lowest:
        lowest = -sunk
    return lowest / max(length, np.finfo(float).tiny), length / float(multipliers @ required)


def reached(differences: np.ndarray, required: np.ndarray) -> tuple[float, float]:
    """Return the largest m with v ≥ m b where b > 0, and the largest violation of v ≥ 0 where b = 0.

    v is `differences`, the score difference of each pair along some direction, and b is `required`.
    """
    strict = required > 0
    lowest = float((differences[strict] / required[strict]).min(initial=np.inf))
    return lowest, -float(differences[~strict].min(initial=0.0))
