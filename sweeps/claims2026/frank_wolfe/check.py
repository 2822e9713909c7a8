"""Theorem 3.1 of arXiv 2508.09628v1: exact counterexamples, and the fraction of clouds that satisfy it."""

from fractions import Fraction

from jaxattn.lab.books import Finding, at_least, at_most, cells, share

# Tokens of which 0 is a convex combination, with B = I.
EXACT = {
    "3-1": [(3,), (-1,)],
    "4-1": [(4,), (-1,)],
    "space": [(3, -4, 3), (1, 1, -1), (1, 1, -1), (-8, -1, 2)],
}
STEPS_OF = {"3-1": 1000, "4-1": 1000, "space": 40}


def dot(a, b):
    """Return the inner product of two rational vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def worst(tokens, steps):
    """Follow the tokens exactly; return the largest ratio of energy to bound, and the first step above 1.

    Raises:
        ValueError: two distinct points tie, so that the theorem does not determine the step.
    """
    x = [tuple(Fraction(c) for c in token) for token in tokens]
    diameter = max(dot(d, d) for a in x for b in x for d in [tuple(p - q for p, q in zip(a, b, strict=True))])
    largest, first = Fraction(0), None
    for t in range(steps):
        moved = []
        for own in x:
            values = [dot(own, y) for y in x]
            aims = {y for y, value in zip(x, values, strict=True) if value == min(values)}
            if len(aims) > 1:
                raise ValueError(f"step {t}: two distinct points tie")
            gamma, (aim,) = Fraction(2, t + 2), aims
            moved.append(tuple(a + gamma * (b - a) for a, b in zip(own, aim, strict=True)))
        x = moved
        ratio = max(dot(a, a) for a in x) / 2 * (t + 1) / (2 * diameter)
        first = t if first is None and ratio > 1 else first
        largest = max(largest, ratio)
    return largest, first


def exact_number(id, text, value, **about):
    """Return a finding for an exact number, whose interval is the number itself."""
    return Finding(id, text, float(value), (float(value), float(value)), unit="exact", **about)


def check(results):
    """Compare the energies with their bounds, exactly for three clouds and in floating point for many."""
    bound = {"expected": at_most(1), "published": "≤ 1", "source": "Theorem 3.1"}
    for name, tokens in EXACT.items():
        ratio, first = worst(tokens, STEPS_OF[name])
        words = f"tokens {', '.join(str(token[0] if len(token) == 1 else token) for token in tokens)}"
        text = f"{words}: largest energy / bound within {STEPS_OF[name]} steps"
        yield exact_number(f"exact.{name}", text, ratio, **bound)
        yield exact_number(f"first.{name}", f"{words}: first step at which the bound is broken", first)
    for cell in cells(results["study"]):
        ratio = cell.last("worst_ratio")
        text = f"{cell.name}: clouds whose energies stay below the bound"
        generic = cell.name in ("3 tokens", "8 tokens", "8 tokens, random B")
        about = {"published": "all", "basis": "published" if generic else "beyond"}
        yield share(f"{cell.id}.holds", text, ratio <= 1, expected=at_least(0.95), **about)
        text = f"{cell.name}: clouds that satisfy the bound as long as 0 is in the hull"
        holds = cell.last("worst_inside") <= 0.5
        yield share(f"{cell.id}.repaired", text, holds, expected=at_least(0.9), basis="beyond")
        text = f"{cell.name}: clouds whose hull still contains 0 at the end"
        yield share(f"{cell.id}.inside", text, cell.last("origin_inside") == 1)
