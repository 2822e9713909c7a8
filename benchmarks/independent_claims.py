"""Check four verdicts of the book claims2026 by code that shares nothing with it or with jaxattn.

python benchmarks/independent_claims.py [--instances 64] [--out FILE.json]

frank_wolfe       two tokens on a line, in integers over a common denominator: the first step that breaks
                  the bound
expert_gates      derivative of the loss when one number is added to all gates, in 60 digits
linear_limit      the flow of (A, b) by SciPy's LSODA in the basis of Σ, for starts that are not diagonal
diagonal_network  the flow in the variables ∫ u dt by SciPy's LSODA from starts of e^-100; the least R(k)
                  among all bases of Xk = y
"""

import argparse
import json
from itertools import combinations

import mpmath
import numpy as np
from scipy.integrate import solve_ivp


def frank_wolfe(left: int, right: int, steps: int) -> int | None:
    """Return the first step t at which a token of x(t + 1) breaks the bound; None if none does.

    Position i is N_i / D with D = (t + 1)! and x' = (t x + 2 y)/(t + 2).
    """
    numbers, denominator, diameter = [left, right], 1, abs(left - right)
    for t in range(steps):
        low, high = min(numbers), max(numbers)
        if 0 in numbers:
            raise ValueError("a token at 0 has no aim")
        numbers = [t * n + 2 * (low if n > 0 else high) for n in numbers]
        denominator *= t + 2
        # ½ (N/D)² > 2/(t + 1) diam² in integers.
        if any(n * n * (t + 1) > 4 * diameter**2 * denominator**2 for n in numbers):
            return t
    return None


def gate_derivatives(digits: int = 60) -> tuple[str, str]:
    """Return dL/dc at c = 0 for gates w + c with a sigmoid and a softmax, w = (0, log 3), L = g_2²/2."""
    with mpmath.workdps(digits):

        def loss(score, c):
            first, second = score(c), score(mpmath.log(3) + c)
            return (second / (first + second)) ** 2 / 2

        found = (
            mpmath.diff(lambda c, score=score: loss(score, c), 0)
            for score in (lambda x: 1 / (1 + mpmath.exp(-x)), mpmath.exp)
        )
        sigmoid, softmax = (mpmath.nstr(x, 20) for x in found)
        return sigmoid, softmax


def linear_limit(rng: np.random.Generator, dim: int = 3) -> float:
    """Return the relative distance of the end of the flow of (A, b) from the limit of the theorem."""
    s = rng.uniform(0.2, 1.0, dim)
    theta = rng.normal(size=(dim, dim))
    start = theta @ theta.T
    start *= 0.3 / np.linalg.norm(start)

    def velocity(t, y):
        A, b = y[:-1].reshape(dim, dim), y[-1]
        A_dot = b * np.diag(s**2) - b**2 * s[:, None] ** 2 * A * s
        b_dot = (np.diag(A) * s**2).sum() - b * (A**2 * s[:, None] ** 2 * s).sum()
        return np.append(A_dot.ravel(), b_dot)

    y = np.append(start.ravel(), np.linalg.norm(start))
    end = solve_ivp(velocity, (0, 2000), y, method="LSODA", rtol=1e-9, atol=1e-12).y[:, -1]
    b = (s**-2.0).sum() ** 0.25
    wanted = np.append(np.diag(1 / s / b).ravel(), b)
    return float(np.linalg.norm(end - wanted) / np.linalg.norm(wanted))


def diagonal_network(
    rng: np.random.Generator, unknowns: int = 4, log_scale: float = 100.0
) -> tuple[float, ...]:
    """Return how far the flow ends from the k of smallest R(k), its residual, and how nearly R(k) is tied.

    The distance is relative to the norm of k, the residual is ‖Xk - y‖/‖y‖, and the last number is the ratio
    of the second-smallest R of a basis to the smallest one.

    k_i = ½ (rise a² - fall b²) with a = s a0 e^(rise T) and b = s b0 e^(-fall T), where T' = Xᵀ(y - Xk)/m.
    """
    X, y = rng.normal(size=(2, unknowns)), rng.normal(size=2)
    rise, fall = rng.uniform(0.5, 2, (2, unknowns))
    first, second = rng.uniform(0.5, 1.5, (2, unknowns))

    def coefficients(T):
        up = np.exp(np.minimum(2 * (rise * T - log_scale), 60)) * first**2
        down = np.exp(np.minimum(2 * (-fall * T - log_scale), 60)) * second**2
        return (rise * up - fall * down) / 2

    def velocity(t, T):
        return X.T @ (y - X @ coefficients(T)) / 2

    flow = solve_ivp(velocity, (0, 5000), np.zeros(unknowns), method="LSODA", rtol=1e-9, atol=1e-9)
    found = []
    for basis in map(list, combinations(range(unknowns), 2)):
        k = np.zeros(unknowns)
        k[basis] = np.linalg.solve(X[:, basis], y)
        found.append(((np.maximum(k, 0) / rise + np.maximum(-k, 0) / fall).sum(), k))
    (least, best), (next_least, _), *_ = sorted(found, key=lambda pair: pair[0])
    end = coefficients(flow.y[:, -1])
    distance = np.linalg.norm(end - best) / np.linalg.norm(best)
    return float(distance), float(np.linalg.norm(X @ end - y) / np.linalg.norm(y)), float(next_least / least)


def main() -> None:
    """Print the results of all checks, and write them to a file."""
    parser = argparse.ArgumentParser(description="Check verdicts of the book claims2026.")
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--out")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    limits = [linear_limit(rng) for _ in range(given.instances)]
    distance, residual, ratio = np.array([diagonal_network(rng) for _ in range(given.instances)]).T
    clear = (residual < 1e-3) & (ratio > 1.02)
    sigmoid, softmax = gate_derivatives()
    found = {
        "frank_wolfe": {"3, -1": frank_wolfe(3, -1, 1000), "4, -1": frank_wolfe(4, -1, 1000)},
        "expert_gates": {"sigmoid": sigmoid, "softmax": softmax},
        "linear_limit": {"instances": given.instances, "largest distance": max(limits)},
        "diagonal_network": {
            "instances": given.instances,
            "within 1 %": int((distance <= 0.01).sum()),
            "median distance": float(np.median(distance)),
            "converged, and the second basis costs 2 % more": int(clear.sum()),
            "of these within 1 %": int((clear & (distance <= 0.01)).sum()),
        },
    }
    text = json.dumps(found, indent=2)
    print(text)
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
