"""One step of a linearly implicit Rosenbrock pair of orders 2 and 3, for stiff autonomous equations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

GAMMA = 1 / (2 + 2**0.5)
E32 = 6 + 2**0.5


def step(
    field: Callable[[Array], tuple[Array, Any]],
    y: Float[Array, "r"],
    f: Float[Array, "r"],
    jacobian: Float[Array, "r r"],
    h: Float[Array, ""],
) -> tuple[Array, tuple[Array, Any], Array]:
    """Step dy/ds = f(y) from y to y(s + h) with two new evaluations and one factorisation.

    With W = I - h γ J, γ = 1/(2 + √2), e = 6 + √2, f₀ = f(y):

        W k₁ = f₀;   W (k₂ - k₁) = f(y + h k₁/2) - k₁;   y₁ = y + h k₂;
        W k₃ = f(y₁) - e (k₂ - f(y + h k₁/2)) - 2 (k₁ - f₀);   error = h (k₁ - 2 k₂ + k₃)/6.

    Args:
        field: y -> (f(y), anything that came with it).
        y: (r,); where to start.
        f: (r,); f(y), known from the step before.
        jacobian: (r, r); J = ∂f/∂y at y.
        h: step length.

    Returns:
        y₁ of order 2, L-stable; field(y₁), the next step's start; and the error estimate (r,), order h³.

    Source:
        Shampine & Reichelt, The MATLAB ODE Suite, SIAM J. Sci. Comput. 18 (1997), section 3 (ode23s).
    """
    factors = jax.scipy.linalg.lu_factor(jnp.eye(y.shape[0], dtype=y.dtype) - h * GAMMA * jacobian)
    solve = lambda b: jax.scipy.linalg.lu_solve(factors, b)  # noqa: E731
    k1 = solve(f)
    middle, _ = field(y + h / 2 * k1)
    k2 = k1 + solve(middle - k1)
    end = y + h * k2
    f_end, extra = field(end)
    k3 = solve(f_end - E32 * (k2 - middle) - 2 * (k1 - f))
    return end, (f_end, extra), h / 6 * (k1 - 2 * k2 + k3)
