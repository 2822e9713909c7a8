"""Hardmax attention as token dynamics: every token moves towards a vertex of the tokens' convex hull.

    x_i(t + 1) = x_i(t) + γ_t (y_i - x_i(t))

y_i is the token with the smallest or the largest ⟨B x_i(t), y⟩. The flow `hardmax` is a phase whose trained
parameter is the (n, 2) array of tokens.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja

# Points closer to each other than this, relative to the initial diameter, count as one point.
SAME = 1e-12


class Nothing(ja.Dataset):
    """Placeholder data for n tokens, whose targets are 0."""


def none(*, tokens: int) -> Nothing:
    """Return placeholder data for n tokens in the plane, with an (n, 2) array of zeros as targets."""
    return Nothing(targets=jnp.zeros((tokens, 2)))


class Tokens(ja.Model[Nothing]):
    """Tokens x (n, 2) and the matrix B (2, 2).

    Attributes:
        cloud: "normal", normal tokens, the last of which closes the hull around 0; "symmetric", n/2 normal
            tokens and their negatives; or "ellipse", n/2 tokens on the ellipse ⟨Bx, x⟩ = 1, each of which is
            a vertex, and n/2 tokens inside their hull.
        metric: "identity" or "random" for B.
    """

    cloud: Literal["normal", "symmetric", "ellipse"]
    metric: Literal["identity", "random"] = "identity"

    def init(self, key: Array, like: Nothing, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the tokens and B."""
        n = like.num_examples
        first, second, third = jax.random.split(key, 3)
        root = jax.random.normal(third, (2, 2), dtype)
        B = jnp.eye(2, dtype=dtype) if self.metric == "identity" else root @ root.T + jnp.eye(2, dtype=dtype)
        if self.cloud == "symmetric":
            half = jax.random.normal(first, (n // 2, 2), dtype)
            return {"x": jnp.concatenate([half, -half]), "B": B}
        if self.cloud == "normal":
            x = jax.random.normal(first, (n - 1, 2), dtype)
            weights = jax.random.uniform(second, (n - 1,), dtype, 0.5, 2.0)
            # 0 = (Σ w_i x_i + x_n) / (Σ w_i + 1).
            return {"x": jnp.concatenate([x, -(weights @ x)[None]]), "B": B}
        angles = 2 * jnp.pi * jax.random.uniform(first, (n // 2,), dtype)
        circle = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        ellipse = jnp.linalg.solve(jnp.linalg.cholesky(B).T, circle.T).T
        mixture = jax.random.dirichlet(second, jnp.ones(n // 2, dtype), (n // 2,), dtype)
        return {"x": jnp.concatenate([ellipse, mixture @ ellipse]), "B": B}

    def outputs(self, params: dict[str, Array], data: Nothing) -> Array:
        """Return the tokens, so that the loss is the mean of ½‖x_i‖²."""
        return params["x"]


def aims(x: Array, B: Array, largest: bool) -> tuple[Array, Array]:
    """Return each token's target token and the target's smallest lead over other points, both (n,)."""
    values = (x @ B) @ x.T * (1 if largest else -1)
    aim = values.argmax(axis=1)
    away = jnp.abs(x[None] - x[aim][:, None]).max(axis=2)
    others = jnp.where(away <= SAME * jnp.abs(x).max(), -jnp.inf, values)
    return aim, values.max(axis=1) - others.max(axis=1)


def contains_origin(x: Array) -> Array:
    """Return True if the convex hull of planar points contains 0, so that no gap between angles exceeds π."""
    angles = jnp.sort(jnp.arctan2(x[:, 1], x[:, 0]))
    gaps = jnp.diff(angles, append=angles[:1] + 2 * jnp.pi)
    return gaps.max() <= jnp.pi + 1e-9


@ja.declare(train=["x"])
def hardmax(
    params: dict[str, Array],
    task: ja.dynamics.Task,
    *,
    points: int = 40,
    horizon: int = 1000,
    aim: Literal["smallest", "largest"] = "smallest",
    size: float = 0.0,
) -> ja.dynamics.RecordedPath:
    """Move the tokens for `horizon` steps and record them at approximately log-spaced steps.

    The metrics cover all steps up to t: `worst_ratio`, the largest J(x_i(s + 1)) / (2 λ_max(B) diam²/(s + 1))
    with J = ½⟨Bx, x⟩; `worst_inside`, the same over the steps s at which 0 has not yet left the hull;
    `origin_inside`, whether 0 has not yet left the hull; `deviation`, the largest distance of a token from
    v + ∏(1 - γ_s) (x_i(0) - v), where v is its first aim; and `lead`, the smallest difference between the
    best and the second-best aim.

    Args:
        params: tokens x (n, 2) and B (2, 2).
        task: not used.
        points: number of recorded steps, including step 0.
        horizon: last step.
        aim: whether y_i has the smallest or the largest ⟨B x_i, y⟩.
        size: γ; 0 for γ_t = 2/(t + 2).
    """
    start, B = params["x"], params["B"]
    diameter = jnp.linalg.norm(start[:, None] - start[None], axis=2).max()
    unit = 2 * jnp.linalg.eigvalsh(B)[-1] * diameter**2
    vertex = start[aims(start, B, aim == "largest")[0]]

    def move(t: Array, carried: dict[str, Array]) -> dict[str, Array]:
        x = carried["x"]
        target, lead = aims(x, B, aim == "largest")
        gamma = jnp.where(size > 0, size, 2 / (t + 2))
        inside = carried["inside"] & contains_origin(x)
        x = x + gamma * (x[target] - x)
        product = carried["product"] * (1 - gamma)
        ratio = ((x @ B) * x).sum(axis=1).max() / 2 * (t + 1) / unit
        off = jnp.linalg.norm(x - vertex - product * (start - vertex), axis=1).max()
        return {
            "x": x,
            "product": product,
            "inside": inside,
            "worst": jnp.maximum(carried["worst"], ratio),
            "worst_inside": jnp.where(
                inside, jnp.maximum(carried["worst_inside"], ratio), carried["worst_inside"]
            ),
            "off": jnp.maximum(carried["off"], off),
            "lead": jnp.minimum(carried["lead"], lead.min()),
        }

    zero = jnp.zeros((), start.dtype)
    begin = {"x": start, "product": zero + 1, "inside": jnp.asarray(True), "lead": zero + jnp.inf}
    begin |= dict.fromkeys(("worst", "worst_inside", "off"), zero)
    steps = jnp.rint(jnp.geomspace(1, horizon, points - 1)).astype(int)
    steps = jnp.concatenate([jnp.zeros(1, int), steps])

    def row(carried: dict[str, Array], ends: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        carried = jax.lax.fori_loop(ends[0], ends[1], move, carried)
        return carried, carried

    ends = jnp.stack([jnp.concatenate([steps[:1], steps[:-1]]), steps], axis=1)
    _, rows = jax.lax.scan(row, begin, ends)
    metrics = {
        "time": 1.0 * steps,
        "worst_ratio": rows["worst"],
        "worst_inside": rows["worst_inside"],
        "origin_inside": 1.0 * rows["inside"],
        "deviation": rows["off"],
        "lead": rows["lead"],
    }
    return ja.dynamics.RecordedPath(params={"x": rows["x"]}, metrics=metrics, status=ja.dynamics.Stop.TIME)
