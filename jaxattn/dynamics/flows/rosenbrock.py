"""One step of a linearly implicit Rosenbrock pair of orders 4 and 3, for stiff autonomous equations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

ORDER = 4
GAMMA = 0.25
# Row i holds what stage i takes of the stages before it; the result takes A[5] and all of stage 5.
# fmt: off
A = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (1.544, 0.0, 0.0, 0.0, 0.0, 0.0),
    (0.9466785280815826, 0.2557011698983284, 0.0, 0.0, 0.0, 0.0),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817, 0.0, 0.0, 0.0),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 0.0, 0.0),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0, 0.0),
)
C = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (-5.6688, 0.0, 0.0, 0.0, 0.0, 0.0),
    (-2.430093356833875, -0.2063599157091915, 0.0, 0.0, 0.0, 0.0),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616, 0.0, 0.0, 0.0),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160, 0.0, 0.0),
    (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054, 0.0),
)
# fmt: on


class Solver(NamedTuple):
    """How to solve (1 - c J) x = b for several b.

    Attributes:
        solve: b (r,) and what is known to x (r,) and what is known then.
        known: what helps to solve further systems, at first; any pytree.
    """

    solve: Callable[[Array, Any], tuple[Array, Any]]
    known: Any = ()


def by_factors(jacobian: Float[Array, "r r"], c: Float[Array, ""]) -> Solver:
    """Prepare to solve (1 - c J) x = b by LU factors."""
    factors = jax.scipy.linalg.lu_factor(jnp.eye(len(jacobian), dtype=jacobian.dtype) - c * jacobian)
    return Solver(lambda b, known: (jax.scipy.linalg.lu_solve(factors, b), known))


def step(
    field: Callable[[Array], Array],
    y: Float[Array, " r"],
    f: Float[Array, " r"],
    solver: Callable[[Array], Solver],
    h: Float[Array, ""],
) -> tuple[Float[Array, " r"], Float[Array, " r"]]:
    """Step dy/ds = f(y) from y to y(s + h): five new evaluations, six solves with one matrix.

    (1 - h γ J) u_i = γ (h f(y_i) + Σ_{j<i} C_ij u_j),   y_i = y + Σ_{j<i} A_ij u_j,   i = 0 .. 5;

    the result is y_5 + u_5 and the error estimate u_5.

    Args:
        field: f.
        y: (r,); where to start.
        f: (r,); f(y).
        solver: c to how to solve (1 - c J) x = b, with J = ∂f/∂y at y.
        h: step length.

    Returns:
        y(s + h), of order 4, L-stable and stiffly accurate; and its error (r,) by the embedded order 3.

    Source:
        RODAS of Hairer & Wanner, Solving Ordinary Differential Equations II, section IV.7.
    """
    a, c = jnp.asarray(A, y.dtype), jnp.asarray(C, y.dtype)
    solve, known = solver(h * GAMMA)

    def stage(i: Array, state: tuple[Array, Any]) -> tuple[Array, Any]:
        stages, known = state
        right = h * field(y + a[i] @ stages) + c[i] @ stages
        found, known = solve(GAMMA * right, known)
        return stages.at[i].set(found), known

    first, known = solve(GAMMA * h * f, known)
    # A loop, not six copies: the field is the largest part of what has to be compiled.
    empty = jnp.zeros((len(A), y.shape[0]), y.dtype)
    stages, _ = jax.lax.fori_loop(1, len(A), stage, (empty.at[0].set(first), known))
    return y + a[-1] @ stages + stages[-1], stages[-1]
