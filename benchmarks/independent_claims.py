"""Check four verdicts of the book claims2026 with code that shares nothing with the book or with jaxattn.

    python benchmarks/independent_claims.py [--instances 64] [--out FILE.json]

- frank_wolfe: the first step that breaks the bound, for two tokens on a line, in integers over a common
  denominator.
- expert_gates: the derivative of the loss when one number is added to all gates, in 60 digits.
- linear_limit: the flow of (A, b) by SciPy's LSODA in the basis of Σ, for initial A that are not diagonal.
- diagonal_network: the flow in the variables ∫ u dt by SciPy's LSODA, from initial weights of order e^-100,
  and the minimum of R(k) over all basis solutions of X k = y.
- deep_network: the same for three layers and initial weights of order e^-25, by SciPy's Radau. Below e^-28,
  double precision does not resolve the time at which an unknown leaves 0.
"""

import argparse
import json
from itertools import combinations

import mpmath
import numpy as np
from scipy.integrate import quad, solve_ivp


def frank_wolfe(left: int, right: int, steps: int) -> int | None:
    """Return the first t at which a token of x(t + 1) has ½ x² > 2 diam²/(t + 1), or None if there is none.

    Positions are stored as integers over a common denominator. A step is x(t + 1) = (t x(t) + 2 y)/(t + 2),
    where y is the smallest position if x(t) > 0, else the largest.
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
    """Return dL/dc at c = 0 for L = ½ g_2², with normalised sigmoid gates and with softmax gates.

    The gates are computed from the scores w + c with w = (0, log 3). The derivatives are decimal strings.
    """
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
    """Return the relative distance from the end of the flow of (A, b) to the limit in the theorem."""
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
    """Compare the limit of a two-layer diagonal network with the cheapest basis solution.

    See `compared` for the returned values.

    In each component, k = ½ (rise a² - fall b²) with a = s a_0 e^(rise T), b = s b_0 e^(-fall T) and
    s = e^(-log_scale). The variables T satisfy dT/dt = Xᵀ(y - X k)/m.
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
    return compared(X, y, 1 / rise, 1 / fall, coefficients(flow.y[:, -1]))


def deep_network(rng: np.random.Generator, unknowns: int = 4, log_scale: float = 25.0) -> tuple[float, ...]:
    """Compare the limit of a network k_i = a_i b_i c_i with the cheapest basis solution.

    See `compared` for the returned values.

    The factor of smallest modulus is s sinh(w), with s = e^(-log_scale). The conserved differences of squares
    determine the other two factors. Time is in units of 1/s. An unknown that has left 0 is stiff, with a rate
    of order 1/s.
    """
    X, y = rng.normal(size=(2, unknowns)), rng.normal(size=2)
    start = rng.uniform(0.5, 1.5, (unknowns, 3)) * rng.choice([-1, 1], (unknowns, 3))
    start = np.take_along_axis(start, np.abs(start).argsort(axis=1), axis=1)
    least, gaps = start[:, 0], start[:, 1:] ** 2 - start[:, :1] ** 2
    sign = np.sign(start[:, 1:]).prod(axis=1)

    def parts(w):
        """Return k, dk/dw, the rate dw/dt for Xᵀ(y - Xk) = 1, and the derivative of this rate."""
        z, cosh = np.sinh(w), np.cosh(w)
        squares = z[:, None] ** 2 + gaps
        others = sign * np.sqrt(squares.prod(axis=1))
        growth = z * cosh * (1 / squares).sum(axis=1)
        unit, rate = np.exp(-3 * log_scale) * others, others / cosh
        return unit * z, unit * (cosh + z * growth), rate, rate * (growth - np.tanh(w))

    def velocity(t, w):
        k, _, rate, _ = parts(w)
        return rate * (X.T @ (y - X @ k))

    def jacobian(t, w):
        k, slope, rate, change = parts(w)
        return np.diag(change * (X.T @ (y - X @ k))) - rate[:, None] * (X.T @ X) * slope

    given = {"method": "Radau", "jac": jacobian, "rtol": 1e-7, "atol": 1e-9}
    flow = solve_ivp(velocity, (0, 400), np.arcsinh(least), **given)
    up, down = np.array([escape_times(z, gap) for z, gap in zip(least, gaps, strict=True)]).T
    above, below = np.where(sign > 0, up, down), np.where(sign > 0, down, up)
    return compared(X, y, above, below, parts(flow.y[:, -1])[0])


def escape_times(z: float, gaps: np.ndarray) -> tuple[float, float]:
    """Return the integrals of 1/√(∏(x² + gap)) from z to ∞ and from -∞ to z."""

    def slowness(x):
        return 1 / np.sqrt((x * x + gaps).prod())

    return quad(slowness, z, np.inf)[0], quad(slowness, -np.inf, z)[0]


def compared(
    X: np.ndarray, y: np.ndarray, above: np.ndarray, below: np.ndarray, end: np.ndarray
) -> tuple[float, ...]:
    """Compare the final k of a flow with the cheapest basis solution of X k = y.

    The cost is Σ_i (above_i max(k_i, 0) + below_i max(-k_i, 0)).

    Returns:
        The distance of k from the cheapest solution, relative to the norm of this solution; the residual
        ‖X k - y‖/‖y‖; and the ratio of the second-smallest cost of a basis solution to the smallest cost.
    """
    found = []
    for basis in map(list, combinations(range(X.shape[1]), 2)):
        k = np.zeros(X.shape[1])
        k[basis] = np.linalg.solve(X[:, basis], y)
        found.append(((np.maximum(k, 0) * above + np.maximum(-k, 0) * below).sum(), k))
    (least, best), (runner_up, _), *_ = sorted(found, key=lambda pair: pair[0])
    distance = np.linalg.norm(end - best) / np.linalg.norm(best)
    return float(distance), float(np.linalg.norm(X @ end - y) / np.linalg.norm(y)), float(runner_up / least)


def summary(rows: list[tuple[float, ...]]) -> dict[str, float]:
    """Count the flows that end at the cheapest solution, among all flows and among clear cases.

    In a clear case, the flow has converged, and the second-smallest cost exceeds the smallest by over 2 %.
    """
    distance, residual, ratio = np.array(rows).T
    clear = (residual < 1e-3) & (ratio > 1.02)
    return {
        "instances": len(distance),
        "within 1 %": int((distance <= 0.01).sum()),
        "median distance": float(np.median(distance)),
        "converged, and the second basis costs 2 % more": int(clear.sum()),
        "of these within 1 %": int((clear & (distance <= 0.01)).sum()),
    }


def main() -> None:
    """Run all checks, print the results, and write them to the file --out."""
    parser = argparse.ArgumentParser(description="Check verdicts of the book claims2026.")
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--out")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    limits = [linear_limit(rng) for _ in range(given.instances)]
    sigmoid, softmax = gate_derivatives()
    found: dict[str, dict[str, object]] = {
        "frank_wolfe": {"3, -1": frank_wolfe(3, -1, 1000), "4, -1": frank_wolfe(4, -1, 1000)},
        "expert_gates": {"sigmoid": sigmoid, "softmax": softmax},
        "linear_limit": {"instances": given.instances, "largest distance": max(limits)},
    }
    for network in (diagonal_network, deep_network):
        found[network.__name__] = summary([network(rng) for _ in range(given.instances)])
    text = json.dumps(found, indent=2)
    print(text)
    if given.out:
        with open(given.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
