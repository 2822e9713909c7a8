"""Theorem 4.2 of arXiv 2508.09628v1: exact positions of rational tokens, and deviations in floating point."""

import math
import random
from fractions import Fraction

from jaxattn.lab.books import Finding, at_least, at_most, cells, mean, share

# Integer points on {⟨Bx, x⟩ = 65}: all vertices have the same J, so each one is in its own cell only.
ELLIPSES = {
    "circle": ((1, 1), [(1, 8), (8, 1), (8, -1), (4, -7), (-1, -8), (-7, -4), (-8, 1), (-4, 7)]),
    "ellipse": ((1, 4), [(1, 4), (7, 2), (7, -2), (1, -4), (-1, -4), (-7, -2), (-7, 2), (-1, 4)]),
}
INSTANCES, INSIDE, STEPS = 50, 6, 20
ROUNDING = 1e-12


def score(weights, a, b):
    """Return ⟨Ba, b⟩ for a diagonal B."""
    return sum(w * x * y for w, x, y in zip(weights, a, b, strict=True))


def move(weights, tokens, gamma):
    """Return the tokens after one exact step and their aims; None if two distinct points tie."""
    moved, found = [], []
    for own in tokens:
        values = [score(weights, own, y) for y in tokens]
        aims = {y for y, value in zip(tokens, values, strict=True) if value == max(values)}
        if len(aims) > 1:
            return None
        (aim,) = aims
        found.append(aim)
        moved.append(tuple(a + gamma * (b - a) for a, b in zip(own, aim, strict=True)))
    return moved, found


def deviation(weights, tokens, sizes):
    """Return the largest squared distance from the positions of the theorem.

    It is None if a token is in two cells at the start, which the theorem excludes, and infinite if a token is
    in two cells later.
    """
    start = now = [tuple(Fraction(c) for c in token) for token in tokens]
    product, worst, vertices = Fraction(1), Fraction(0), None
    for gamma in sizes:
        step = move(weights, now, gamma)
        if step is None:
            return None if vertices is None else math.inf
        now, aims = step
        vertices = vertices or aims
        product *= 1 - gamma
        for own, first, vertex in zip(now, start, vertices, strict=True):
            wanted = [v + product * (x - v) for x, v in zip(first, vertex, strict=True)]
            worst = max(worst, sum((a - b) ** 2 for a, b in zip(own, wanted, strict=True)))
    return worst


def instances(weights, vertices, seed):
    """Yield tokens, which are the vertices and convex combinations of them, and rational steps in (0, 1)."""
    rng = random.Random(seed)
    for _ in range(INSTANCES):
        tokens = list(vertices)
        for _ in range(INSIDE):
            mixture = [rng.randint(0, 9) for _ in vertices]
            mixture[rng.randrange(len(vertices))] += 1
            total = sum(mixture)
            point = (
                Fraction(sum(w * v[k] for w, v in zip(mixture, vertices, strict=True)), total) for k in (0, 1)
            )
            tokens.append(tuple(point))
        yield tokens, [Fraction(rng.randint(1, 9), 10) for _ in range(STEPS)]


def check(results):
    """Compare positions with those of the theorem, exactly and in floating point."""
    for seed, (name, (weights, vertices)) in enumerate(ELLIPSES.items()):
        found = [deviation(weights, *given) for given in instances(weights, vertices, seed)]
        found = [float(x) for x in found if x is not None]
        text = f"{name} with eight vertices, exact: squared distance from the position of the theorem"
        yield mean(
            f"exact.{name}",
            text,
            found,
            expected=at_most(0),
            published="0",
            source="Theorem 4.2",
            unit="instance",
        )
    line = [(Fraction(3), Fraction(0)), (Fraction(1), Fraction(0))]
    aim = float(move((1, 1), line, Fraction(1, 2))[1][1][0])
    text = "control: aim of the vertex 1 in the hull of 1 and 3, where it is in the cell of 3"
    yield Finding("exact.control", text, aim, (aim, aim), unit="exact")
    for cell in cells(results["study"]):
        away, meets = cell.last("deviation"), cell.name != "some vertices in other cells"
        about = {"expected": at_least(0.9), "published": "all"} if meets else {"basis": "beyond"}
        text = f"{cell.name}: seeds without a deviation above {ROUNDING:g}"
        yield share(f"{cell.id}.straight", text, away <= ROUNDING, **about)
        yield mean(f"{cell.id}.deviation", f"{cell.name}: largest deviation", away)
