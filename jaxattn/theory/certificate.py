"""Certificates for max-margin problems, computed only from keys, constraints and solver output.

A solver returns multipliers λ ≥ 0 of the pairs and μ of the ties. They prove both bounds on the margin:

    1 / ‖p‖_q ≤ margin ≤ ‖Σ λ (Φ_s - Φ_s') + Σ μ (Φ_s - Φ_s'')‖_q* / Σ λ b

The lower one holds for every p with p·(Φ_s - Φ_s') ≥ b and p·(Φ_s - Φ_s'') = 0, and p is scaled until all
computed score differences, less their rounding errors, are large enough (`_scale_to_feasible`). The upper one
is Hölder's inequality for the sum (`_dual`). If no multiple of p satisfies the constraints, a sum of zero
proves that no vector does (`_infeasible`).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxattn.core.arithmetic import dual_norm, lengths, norm
from jaxattn.core.errors import InputError
from jaxattn.theory.constraints import Constraints
from jaxattn.theory.infeasible import proves_infeasible
from jaxattn.theory.selection import require_finite
from jaxattn.theory.solution import MaxMargin, Status, unsolved

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


class _Dual(NamedTuple):
    """Multipliers, divided by Σ λ b, and the sum that they give.

    Attributes:
        ends: (k + t, 2); the tokens of the support pairs and ties.
        weights: (k + t,); λ and μ.
        differences: (k + t, d); key differences of the support pairs and ties.
        sum: (d,); Σ λ (Φ_s - Φ_s') + Σ μ (Φ_s - Φ_s'').
        length: ‖sum‖_q* including rounding, an upper bound on the margin.
        tight: the same pairs and ties.
    """

    ends: np.ndarray
    weights: np.ndarray
    differences: np.ndarray
    sum: np.ndarray
    length: float
    tight: _Tight


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
    _check(keys, constraints, multipliers, tie_multipliers)
    if not constraints.required.any():
        return unsolved(Status.NO_PAIRS, keys.shape[1], ties=constraints.ties)
    dual = _dual(keys, constraints, multipliers, tie_multipliers, q)
    if dual is None:
        return unsolved(Status.UNDECIDED, keys.shape[1], ties=constraints.ties)
    found: dict[str, Any] = {
        "pairs": dual.ends[: len(dual.tight.support)],
        "ties": constraints.ties,
        "num_pairs": len(constraints.better),
        "iterations": iterations,
        "margin_bound": dual.length,
    }
    p = _scale_to_feasible(keys, constraints, dual.tight, dual.sum if p is None else p)
    if p is None:
        return replace(_infeasible(keys, constraints, dual), **found)
    if tolerance < 1 - 1 / (norm(p, q) * dual.length) ** 2 < _ROUNDING:
        p = _tighten(keys, constraints, dual.tight, p, q)
    margin = 1 / norm(p, q)
    # With these factors, the sum has the norm of p.
    scale = 1 / (margin * max(norm(dual.sum, dual_norm(q)), np.finfo(float).tiny))
    weight, tie_weight = (scale * x for x in np.split(dual.weights, [len(dual.tight.support)]))
    values, untied = _values(keys, constraints, dual.tight, p)
    gap = max(0.0, 1 - (margin / dual.length) ** 2)
    return MaxMargin(
        p=p,
        margin=margin,
        multipliers=weight,
        tie_multipliers=tie_weight,
        primal_residual=max(float((constraints.required - values).max()), untied, 0.0),
        dual_residual=_stationarity(p, np.append(weight, tie_weight) @ dual.differences, q),
        duality_gap=gap,
        status=np.int8(Status.SOLVED if gap <= tolerance else Status.LOOSE),
        **found,
    )


def _check(
    keys: np.ndarray, constraints: Constraints, multipliers: np.ndarray, tie_multipliers: np.ndarray
) -> None:
    require_finite(keys=keys)
    require_margins(constraints.required)
    pairs, ties = len(constraints.better), len(constraints.ties)
    if len(multipliers) != pairs or len(tie_multipliers) != ties:
        raise InputError(
            f"got multipliers {np.shape(multipliers)} and tie_multipliers {np.shape(tie_multipliers)} for "
            f"{pairs} pairs and {ties} ties; pass one multiplier per pair and one per tie"
        )


def _dual(
    E: np.ndarray, constraints: Constraints, multipliers: np.ndarray, tie_multipliers: np.ndarray, q: float
) -> _Dual | None:
    """Normalise the multipliers; return None if their sum is zero or not finite."""
    better, worse, ties, _, required = constraints
    support = np.flatnonzero(multipliers > 0)
    weight, pairs = multipliers[support], np.stack([better[support], worse[support]], axis=1)
    total = weight @ required[support]
    if not (0 < total < np.inf and np.isfinite(tie_multipliers).all()):
        return None
    weights, ends = np.concatenate([weight, tie_multipliers]) / total, np.concatenate([pairs, ties])
    differences = E[ends[:, 0]] - E[ends[:, 1]]
    summed, dual = weights @ differences, dual_norm(q)
    # Bound the componentwise relative rounding errors of the differences and of their sum.
    if q == 2:
        errors = np.abs(weights) * lengths(differences)
    else:
        errors = np.abs(weights) * [norm(row, dual) for row in differences]
    length = norm(summed, dual) + _EPS * errors.sum()
    tight = _Tight(support, *np.split(differences, [len(support)]))
    return _Dual(ends, weights, differences, summed, length, tight)


def _infeasible(E: np.ndarray, constraints: Constraints, dual: _Dual) -> MaxMargin:
    """Return whether the multipliers prove that no direction satisfies the constraints.

    They do if their sum is exactly zero for multipliers near by: then p·0 ≥ Σ λ b > 0 for every feasible p.
    """
    support = dual.tight.support
    weight, tie_weight = np.split(dual.weights, [len(support)])
    sizes = np.abs(weight) * lengths(dual.tight.pairs)
    fraction = sizes @ (constraints.required[support] > 0)
    # If the two tokens of every pair have equal embeddings, the weighted sum is exactly zero.
    same = not dual.differences[dual.weights != 0].any()
    residual = dual.length / fraction if fraction > 0 else 0.0 if same else np.inf
    pairs = dual.ends[: len(support)]
    proven = residual <= INFEASIBLE and proves_infeasible(E, pairs, constraints.ties, weight, tie_weight)
    return replace(
        unsolved(Status.INFEASIBLE if proven else Status.UNDECIDED, E.shape[1]),
        multipliers=weight,
        tie_multipliers=tie_weight,
        dual_residual=residual,
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


def _scale_to_feasible(
    E: np.ndarray, constraints: Constraints, tight: _Tight, p: np.ndarray
) -> np.ndarray | None:
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


def _tighten(E: np.ndarray, constraints: Constraints, tight: _Tight, p: np.ndarray, q: float) -> np.ndarray:
    from scipy.linalg import lstsq  # slow to import

    rows = np.concatenate([tight.pairs, tight.ties])
    needed = np.append(constraints.required[tight.support], np.zeros(len(tight.ties)))
    size = lengths(rows)
    size[size == 0] = 1.0
    move = lstsq(rows / size[:, None], (needed - rows @ p) / size, lapack_driver="gelsy")[0]
    moved = _scale_to_feasible(E, constraints, tight, p + move)
    return p if moved is None or norm(moved, q) > norm(p, q) else moved


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
