"""Point nearest to zero in a convex hull, computed by a traceable interior-point method."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxattn.core.arithmetic import sum_of_outer_products

_MAX_ITERATIONS = 60
# Complementarity, relative to ‖w‖², at which to stop: the active rows are then known, and rounding dominates.
_COMPLEMENTARITY = 1e-13
_REFINEMENTS = 3


class _State(NamedTuple):
    z: Array
    slack: Array
    multipliers: Array
    iteration: Array
    done: Array


def nearest_point(
    rows: Float[Array, "m r"],
) -> tuple[Float[Array, " m"], Int[Array, ""]]:
    """Find the point w nearest to zero in the convex hull of the rows of A. Works under vmap and jit.

        min_{w, ρ} ½ ‖w‖² - ρ  s.t.  A w - ρ = s ≥ 0,  with multipliers λ:  w = Aᵀ λ,  Σ λ = 1.

    If the rows are the embedding differences of a max-margin problem, its solution is p_mm = w / ‖w‖², and
    the margin is ‖w‖ = √ρ. The vector w is 0 if and only if no direction has a positive inner product with
    every row. In a vmapped batch, infeasible problems also converge. One iteration costs O(m r²).

    Args:
        rows: (m, r) float64; A, scaled to a maximum norm of about 1. Rows may repeat.

    Returns:
        λ (m,), up to a positive factor, and the number of iterations.

    Source: Mehrotra, On the implementation of a primal-dual interior point method, SIAM J. Optim. 2
    (1992).
    """
    # In terms of z = (w, ρ), the objective is ½ zᵀ diag(curvature) z + linear·z.
    matrix = jnp.concatenate([rows, -jnp.ones((len(rows), 1))], axis=1)
    linear = jnp.zeros(matrix.shape[1]).at[-1].set(-1.0)
    curvature = 1.0 + linear

    def body(state: _State) -> _State:
        z, slack, multipliers = state.z, state.slack, state.multipliers
        weighted = matrix * (multipliers / slack)[:, None]
        system = sum_of_outer_products(weighted, matrix) + jnp.diag(curvature)
        factor = jax.scipy.linalg.cho_factor(system, lower=True)
        primal = matrix @ z - slack
        dual = curvature * z + linear - matrix.T @ multipliers

        def direction(product: Array) -> tuple[Array, Array, Array]:
            dz = jax.scipy.linalg.cho_solve(
                factor, matrix.T @ ((product - multipliers * primal) / slack) - dual
            )
            ds = matrix @ dz + primal
            return dz, ds, (product - multipliers * ds) / slack

        def longest(ds: Array, dl: Array) -> Array:
            return jnp.minimum(_longest_step(slack, ds), _longest_step(multipliers, dl))

        product = slack * multipliers
        _, ds, dl = direction(-product)
        step = jnp.minimum(1.0, longest(ds, dl))
        reached = (slack + step * ds) @ (multipliers + step * dl) / product.sum()
        # After a short predictor step, the corrector is unreliable and could make the iteration cycle.
        second = jnp.where(step > 0.3, ds * dl, 0.0)
        dz, ds, dl = direction(reached**3 * product.mean() - product - second)
        step = jnp.minimum(1.0, 0.995 * longest(ds, dl))
        broken = ~jnp.isfinite(dz.sum() + dl.sum())
        step, dz, ds, dl = (jnp.where(broken, 0.0, x) for x in (step, dz, ds, dl))

        multipliers = multipliers + step * dl
        slack = slack + step * ds
        square = jnp.square(rows.T @ multipliers).sum()
        done = broken | (slack @ multipliers <= _COMPLEMENTARITY * square) | (square <= 1e-28)
        return _State(z + step * dz, slack, multipliers, state.iteration + 1, done)

    multipliers = jnp.full(len(rows), 1 / len(rows))
    w = rows.T @ multipliers
    rho = (rows @ w).min() - 1.0
    state = _State(jnp.append(w, rho), rows @ w - rho, multipliers, jnp.zeros((), int), jnp.zeros((), bool))
    state = jax.lax.while_loop(lambda s: ~s.done & (s.iteration < _MAX_ITERATIONS), body, state)
    # A row is active if its multiplier exceeds its slack divided by ‖w‖²; the multipliers sum to 1.
    tight = state.multipliers * jnp.square(state.z[:-1]).sum() > state.slack
    return _polish(rows, state.multipliers, tight), state.iteration


def _longest_step(x: Array, change: Array) -> Array:
    falling = change < 0
    return jnp.min(jnp.where(falling, x / jnp.where(falling, -change, 1.0), jnp.inf))


def _polish(
    rows: Float[Array, "m r"], multipliers: Float[Array, " m"], tight: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """Solve the problem with the active rows A as equalities. Return its multipliers, or the given ones.

    The given multipliers are returned if they are more accurate. The pseudoinverse of M = Aᵀ A is accurate to
    half the digits. Each refinement of A p = 1 and of Aᵀ λ = p doubles the number of accurate digits.
    """
    active = jnp.where(tight[:, None], rows, 0.0)
    size, basis = jnp.linalg.eigh(sum_of_outer_products(active, active))
    inverse = jnp.where(size > 1e-13 * size[-1], 1 / size, 0.0)

    def solve(target: Array) -> Array:
        return basis @ (inverse * (basis.T @ target))

    p = jnp.zeros(rows.shape[1])
    for _ in range(_REFINEMENTS):
        p = p + solve(active.T @ (tight - active @ p))
    exact = jnp.where(tight, multipliers, 0.0)
    exact = exact * (jnp.square(p).sum() / exact.sum())
    for _ in range(_REFINEMENTS):
        exact = exact + active @ solve(p - active.T @ exact)
    exact = jnp.maximum(exact, 0.0)

    def bounds(multipliers: Array) -> tuple[Array, Array]:
        w = rows.T @ multipliers
        length = jnp.sqrt(jnp.square(w).sum())
        return (rows @ w).min() / length, length / multipliers.sum()

    (lower, upper), (exact_lower, exact_upper) = bounds(multipliers), bounds(exact)
    return jnp.where((exact_lower > 0) & (exact_lower * upper > lower * exact_upper), exact, multipliers)
