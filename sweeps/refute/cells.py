"""Negative control: hardmax attention with a constant B ≻ 0 moves every token straight to a fixed vertex.

Theorem 4.2 of arXiv 2508.09628: if every vertex of the convex hull is in its own cell only, and every token
in exactly one cell C_j = {x: ⟨Bx, v_j⟩ is the largest}, then
x_i(t) - v_σ(i) = ∏(1 - γ_s) (x_i(0) - v_σ(i)).
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.lab.refute import Claim, Integers, Sides, Space, exact

# Denominator of the steps γ_t = k/5, and deviation above which floating point reports a violation.
PARTS, DEVIATION = 5, 1e-9


def argmax(x, B):
    """Return the positions of the distinct points that maximise ⟨B x_i, ·⟩, for each token i."""
    aims = []
    for own in x:
        values = [exact.dot(exact.times(B, own), y) for y in x]
        largest = max(values)
        aims.append(sorted({tuple(y) for y, value in zip(x, values, strict=True) if value == largest}))
    return aims


def assumptions(instance):
    """Return the assumption that fails: B ≻ 0, 0 < γ < 1, vertices in their own cells, and no ties."""
    x, B = exact.matrix(instance["tokens"]), exact.matrix(instance["B"])
    if (instance["B"] != instance["B"].T).any() or not exact.is_positive_semidefinite(B):
        return "B is not positive definite"
    if exact.determinant(B) == 0:
        return "B is not positive definite"
    if min(instance["steps"]) < 1 or max(instance["steps"]) >= PARTS:
        return "a step is not between 0 and 1"
    for own, aims in zip(x, argmax(x, B), strict=True):
        if len(aims) > 1:
            return "a token is in two cells"
        others = [y for y in x if y != own]
        is_vertex = not others or exact.hull_weights(others, own) is None
        if is_vertex and aims[0] != tuple(own):
            return "a vertex is not in its own cell"
    return ""


def exact_sides(instance):
    """Return the largest squared distance between a token and its predicted position, and 0."""
    start, B = exact.matrix(instance["tokens"]), exact.matrix(instance["B"])
    aims = [own[0] for own in argmax(start, B)]
    x, shrunk = start, Fraction(1)
    worst = Sides(Fraction(0), Fraction(0))
    for t, parts in enumerate(instance["steps"].tolist()):
        step, now = Fraction(parts, PARTS), argmax(x, B)
        if any(len(own) > 1 for own in now):
            return Sides(Fraction(1), Fraction(0), {"step": t}, "a token has two aims at a later step")
        x = [
            [a + step * (b - a) for a, b in zip(own, y[0], strict=True)]
            for own, y in zip(x, now, strict=True)
        ]
        shrunk *= 1 - step
        for token, (own, first, aim) in enumerate(zip(x, start, aims, strict=True)):
            predicted = [v + shrunk * (a - v) for a, v in zip(first, aim, strict=True)]
            rest = exact.minus(own, predicted)
            if exact.dot(rest, rest) > worst.left:
                worst = Sides(exact.dot(rest, rest), Fraction(0), {"step": t, "token": token})
    return worst


def vertices(x):
    """Return whether each point in the plane, (n, 2), is a vertex of the hull, and no other one is there."""
    rest = x[None] - x[:, None]
    same = (rest == 0).all(axis=2)
    angle = jnp.where(same, jnp.inf, jnp.arctan2(rest[..., 1], rest[..., 0]))
    angle = jnp.sort(angle, axis=1)
    count = (~same).sum(axis=1)
    last = jnp.take_along_axis(angle, jnp.maximum(count - 1, 0)[:, None], axis=1)[:, 0]
    gaps = jnp.diff(angle, axis=1)
    inner = jnp.where(jnp.isfinite(gaps), gaps, 0).max(axis=1)
    return jnp.maximum(inner, 2 * jnp.pi - (last - angle[:, 0])) > jnp.pi + 1e-9


def score(instance):
    """Return the largest deviation from the prediction, or minus the smallest gap of an argmax."""
    x, B = instance["tokens"].astype(float), instance["B"].astype(float)
    flat = jnp.concatenate([x, jnp.zeros_like(x)], axis=1)[:, :2]
    values = x @ B @ x.T
    aim = values.argmax(axis=1)
    same = (x[None] == x[aim][:, None]).all(axis=2)
    gap = jnp.min(values.max(axis=1) - jnp.where(same, -jnp.inf, values).max(axis=1))
    at_home = (x[aim] == x).all(axis=1)
    inside = (gap > 1e-9) & (at_home | ~vertices(flat)).all() & (jnp.linalg.det(B) > 0.5)

    def step(carry, parts):
        now, shrunk = carry
        gamma = parts / PARTS
        now = now + gamma * (now[(now @ B @ now.T).argmax(axis=1)] - now)
        shrunk = shrunk * (1 - gamma)
        return (now, shrunk), jnp.abs(now - x[aim] - shrunk * (x - x[aim])).max()

    _, far = jax.lax.scan(step, (x, jnp.ones(())), instance["steps"].astype(float))
    return jnp.where(inside, jnp.where(far.max() > DEVIATION, far.max(), -gap), -jnp.inf)


def repair(batch):
    """Replace B by B Bᵀ + 1."""
    B = batch["B"]
    return {**batch, "B": B @ B.swapaxes(1, 2) + np.eye(B.shape[1], dtype=B.dtype)}


claim = Claim(
    statement=(
        "Hardmax attention with constant B ≻ 0: x_i(t) - v_σ(i) = ∏(1 - γ_s) (x_i(0) - v_σ(i)) for all "
        "tokens, where v_σ(i) is the vertex whose cell contains x_i(0): the squared distance from this "
        "position is ≤ 0."
    ),
    source=(
        "arXiv 2508.09628v1 (ICML 2026), Theorem 4.2 and Proposition 4.5. Read as transcribed in a Lean "
        "formalisation of the statement, not in the paper itself."
    ),
    hypothesis="γ_t ∈ (0, 1), every vertex is in its own cell only, and every token is in exactly one cell.",
    space=Space(
        arrays={
            "tokens": Integers("token dim", -5, 5),
            "B": Integers("dim dim", -2, 2),
            "steps": Integers("time", 1, PARTS - 1),
        },
        sizes=(
            {"token": 3, "dim": 1, "time": 8},
            {"token": 4, "dim": 2, "time": 8},
            {"token": 6, "dim": 2, "time": 8},
        ),
        repair=repair,
    ),
    score=score,
    assumptions=assumptions,
    exact=exact_sides,
    control={"tokens": [[2], [-1], [1]], "B": [[1]], "steps": [1, 2, 3, 4, 1, 2, 3, 4]},
    horizon="8 steps",
)
