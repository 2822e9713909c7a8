"""Hardmax attention with steps 2/(t + 2) breaks J = ½⟨Bx, x⟩ ≤ 2 λ diam² / (t + 1), where λ ≥ λ_max(B)."""

from fractions import Fraction

INSTANCE = {'tokens': [[3], [-1]], 'B': [[1]]}
CONTROL = {'tokens': [[2, 1], [-2, -1], [1, -2], [-1, 2]], 'B': [[1, 0], [0, 1]]}


def first_violation(tokens, B):
    """Return (step, J, bound) for the first violation in 600 steps, or None."""

    def form(u, v):
        return sum(B[i][j] * u[i] * v[j] for i in axes for j in axes)

    axes, x = range(len(B)), [tuple(map(Fraction, row)) for row in tokens]
    if len(B) == 1 and not min(x) <= (0,) <= max(x):
        raise SystemExit("0 is outside the convex hull")
    largest = max(sum(map(abs, row)) for row in B)  # of the absolute row sums; 1 for the identity
    bound = 2 * largest * max(sum((u[i] - v[i]) ** 2 for i in axes) for u in x for v in x)
    for t in range(600):
        aims = [{y for y in x if form(u, y) == min(form(u, z) for z in x)} for u in x]
        if max(map(len, aims)) > 1:
            raise SystemExit(f"two points tie at step {t}")
        step = Fraction(2, t + 2)
        x = [
            tuple(a + step * (b - a) for a, b in zip(u, min(y), strict=True))
            for u, y in zip(x, aims, strict=True)
        ]
        if (J := max(form(u, u) for u in x) / 2) > bound / (t + 1):
            return t, float(J), bound / (t + 1)
    return None


found, control = first_violation(**INSTANCE), first_violation(**CONTROL)
print(f"{INSTANCE}: step, J > bound: {found}; control {CONTROL}: {control}")
raise SystemExit(found is None or control is not None)
