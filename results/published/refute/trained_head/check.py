"""p_mm and p_relax have different directions, for sequences of a token x and a token at the origin, d = 2."""

from fractions import Fraction
from itertools import combinations

INSTANCE = {'points': [[1, -2], [0, 1]], 'labels': [1, -1]}
CONTROL = {'points': [[1, 0], [0, 1]], 'labels': [1, 1]}


def shortest(A, b):
    """Return the shortest x with A x ≥ b: the shortest feasible one of those with one or two tight rows."""
    found = [
        (Fraction(y * u, u * u + v * v), Fraction(y * v, u * u + v * v))
        for (u, v), y in zip(A, b, strict=True)
    ]
    for (p, y), (q, z) in combinations(zip(A, b, strict=True), 2):
        if det := p[0] * q[1] - p[1] * q[0]:
            found.append((Fraction(y * q[1] - z * p[1], det), Fraction(z * p[0] - y * q[0], det)))
    feasible = [x for x in found if all(dot(row, x) >= y for row, y in zip(A, b, strict=True))]
    return min(feasible, key=lambda x: dot(x, x))


def dot(x, y):
    """Return the inner product."""
    return x[0] * y[0] + x[1] * y[1]


def cross(points, labels):
    """Return p_mm, p_relax and their cross product, which is 0 for the same direction."""
    v = shortest([(y * a, y * b) for (a, b), y in zip(points, labels, strict=True)], [1] * len(points))
    tight = [int(y * dot(x, v) == 1) for x, y in zip(points, labels, strict=True)]
    hard, relaxed = shortest(points, [1] * len(points)), shortest(points, tight)
    return [list(map(str, x)) for x in (hard, relaxed)], hard[0] * relaxed[1] - hard[1] * relaxed[0]


(found, apart), (same, control) = cross(**INSTANCE), cross(**CONTROL)
print(f"{INSTANCE}: p_mm, p_relax {found}, cross product {apart}; control {CONTROL}: {same}, {control}")
raise SystemExit(apart == 0 or control != 0)
