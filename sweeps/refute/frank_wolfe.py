"""Frank-Wolfe rate of hardmax attention: Theorem 3.1 of arXiv 2508.09628.

Hardmax attention moves each token x_i towards the vertex y_i of the convex hull K_t of all tokens that
minimises the linear function ⟨B x_i, ·⟩. With the step 2/(t + 2) this is a Frank-Wolfe step for
J(x) = ½⟨Bx, x⟩ on K_t. The usual rate assumes a fixed set that contains the minimiser 0. The hull K_t
shrinks, and 0 may leave it.
"""

from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from jaxattn.lab.refute import Claim, Integers, Sides, Space, exact, picture

STEPS = 600
# Rounding error of positions, in the search alone.
ROUNDING = 1e-9


def assumptions(instance):
    """Return the assumption that fails: 0 in the hull of the tokens, and B positive semidefinite."""
    tokens, B = exact.matrix(instance["tokens"]), exact.matrix(instance["B"])
    if (instance["B"] != instance["B"].T).any() or not exact.is_positive_semidefinite(B):
        return "B is not positive semidefinite"
    if exact.hull_weights(tokens, [Fraction(0)] * len(B)) is None:
        return "0 is outside the convex hull"
    return ""


def largest_eigenvalue(B):
    """Return a rational number that is at least λ_max(B), equal to it for a multiple of the identity."""
    size = len(B)
    guess = max(Fraction(0), *(B[i][i] for i in range(size)))
    while True:
        shifted = [[guess * (i == j) - B[i][j] for j in range(size)] for i in range(size)]
        if exact.is_positive_semidefinite(shifted):
            return guess
        near = Fraction(float(np.linalg.eigvalsh(np.array(B, float))[-1])) * (1 + Fraction(1, 2**40))
        guess = max(near, guess * (1 + Fraction(1, 2**40)))


def repaired_assumptions(instance):
    """Return the assumption that fails: also 0 in the hull of the tokens at all steps up to the violation."""
    if fails := assumptions(instance):
        return fails
    x, B = exact.matrix(instance["tokens"]), exact.matrix(instance["B"])
    for t in range(exact_sides(instance).witness["step"] + 1):
        if exact.hull_weights(x, [Fraction(0)] * len(B)) is None:
            return "0 leaves the convex hull"
        x = exact_step(x, B, t)[0]
    return ""


def exact_step(x, B, t):
    """Return the tokens after step t, and whether two distinct points minimise some linear function."""
    aims, tie = [], False
    for own in x:
        values = [exact.dot(exact.times(B, own), y) for y in x]
        best = {tuple(y) for y, value in zip(x, values, strict=True) if value == min(values)}
        tie |= len(best) > 1
        aims.append(min(best))
    step = Fraction(2, t + 2)
    moved = [
        [a + step * (b - a) for a, b in zip(own, aim, strict=True)] for own, aim in zip(x, aims, strict=True)
    ]
    return moved, tie


def exact_sides(instance):
    """Follow the tokens in rational arithmetic up to the first violation.

    Returns:
        J and its bound at the first step and token that violate the bound, or else at the last step. An
        instance is a boundary case if two distinct points minimise the linear function of some token before
        that step.
    """
    x, B = exact.matrix(instance["tokens"]), exact.matrix(instance["B"])
    spread = max(exact.dot(exact.minus(a, b), exact.minus(a, b)) for a in x for b in x)
    top, boundary = 2 * largest_eigenvalue(B) * spread, ""
    for t in range(STEPS):
        x, tie = exact_step(x, B, t)
        boundary = boundary or "two distinct points minimise the linear function of a token" * tie
        energies = [exact.dot(exact.times(B, own), own) / 2 for own in x]
        worst = max(range(len(x)), key=energies.__getitem__)
        sides = Sides(energies[worst], top / (t + 1), {"step": t, "token": worst}, boundary)
        if sides.violated or boundary:
            return sides
    return sides


def trajectory(tokens, B, steps=STEPS):
    """Return the tokens after each step, (steps, n, d), in floating point."""

    def step(x, t):
        x = x + 2 / (t + 2) * (x[jnp.argmin(x @ B @ x.T, axis=1)] - x)
        return x, x

    return jax.lax.scan(step, jnp.asarray(tokens, float), jnp.arange(steps))[1]


def repaired_score(instance):
    """Return the score if 0 stays in the hull up to rounding, as far as 32 directions show, else -inf."""
    x = trajectory(instance["tokens"], instance["B"].astype(float))
    projected = x @ directions(x.shape[2]).T
    stays = (projected.max(axis=1) >= -ROUNDING).all() & (projected.min(axis=1) <= ROUNDING).all()
    return jnp.where(stays, score(instance), -jnp.inf)


def directions(dim):
    """Return directions on which hulls are projected; both signs are enough on a line."""
    return jax.random.normal(jax.random.key(0), (32, dim))


def score(instance):
    """Return the log of the largest ratio of J to its bound, -inf if 0 is outside the hull.

    Whether 0 is in the hull is read from 32 directions here; `assumptions` decides it exactly.
    """
    tokens, B = instance["tokens"].astype(float), instance["B"].astype(float)
    spread = ((tokens[:, None] - tokens[None]) ** 2).sum(axis=-1).max()
    top = 2 * jnp.linalg.eigvalsh(B)[-1] * spread
    x = trajectory(tokens, B)
    energies = jnp.einsum("tia,ab,tib->ti", x, B, x) / 2
    ratio = (energies.max(axis=1) * (1 + jnp.arange(STEPS)) / top).max()
    projected = tokens @ directions(tokens.shape[1]).T
    inside = (projected.max(axis=0) >= 0).all() & (projected.min(axis=0) <= 0).all()
    return jnp.where(inside & (spread > 0), jnp.log(ratio), -jnp.inf)


def repair(batch):
    """Replace B by 1 or B Bᵀ + 1, and half of the last tokens by minus a weighted sum of the others."""
    tokens, A = batch["tokens"], batch["B"]
    weights = 1 + np.abs(tokens[:, :1, :1] + tokens[:, 1:2, :1]) % 3
    closed = -(tokens[:, :-1] * weights).sum(axis=1)
    half = np.arange(len(tokens)) % 2 == 0
    tokens[half, -1] = closed[half]
    identity = np.eye(A.shape[1], dtype=A.dtype)
    plain = (np.arange(len(A)) % 4 < 2)[:, None, None]
    return {"tokens": tokens, "B": np.where(plain, identity, A @ A.swapaxes(1, 2) + identity)}


def draw(instance, axes):
    """Draw the tokens over the first steps, in the plane or against the step."""
    path = np.asarray(trajectory(instance["tokens"], instance["B"], 40))
    path = np.concatenate([instance["tokens"][None], path])
    if path.shape[2] == 2:
        picture.draw_hull(axes, path[0])
        picture.draw_paths(axes, path)
        picture.draw_tokens(axes, path[0])
        axes.plot(0, 0, "r+")
    else:
        picture.draw_paths(axes, path[:, :, 0])
        axes.axhline(0, color="red", linewidth=0.8)
        axes.set(xlabel="step", ylabel="first coordinate")


claim = Claim(
    statement=(
        "For hardmax attention x_i(t+1) = x_i(t) + 2/(t+2) (y_i - x_i(t)), where y_i minimises "
        "⟨B x_i(t), y⟩ over the convex hull K_t of the tokens: ½⟨B x_i(t+1), x_i(t+1)⟩ ≤ "
        "2/(t+1) λ_max(B) diam(K_0)² for all t and i."
    ),
    source=(
        "arXiv 2508.09628v1 (ICML 2026), Theorem 3.1, with a constant matrix B. Read as transcribed in a "
        "Lean formalisation of the statement, not in the paper itself."
    ),
    hypothesis="B_t ⪰ 0, B_t - B_{t+1} ⪰ 0 (here B_t = B), γ_t = 2/(t+2), and 0 ∈ K_0.",
    repaired="The same with 0 ∈ K_t for all t.",
    space=Space(
        arrays={"tokens": Integers("token dim", -5, 5), "B": Integers("dim dim", -2, 2)},
        sizes=({"token": 2, "dim": 1}, {"token": 3, "dim": 2}, {"token": 4, "dim": 3}),
        repair=repair,
    ),
    score=score,
    assumptions=assumptions,
    exact=exact_sides,
    # A cloud that is symmetric about 0 has 0 in its hull at all steps.
    control={"tokens": [[2, 1], [-2, -1], [1, -2], [-1, 2]], "B": [[1, 0], [0, 1]]},
    check="checks/frank_wolfe.py",
    horizon=f"{STEPS} steps",
    draw=draw,
)

repaired = replace(
    claim,
    statement=f"{claim.statement} The origin is in K_t for all t.",
    source="The theorem with the hypothesis that its proof uses; see `claim`.",
    hypothesis=f"{claim.hypothesis} In addition, 0 ∈ K_t for all t up to the compared step.",
    repaired="",
    score=repaired_score,
    assumptions=repaired_assumptions,
    check="",
    # The projections of all steps take 600 KB per instance.
    batch=512,
)
