"""Max-margin direction for a selection, in the ℓ_q norm.

Mirror descent with the potential ‖p‖_q^q / q converges to the direction of the largest ℓ_q margin. Gradient
descent converges to the direction of the largest ℓ_2 margin, and sign descent to that of the largest ℓ_∞
margin.
"""

import math

import numpy as np

import jaxattn as ja
from jaxattn.theory import (
    Constraints,
    MaxMargin,
    Scores,
    Selection,
    Status,
    certify_max_margin,
    constraints,
    max_margin_from_constraints,
)

# Maximum ratio of two weights in a reweighted problem. The solver is accurate only to 1e-16 times the largest
# weight.
_SPREAD = 1e12
_MAX_PROBLEMS = 400


def lq_max_margin(scores: Scores, selection: Selection, *, q: float, tolerance: float = 1e-10) -> MaxMargin:
    """Compute the p with the smallest ℓ_q norm that scores selected tokens at least 1 above all others.

        p_q = argmin ‖p‖_q  s.t.  p·(Φ_s - Φ_s') ≥ 1  for all X, s ∈ S_X, s' ∈ X \\ S_X,
                                  p·(Φ_s - Φ_s'') = 0  for s, s'' ∈ S_X.

    For 1 < q < ∞, the method solves a sequence of weighted ℓ_2 problems, each as in `max_margin`. The weights
    are |p_j|^(q-2) for the previous p. For q = 1 and q = ∞, it solves a linear program, whose solution p may
    not be unique. By Hölder's inequality, multipliers λ ≥ 0 and μ bound the margin of every p with ‖p‖_q = 1:

        margin ≤ ‖y‖_q* / Σ λ,   y = Σ λ (Φ_s - Φ_s') + Σ μ (Φ_s - Φ_s''),   1/q + 1/q* = 1.

    Args:
        scores: keys Φ with shape (m, D), and the bags of n sequences.
        selection: the selected tokens, at least one in each sequence.
        q: exponent of the norm, from 1 to ∞ (`math.inf`).
        tolerance: largest relative duality gap of a solved problem.

    Returns:
        A result like that of `max_margin`, with the ℓ_q norm of p and the bound above. If the tolerance is
        not reached, it contains the p with the smallest gap. If no direction separates the selection, it
        contains a proof of this.

    Raises:
        InputError: q is below 1, Φ contains NaN or inf, a sequence has no selected token, or shapes do not
            match.

    Source:
        Julistiono, Tarzanagh and Azizan 2024 (arXiv 2410.14581) on ℓ_p attention SVMs; Lawson's reweighting
        with a line search.
    """
    if not q >= 1:
        raise ja.InputError(f"q: {q}; give a norm from 1 to inf")
    E, found = np.asarray(scores.keys, np.float64), constraints(scores.corpus, selection)
    euclidean = max_margin_from_constraints(E, found, tolerance=tolerance)
    if q == 2 or not euclidean.feasible or euclidean.status == Status.NO_PAIRS:
        return euclidean
    if q in (1, math.inf):
        return _linear_program(E, found, q, tolerance=tolerance)
    return _reweighted(E, found, q, euclidean, tolerance=tolerance)


def _reweighted(
    E: np.ndarray, found: Constraints, q: float, euclidean: MaxMargin, *, tolerance: float
) -> MaxMargin:
    """Minimise ‖p‖_q by line searches from p towards the feasible u with the smallest Σ_j |p_j|^(q-2) u_j².

    u - p is a descent direction. If p = u, the multipliers of u are multipliers for ‖p‖_q. For q ≤ 2, a full
    step reduces the norm and multiplies the error by 2 - q. For q > 2, a step of about 1/(q - 1) is a Newton
    step. The iteration starts at the Euclidean p. It returns this p if the rounding error in the first
    weighted problem exceeds the margin.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    answers, p = [], euclidean.p

    def end(solution: MaxMargin, p: np.ndarray, **more: int) -> MaxMargin:
        # The solver chooses which tied tokens it compares.
        problem, multipliers = found._replace(ties=solution.ties), _of_pairs(solution, found, len(E))
        ties = solution.tie_multipliers
        return certify_max_margin(E, problem, multipliers, ties, tolerance=tolerance, p=p, q=q, **more)

    for number in range(1, _MAX_PROBLEMS + 1):
        size = np.maximum(np.abs(p) / np.abs(p).max(), _SPREAD ** (-1 / abs(q - 2)))
        root = size ** ((2 - q) / 2)
        weighted = max_margin_from_constraints(E * root, found, tolerance=tolerance)
        if not weighted.feasible:
            break
        move = weighted.p * root - p

        def length(t: float, p: np.ndarray = p, move: np.ndarray = move) -> float:
            return _norm(p + t * move, q)

        step = minimize_scalar(length, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
        p = p + min(step, 1.0, key=length) * move
        answers.append(end(weighted, p, iterations=number))
        if answers[-1].status == Status.SOLVED:
            break
    if not answers:
        return end(euclidean, p)
    return min(answers, key=lambda solution: solution.duality_gap)


def _norm(x: np.ndarray, q: float) -> float:
    """Compute ‖x‖_q, with x scaled by its largest entry so that no power overflows."""
    largest = np.abs(x).max(initial=np.finfo(float).tiny)
    return float(largest * np.linalg.norm(x / largest, q))


def _of_pairs(solution: MaxMargin, found: Constraints, tokens: int) -> np.ndarray:
    """Return the multipliers of a solution for all pairs of the problem, in the order of the pairs."""
    key = found.better.astype(np.int64) * tokens + found.worse
    order = np.argsort(key)
    place = order[np.searchsorted(key[order], solution.pairs @ np.array([tokens, 1]))]
    multipliers = np.zeros(len(key))
    multipliers[place] = solution.multipliers
    return multipliers


def _linear_program(E: np.ndarray, found: Constraints, q: float, *, tolerance: float) -> MaxMargin:
    """Maximise the margin over the ℓ_1 or ℓ_∞ ball by a linear program, which also yields the multipliers.

    For ℓ_1, p is written as the difference of two nonnegative vectors.
    """
    from scipy.optimize import linprog  # slow to import

    better, worse, ties, *_ = found
    signs = np.array([1.0] if q == math.inf else [1.0, -1.0])
    # The tolerances of the solver are absolute, so normalise the rows.
    rows, equal = E[worse] - E[better], E[ties[:, 0]] - E[ties[:, 1]]
    unit = max(np.abs(rows).max(), np.finfo(float).tiny)
    rows, equal = np.kron(signs, rows / unit), np.kron(signs, equal / unit)
    inside = np.ones((int(q == 1), rows.shape[1]))
    matrix = np.block([[rows, np.ones((len(rows), 1))], [inside, np.zeros((len(inside), 1))]])
    solved = linprog(
        np.append(np.zeros(rows.shape[1]), -1.0),
        A_ub=matrix,
        b_ub=np.append(np.zeros(len(rows)), np.ones(len(inside))),
        A_eq=np.column_stack([equal, np.zeros(len(ties))]),
        b_eq=np.zeros(len(ties)),
        bounds=[(-1, 1) if q == math.inf else (0, None)] * rows.shape[1] + [(0, None)],
        method="highs-ds",
    )
    p = signs @ solved.x[:-1].reshape(len(signs), -1)
    return certify_max_margin(
        E,
        found,
        -solved.ineqlin.marginals[: len(rows)],
        solved.eqlin.marginals,
        tolerance=tolerance,
        p=p,
        q=q,
        iterations=int(solved.nit),
    )
