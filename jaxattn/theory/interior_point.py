"""Many small max-margin problems at once: a primal-dual interior-point method in JAX."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxattn.theory.certificate import INFEASIBLE, Solution, bounds
from jaxattn.theory.least_distance import least_distance
from jaxattn.theory.support import polish

# Lanes solved together: more do not run faster on a CPU, and take more memory.
LANES = 64
_MAX_ITERATIONS = 60
# Below this relative complementarity, rounding takes over and the support is known.
_COMPLEMENTARITY = 1e-13


class _State(NamedTuple):
    z: Array
    slack: Array
    multipliers: Array
    iteration: Array
    done: Array


def nearest_point(
    rows: Float[Array, "m r"], present: Bool[Array, "m"]
) -> tuple[Float[Array, "r"], Float[Array, "m"], Float[Array, "m"], Int[Array, ""]]:
    """Find the point of the convex hull of the rows that is nearest to zero. Pure; vmap and jit it.

        min_{w, ρ} ½ ‖w‖² - ρ  s.t.  A w - ρ = s ≥ 0,  with multipliers λ:  w = Aᵀ λ,  Σ λ = 1.

    p_mm = w / ‖w‖², the margin is ‖w‖ = √ρ, and w = 0 if and only if nothing separates the selection: the
    problem always has a solution, so infeasible lanes of a batch end like all others. Every iteration
    solves one (r+1) × (r+1) system, twice (predictor and corrector), at O(m r²) cost.

    Args:
        rows: (m, r) float64; the differences A, longest about 1.
        present: (m,) bool; False for rows that are padding. At least one True.

    Returns:
        w (r,); λ (m,), 0 for padding; s (m,); iterations.

    Source: Mehrotra, On the implementation of a primal-dual interior point method (1992).
    """
    number = present.sum()
    matrix = jnp.where(present[:, None], jnp.concatenate([rows, -jnp.ones((len(rows), 1))], axis=1), 0.0)
    # The quadratic form is ½ ‖w‖² and the linear one -ρ, in the unknowns z = (w, ρ).
    curvature = jnp.ones(matrix.shape[1]).at[-1].set(0.0)
    linear = jnp.zeros(matrix.shape[1]).at[-1].set(-1.0)

    def longest_step(x, change):
        blocking = present & (change < 0)
        return jnp.min(jnp.where(blocking, x / jnp.where(blocking, -change, 1.0), jnp.inf))

    def body(state):
        z, slack, multipliers = state.z, state.slack, state.multipliers
        weight = jnp.where(present, multipliers / slack, 0.0)
        system = (matrix.T * weight) @ matrix + jnp.diag(curvature)
        factor = jax.scipy.linalg.cho_factor(system, lower=True)
        primal = jnp.where(present, matrix @ z - slack, 0.0)
        dual = curvature * z + linear - matrix.T @ multipliers

        def direction(product):
            push = jnp.where(present, (product - multipliers * primal) / slack, 0.0)
            dz = jax.scipy.linalg.cho_solve(factor, matrix.T @ push - dual)
            ds = jnp.where(present, matrix @ dz + primal, 0.0)
            return dz, ds, jnp.where(present, (product - multipliers * ds) / slack, 0.0)

        product = slack * multipliers
        mean = product.sum() / number
        _, ds, dl = direction(-product)
        step = jnp.minimum(1.0, jnp.minimum(longest_step(slack, ds), longest_step(multipliers, dl)))
        reached = jnp.sum((slack + step * ds) * (multipliers + step * dl) * present) / number
        dz, ds, dl = direction((reached / mean) ** 3 * mean - product - ds * dl)
        step = jnp.minimum(longest_step(slack, ds), longest_step(multipliers, dl))
        step = jnp.minimum(1.0, 0.995 * step)

        new = (z + step * dz, slack + step * ds, multipliers + step * dl)
        broken = ~jnp.isfinite(step * dz.sum() + dl.sum())
        z, slack, multipliers = (
            jnp.where(broken, a, b) for a, b in zip((z, slack, multipliers), new, strict=True)
        )
        length = jnp.sum((rows.T @ multipliers) ** 2)
        complementarity = jnp.sum(slack * multipliers)
        done = broken | (complementarity <= _COMPLEMENTARITY * length) | (length <= 1e-28)
        return _State(z, slack, multipliers, state.iteration + 1, done)

    multipliers = present / number
    w = rows.T @ multipliers
    products = rows @ w
    rho = jnp.min(jnp.where(present, products, jnp.inf)) - 1.0
    slack = jnp.where(present, products - rho, 0.0)
    state = _State(jnp.append(w, rho), slack, multipliers, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
    state = jax.lax.while_loop(lambda s: ~s.done & (s.iteration < _MAX_ITERATIONS), body, state)
    return state.z[:-1], state.multipliers, state.slack, state.iteration


_batched = jax.jit(jax.vmap(nearest_point))


def interior_point(problems: list[np.ndarray]) -> list[Solution]:
    """Solve many problems of one dimension and exactly finish each on its support.

    Args:
        problems: differences A of each problem, (m_i, r) float64, longest row about 1, m_i ≥ 1.

    Returns:
        p and the multipliers of each problem.
    """
    most = max(len(rows) for rows in problems)
    lanes = min(LANES, len(problems))
    solutions = []
    for begin in range(0, len(problems), lanes):
        chunk = problems[begin : begin + lanes]
        # A short last chunk is filled up with its own first problem, so that one program serves all.
        padded = np.zeros((lanes, most, chunk[0].shape[1]))
        present = np.zeros((lanes, most), bool)
        for lane in range(lanes):
            rows = chunk[lane if lane < len(chunk) else 0]
            padded[lane, : len(rows)], present[lane, : len(rows)] = rows, True
        with jax.enable_x64(True):
            w, multipliers, slack, iterations = (np.asarray(x) for x in _batched(padded, present))
        for lane, rows in enumerate(chunk):
            size = len(rows)
            solutions.append(
                _finish(rows, w[lane], multipliers[lane, :size], slack[lane, :size], int(iterations[lane]))
            )
    return solutions


def _finish(
    rows: np.ndarray, w: np.ndarray, multipliers: np.ndarray, slack: np.ndarray, iterations: int
) -> Solution:
    tight = multipliers > slack / max(w @ w, 1e-28)
    multipliers = polish(rows, multipliers, tight)
    lower, upper = bounds(rows, multipliers)
    if lower < 0 and upper > INFEASIBLE:  # rounding stopped it between a direction and a proof
        return least_distance(rows)
    return Solution(w, multipliers, iterations)
