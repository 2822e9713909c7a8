"""Exact target alone: p_* is not p_relax, for {0,1,4}+, {2,3,4}-, {0,4}+, {3,4}- and E in the plane."""

from fractions import Fraction
from itertools import product

INSTANCE = {"E": [[3, 1], [-2, -1], [2, -3], [-1, -1], [-3, 3]]}
CONTROL = {"E": [[1, 1], [1, 0], [-1, 0], [-1, 1], [0, 0]]}
DATA = [([0, 1, 4], 1), ([2, 3, 4], -1), ([0, 4], 1), ([3, 4], -1)]


def shortest(rows):
    """Return the shortest (x, y) with a x + b y ≥ c for all rows (a, b, c): one or two rows are tight."""
    found = [(0, 0)]
    for (a, b, c), k in product(rows, range(len(rows) + 1)):
        d, e, f = [*rows, (-b, a, 0)][k]
        if det := Fraction(a * e - b * d):
            found.append(((c * e - f * b) / det, (f * a - c * d) / det))
    held = [(x * x + y * y, x, y) for x, y in found if all(a * x + b * y >= c for a, b, c in rows)]
    return min(held)[1:] if held else None


def apart(E):
    """Yield p_* and p_relax of each consistent choice of top tokens with two directions."""
    for top in product(*(tokens for tokens, _ in DATA)):
        chosen = [(t, tokens, y) for t, (tokens, y) in zip(top, DATA, strict=True)]
        v = shortest([(y * E[t][0], y * E[t][1], 1) for t, _, y in chosen]) or (0, 0)
        values = [a * v[0] + b * v[1] for a, b in E]
        pairs = [(t, s, int(y * values[t] == 1), y * values[s]) for t, x, y in chosen for s in x if s != t]
        rows = [(E[t][0] - E[s][0], E[t][1] - E[s][1], heavy, z) for t, s, heavy, z in pairs]
        p = shortest([(a, b, 0 if z > 1 else Fraction(heavy, 1 + (z == 1))) for a, b, heavy, z in rows])
        q = shortest([(a, b, heavy) for a, b, heavy, _ in rows])
        cross = p and q and p[0] * q[1] - p[1] * q[0]
        if cross and all(a * p[0] + b * p[1] > heavy * (z > 1) for a, b, heavy, z in rows):
            yield f"top {top}, p_* = ({p[0]}, {p[1]}), p_relax = ({q[0]}, {q[1]})"


print(f"{INSTANCE}: {list(apart(**INSTANCE))}; control: {list(apart(**CONTROL))}")
raise SystemExit(not any(apart(**INSTANCE)) or any(apart(**CONTROL)))
