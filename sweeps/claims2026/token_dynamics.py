"""Hardmax attention as token dynamics: all tokens move towards vertices of their convex hull.

    x_i(t + 1) = x_i(t) + γ_t (y_i - x_i(t))

y_i is the token y that minimises or maximises ⟨B x_i(t), y⟩. The flow `hardmax` is a phase that trains the
(n, 2) array of tokens.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja

# Points closer to each other than this, relative to the initial diameter, count as one point.
SAME = 1e-12


class Nothing(ja.Dataset):
    """Placeholder data for n tokens, with targets 0."""


def none(*, tokens: int) -> Nothing:
    """Return placeholder data for n tokens in the plane. The targets are an (n, 2) array of zeros."""
    return Nothing(targets=jnp.zeros((tokens, 2)))


class Tokens(ja.Model[Nothing]):
    """Model whose parameters are the tokens x, an (n, 2) array, and the matrix B, a (2, 2) array.

    Attributes:
        cloud: distribution of the initial tokens. "normal": n - 1 normal tokens, and one token such that the
            convex hull contains 0. "symmetric": n/2 normal tokens and their negatives. "ellipse": n/2 tokens
            on the ellipse ⟨Bx, x⟩ = 1, all of which are vertices of the convex hull, and n/2 tokens inside
            it.
        metric: "identity" for B = I, or "random" for a random positive definite B.
    """

    cloud: Literal["normal", "symmetric", "ellipse"]
    metric: Literal["identity", "random"] = "identity"

    def init(self, key: Array, like: Nothing, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the initial tokens and B."""
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
        """Return the tokens. Since the targets are 0, the loss is the mean of ½‖x_i‖²."""
        return params["x"]


def aims(x: Array, B: Array, largest: bool) -> tuple[Array, Array]:
    """Return the index of the target of each token, and the lead of this target, as two (n,) arrays.

    The target of x_i is the token y with the largest ⟨B x_i, y⟩, or with the smallest if `largest` is False.
    The lead is the difference between this value and the next-best value. Tokens that coincide with the
    target are ignored.
    """
    values = (x @ B) @ x.T * (1 if largest else -1)
    aim = values.argmax(axis=1)
    away = jnp.abs(x[None] - x[aim][:, None]).max(axis=2)
    others = jnp.where(away <= SAME * jnp.abs(x).max(), -jnp.inf, values)
    return aim, values.max(axis=1) - others.max(axis=1)


def contains_origin(x: Array) -> Array:
    """Return True if the convex hull of planar points contains 0.

    It contains 0 if no gap between the angles of the points exceeds π.
    """
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
    """Move the tokens for `horizon` steps, and record them at approximately log-spaced steps.

    Each metric covers all steps up to the recorded one:

    - `worst_ratio`: the largest J(x_i(s + 1)) / (2 λ_max(B) diam²/(s + 1)), where J(x) = ½⟨Bx, x⟩ and diam is
      the initial diameter.
    - `worst_inside`: the same maximum, over the steps s before 0 leaves the convex hull.
    - `origin_inside`: 1 if 0 has not yet left the convex hull, else 0.
    - `deviation`: the largest distance of a token from v + ∏(1 - γ_s) (x_i(0) - v), where v is its first
      target.
    - `lead`: the smallest difference in ⟨B x_i, y⟩ between the best and the second-best target.

    Args:
        params: tokens x with shape (n, 2), and B with shape (2, 2).
        task: not used.
        points: number of recorded steps, including step 0.
        horizon: number of steps.
        aim: whether y_i is the token y with the smallest or the largest ⟨B x_i, y⟩.
        size: step size γ, or 0 for γ_t = 2/(t + 2).
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
