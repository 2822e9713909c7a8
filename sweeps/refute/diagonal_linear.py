"""Negative control: the algorithm of arXiv 2607.12332 for the limit of diagonal linear networks.

The algorithm follows u = Xᵀ(y - Xk). A coordinate of k leaves 0 when s = ∫ u reaches one of its two
thresholds, and k is then a least-squares solution that keeps the signs of the coordinates that have left.
Theorem: the algorithm stops at the k of smallest cost Σ t⁺ k⁺ + t⁻ k⁻ among the solutions of Xk = y.
"""

from fractions import Fraction
from itertools import combinations

import numpy as np

from jaxattn.lab.refute import Claim, Integers, Sides, Space, exact

STEPS = 40


def least_squares(X, y, columns, signs):
    """Return the k on `columns` that minimises ‖Xk - y‖² with k_c signs_c ≥ 0; sign 0 leaves k_c free."""
    best = None
    for count in range(len(columns) + 1):
        for own in combinations(columns, count):
            gram = [[sum(x[i] * x[j] for x in X) for j in own] for i in own]
            right = [sum(x[i] * z for x, z in zip(X, y, strict=True)) for i in own]
            k = exact.solve(gram, right)
            if k is None or any(signs[c] * value < 0 for c, value in zip(own, k, strict=True)):
                continue
            given = dict(zip(own, k, strict=True))
            rest = sum((sum(x[c] * given[c] for c in own) - z) ** 2 for x, z in zip(X, y, strict=True))
            if best is None or rest < best[0]:
                best = rest, given
    return [best[1].get(i, Fraction(0)) for i in range(len(X[0]))]


def algorithm(X, y, above, below):
    """Run the algorithm; return k, or the assumption that fails as a string."""
    n = len(X[0])
    k, s = [Fraction(0)] * n, [Fraction(0)] * n
    for _ in range(STEPS):
        rest = exact.minus(y, exact.times(X, k))
        if not any(rest):
            return k
        u = [sum(x[i] * r for x, r in zip(X, rest, strict=True)) for i in range(n)]
        times = {}
        for i in (i for i in range(n) if k[i] == 0):
            if u[i] == 0 and s[i] in (above[i], -below[i]):
                return "u_i = 0 at a threshold"
            if u[i]:
                times[i] = (above[i] - s[i]) / u[i] if u[i] > 0 else (below[i] + s[i]) / -u[i]
        first = [i for i in times if times[i] == min(times.values())]
        if len(first) != 1:
            return "two coordinates reach their thresholds together" if first else "no coordinate moves"
        s = [a + times[first[0]] * b for a, b in zip(s, u, strict=True)]
        signs = [(value > 0) - (value < 0) for value in k]
        k = least_squares(X, y, [i for i in range(n) if k[i] != 0 or i == first[0]], signs)
    return f"more than {STEPS} steps"


def cost(k, above, below):
    """Return Σ t⁺ k⁺ + t⁻ k⁻."""
    return sum(a * max(x, 0) + b * max(-x, 0) for x, a, b in zip(k, above, below, strict=True))


def cheapest(X, y, above, below):
    """Return the smallest cost of a solution of Xk = y, attained at a basis; None without a solution."""
    n, m, found = len(X[0]), len(X), []
    for own in combinations(range(n), m):
        k = exact.solve([[x[c] for c in own] for x in X], y)
        if k is not None:
            found.append(sum(above[c] * z if z > 0 else -below[c] * z for c, z in zip(own, k, strict=True)))
    # Without a regular basis, the rows of X are dependent, and a solution has fewer coordinates.
    for own in [] if found else [own for count in range(m) for own in combinations(range(n), count)]:
        k = least_squares(X, y, list(own), [0] * n)
        if not any(exact.minus(y, exact.times(X, k))):
            found.append(cost(k, above, below))
    return min(found, default=None)


def parts(instance):
    """Return X, y and both thresholds as fractions."""
    return (
        exact.matrix(instance["X"]),
        exact.vector(instance["y"]),
        exact.vector(instance["above"]),
        exact.vector(instance["below"]),
    )


def outcome(instance):
    """Return the assumption that fails or "", the smallest cost, and the algorithm's k or why it has none."""
    X, y, above, below = parts(instance)
    if min(*above, *below) <= 0:
        return "a threshold is not positive", None, None
    best = cheapest(X, y, above, below)
    if best is None:
        return "Xk = y has no solution", None, None
    found = algorithm(X, y, above, below)
    fails = isinstance(found, str) and not found.startswith(("more", "no "))
    return found if fails else "", best, found


def assumptions(instance):
    """Return the assumption that fails: solvable, positive thresholds, and a unique next coordinate."""
    return outcome(instance)[0]


def exact_sides(instance):
    """Return the cost of the algorithm's k, and the smallest cost; without a k, the cost is larger by 1."""
    _, best, k = outcome(instance)
    if isinstance(k, str):
        return Sides(best + 1, best, {"algorithm": k})
    _, y, above, below = parts(instance)
    return Sides(cost(k, above, below), best, {"k": list(map(str, k))}, "y is 0" * (not any(y)))


def score(batch):
    """Return the exact difference of the costs, -inf outside the assumptions."""
    found = np.full(len(batch["y"]), -np.inf)
    for index in np.flatnonzero(batch["y"].any(axis=1)):
        instance = {name: x[index] for name, x in batch.items()}
        fails, best, k = outcome(instance)
        if not fails:
            found[index] = 1.0 if isinstance(k, str) else float(cost(k, *parts(instance)[2:]) - best)
    return found


claim = Claim(
    statement=(
        "Algorithm 1 stops, and its k minimises Σ t_i⁺ k_i⁺ + t_i⁻ k_i⁻ on Xk = y: the cost of its k is ≤ "
        "the smallest cost."
    ),
    source="arXiv 2607.12332 (ICML 2026), Algorithm 1 and its theorem. Read in the TeX source of the paper.",
    hypothesis=(
        "Xk = y is solvable, the minimiser j of each step is unique, and u_i ≠ 0 where k_i = 0 and s_i is a "
        "threshold."
    ),
    space=Space(
        arrays={
            "X": Integers("equation coordinate", -3, 3),
            "y": Integers("equation", -3, 3),
            "above": Integers("coordinate", 1, 3),
            "below": Integers("coordinate", 1, 3),
        },
        sizes=(
            {"equation": 1, "coordinate": 3},
            {"equation": 2, "coordinate": 3},
            {"equation": 2, "coordinate": 4},
        ),
    ),
    score=score,
    batched=True,
    batch=1024,
    assumptions=assumptions,
    exact=exact_sides,
    control={"X": [[1, 2]], "y": [2], "above": [1, 1], "below": [1, 1]},
    horizon=f"{STEPS} steps",
)
