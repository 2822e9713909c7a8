"""One step of a linearly implicit Rosenbrock pair of orders 4 and 3, for stiff autonomous equations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

GAMMA = 0.25
ORDER = 4
# fmt: off
A = (
    (),
    (1.544000000000000,),
    (0.9466785280815826, 0.2557011698983284),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
)
C = (
    (),
    (-5.668800000000000,),
    (-2.430093356833875, -0.2063599157091915),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
    (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054),
)
# fmt: on


def step(
    field: Callable[[Array], Array],
    y: Float[Array, "r"],
    f: Float[Array, "r"],
    jacobian: Float[Array, "r r"],
    h: Float[Array, ""],
) -> tuple[Float[Array, "r"], Float[Array, "r"]]:
    """Step dy/ds = f(y) from y to y(s + h): five new evaluations, one factorisation, six solves.

    (1 - h γ J) u_i = γ (h f(y_i) + Σ_{j<i} C_ij u_j),   y_i = y + Σ_{j<i} A_ij u_j,   i = 1 .. 5,

    then y_6 = y_5 + u_5, the result is y_6 + u_6 and the error estimate u_6.

    Args:
        field: f.
        y: (r,); where to start.
        f: (r,); f(y).
        jacobian: (r, r); J = ∂f/∂y at y.
        h: step length.

    Returns:
        y(s + h), of order 4, L-stable and stiffly accurate; and the error (r,) of the embedded order 3.

    Source:
        RODAS of Hairer & Wanner, Solving Ordinary Differential Equations II, section IV.7.
    """
    factors = jax.scipy.linalg.lu_factor(jnp.eye(y.shape[0], dtype=y.dtype) - h * GAMMA * jacobian)
    stages: list[Array] = []
    at, value = y, f
    for i, row in enumerate(C):
        if i == len(A):
            at = at + stages[-1]
        elif i > 0:
            at = y + _combine(A[i], stages)
        if i > 0:
            value = field(at)
        right = h * value + _combine(row, stages)
        stages.append(jax.scipy.linalg.lu_solve(factors, GAMMA * right))
    return at + stages[-1], stages[-1]


def _combine(coefficients, stages):
    return sum((c * u for c, u in zip(coefficients, stages, strict=True)), start=jnp.zeros(()))
