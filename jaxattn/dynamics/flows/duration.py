"""Time that the flow takes for a step, by adaptive quadrature of 1/‖∂L/∂p‖ along the step.

The length of a step is limited by the error of the path. On a straight path, the length is not limited, while
‖∂L/∂p‖ may change by many orders of magnitude within a step. The path within the step is known by
interpolation, however, so computing the time requires further gradients but no further steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Maximum number of times that an interval is halved, and number of evaluations in a step after which no
# interval is halved.
_HALVINGS, _MOST = 40, 400


class _State(NamedTuple):
    """Integral over [right, 1], and the nodes further left, whose intervals are waiting.

    If x is larger at 0 than at 1, θ is replaced by 1 - θ.

    Attributes:
        log_sum: (); log ∫ exp(x(θ)) dθ over [right, 1].
        right: (); θ.
        x_right: (); x(right).
        nodes: (k,); θ of the waiting nodes, ascending in the first `waiting` entries.
        x_nodes: (k,); x at these nodes.
        waiting: () int32.
        evaluations: () int32.
    """

    log_sum: Float[Array, ""]
    right: Float[Array, ""]
    x_right: Float[Array, ""]
    nodes: Float[Array, " k"]
    x_nodes: Float[Array, " k"]
    waiting: Int[Array, ""]
    evaluations: Int[Array, ""]


def log_time(
    log_speed: Callable[[Array], Array],
    log_gradient_norms: tuple[Float[Array, ""], Float[Array, ""]],
    log_before: Float[Array, ""],
    log_h: Float[Array, ""],
    tolerance: float | Float[Array, ""],
    wanted: Bool[Array, ""],
) -> Float[Array, ""]:
    """Compute log ∫ ds / ‖∂L/∂p‖ up to the end of a step, or before it if the step is not accepted.

    The slope of the log gradient norm is not used. It is accurate at every point, but at the end of a long
    stiff step it is not the slope along the path: a deviation from the slow path that turns the velocity by
    the angle α decays at a rate λ, and changes the slope by λ α², and the log gradient norm only by α²/2.

    Args:
        log_speed: maps θ, the fraction of the step, to the log of the gradient norm.
        log_gradient_norms: log of the gradient norm at the start and at the end of the step.
        log_before: log of the time before the step; -inf if it is zero.
        log_h: log of the length of the step.
        tolerance: tolerance of the quadrature; see `log_integral`.
        wanted: False if the step is not accepted.
    """

    def log_slowness(log_gradient_norm: Array) -> Array:
        # If the gradient is exactly zero, time is infinite; a finite exponent avoids NaN.
        return -jnp.maximum(log_gradient_norm, -1e300)

    start, end = map(log_slowness, log_gradient_norms)
    log_mean = log_integral(
        lambda fraction: -log_speed(fraction), start, end, log_before - log_h, tolerance, wanted
    )
    return jnp.logaddexp(log_before, log_h + log_mean)


def log_integral(
    function: Callable[[Array], Array],
    start: Float[Array, ""],
    end: Float[Array, ""],
    log_before: Float[Array, ""],
    tolerance: float | Float[Array, ""],
    wanted: Bool[Array, ""],
) -> Float[Array, ""]:
    """Compute log ∫₀¹ exp(x(θ)) dθ, where exp(x) may overflow.

    On an interval, the rule is exact if x is linear. The interval is halved until both halves together
    change the integral by at most `tolerance`, relative to the sum of exp(log_before), both halves, and all
    finished intervals, or until a limit on halvings or evaluations is reached. The error of the integral is
    not bounded. One Richardson extrapolation then raises the order to 4. Intervals are handled from the end
    where x is larger, so that intervals whose contribution is negligible are not refined.

    Args:
        function: maps θ to x(θ). A value that is not finite is interpolated.
        start: x(0).
        end: x(1).
        log_before: log of the integral before this one, -inf if there is none.
        tolerance: the maximum relative change by halving one interval.
        wanted: False to evaluate nothing and return -inf.
    """
    flip = start > end
    nodes = jnp.zeros(_HALVINGS + 1, end.dtype)
    initial = _State(
        log_sum=jnp.full_like(end, -jnp.inf),
        right=jnp.ones_like(end),
        x_right=jnp.where(flip, start, end),
        nodes=nodes,
        x_nodes=nodes.at[0].set(jnp.where(flip, end, start)),
        waiting=wanted.astype(jnp.int32),
        evaluations=jnp.asarray(0, jnp.int32),
    )

    def halve(state: _State) -> _State:
        last = state.waiting - 1
        left, x_left = state.nodes[last], state.x_nodes[last]
        middle, width = (left + state.right) / 2, state.right - left
        x_middle = function(jnp.where(flip, 1 - middle, middle))
        x_middle = jnp.where(jnp.isfinite(x_middle), x_middle, (x_left + state.x_right) / 2)
        whole = jnp.log(width) + _log_mean_exp(x_left, state.x_right)
        halves = jnp.logaddexp(_log_mean_exp(x_left, x_middle), _log_mean_exp(x_middle, state.x_right))
        halves += jnp.log(width / 2)
        known = jnp.logaddexp(log_before, jnp.logaddexp(state.log_sum, halves))
        change = jnp.abs(jnp.exp(whole - known) - jnp.exp(halves - known))
        wide = width > 2.0**-_HALVINGS
        refine = (change > tolerance) & wide & (state.evaluations < _MOST)
        better = halves + jnp.log1p((1 - jnp.minimum(jnp.exp(whole - halves), 2)) / 3)
        # Entries from `waiting` onwards are unused, so the middle may be stored even if it is not needed.
        return _State(
            log_sum=jnp.where(refine, state.log_sum, jnp.logaddexp(state.log_sum, better)),
            right=jnp.where(refine, state.right, left),
            x_right=jnp.where(refine, state.x_right, x_left),
            nodes=state.nodes.at[state.waiting].set(middle, mode="drop"),
            x_nodes=state.x_nodes.at[state.waiting].set(x_middle, mode="drop"),
            waiting=jnp.where(refine, state.waiting + 1, last),
            evaluations=state.evaluations + 1,
        )

    return jax.lax.while_loop(lambda state: state.waiting > 0, halve, initial).log_sum


def _log_mean_exp(x: Array, y: Array) -> Array:
    """Compute log ∫₀¹ exp(x + (y - x) θ) dθ without overflow or cancellation."""
    drop = jnp.abs(x - y)
    far = drop > 1e-4
    safe = jnp.where(far, drop, 1)
    return jnp.maximum(x, y) + jnp.where(far, jnp.log(-jnp.expm1(-safe) / safe), -drop / 2 + drop**2 / 24)
