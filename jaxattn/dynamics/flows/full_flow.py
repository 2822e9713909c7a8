"""Gradient flow on E, p and v together, with the loss itself as its clock.

On the way to zero loss the flow slows down like the loss L, so neither time nor a number of steps measures
how far it has come. By ℓ = -log L it is the same path:

    dθ/dℓ = -L ∇L / ‖∇L‖²,   ds/dℓ = L / ‖∇L‖,   dt/dℓ = L / ‖∇L‖².
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Leaf
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import Ended, Stop
from jaxattn.dynamics.flows.exact_flow import check_settings
from jaxattn.dynamics.flows.joint_coordinates import joint_force
from jaxattn.dynamics.flows.seeds import of_params, of_seeds, over_seeds

# ℓ - ℓ_0 of the first row after the start.
_FIRST = 1e-3


@struct.dataclass(repr=False)
class FullPath(Ended):
    """Points along gradient flow on E, p and v, float64; with a leading seed axis B for B seeds.

    E, p and v are in r coordinates, x = basis · x_r: those of their span if V + 2 < d, else R^d itself.
    Row 0 is the start, the others lie at log-spaced losses; rows that were not reached repeat the last one
    that was.

    Attributes:
        E: (k, V, r).
        p: (k, r).
        v: (k, r).
        basis: (d, r), orthonormal columns.
        log_loss: (k,); log L.
        arc_length: (k,); s, length of the path so far.
        log_time: (k,); log t, -inf at the start.
        drift: (k,); ‖Q - Q_0‖ / ‖Q_0‖ for Q = EᵀE - p pᵀ - v vᵀ, which the flow conserves: the error of the
            integration, as far as this quantity shows it.
        status: () int32; why the path ended, a `Stop`: LOSS, or STEP_BUDGET, or FAILED.
    """

    E: Leaf
    p: Leaf
    v: Leaf
    basis: Leaf
    log_loss: Leaf
    arc_length: Leaf
    log_time: Leaf
    drift: Leaf
    status: Leaf


@struct.dataclass
class _Point:
    """What is integrated: the parameters, the arc length, and log(1 + t)."""

    E: Leaf
    p: Leaf
    v: Leaf
    arc_length: Leaf
    log_time: Leaf


def full_flow(
    params: Any,
    corpus: Corpus,
    *,
    until_log_loss: float = math.log(1e-12),
    max_steps: int = 100_000,
    rtol: float = 1e-8,
    points: int = 64,
    width: int | None = None,
) -> FullPath:
    """Follow gradient flow on E, p and v together, logistic loss, until the loss is as small as asked for.

        dE/dt = -∂L/∂E,   dp/dt = -∂L/∂p,   dv/dt = -∂L/∂v.

    Forces are formed in the log domain, so that losses like e^(-10,000) are within reach.

    Args:
        params: E (V, d), p (d,), v (d,). Any of them may have a leading axis of B seeds.
        corpus: n sequences of two classes over V tokens; one, or B with a leading axis.
        until_log_loss: stop at this value of log L.
        max_steps: stop after this many steps, accepted or rejected.
        rtol: error allowed per step, relative to every number, and to 1/100 for small ones.
        points: number of rows k ≥ 3 of the path.
        width: seeds integrated side by side; chosen for the backend by default.

    Returns:
        The path. A seed whose loss stays above, such as one whose labels no parameters fit, ends with status
        STEP_BUDGET or FAILED at the last row it reached, and does not stop the others.

    Raises:
        InputError: more than two classes, shapes that do not fit, an infinite end; inside a caller's jit
            without float64, which the integrator of diffrax cannot be lowered in.

    Source:
        The gradients of arXiv 2505.17282; the conserved quantity as for layers of a linear network
        (Du, Hu, Lee 2018, arXiv 1806.00900).
    """
    check_settings(rtol, points)
    if not math.isfinite(until_log_loss):
        raise InputError(f"until_log_loss: {until_log_loss}; give a finite one")
    if max_steps < 1:
        raise InputError(f"max_steps: {max_steps}; give at least 1")
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((params, corpus)))
    if traced and jnp.result_type(float) != jnp.float64:
        raise InputError(
            "full_flow inside jit or vmap needs float64: call jax.config.update('jax_enable_x64', True) "
            "first, or call it outside, where it takes many seeds by itself"
        )
    inputs, settings = of_seeds(of_params(params, corpus), corpus), (until_log_loss, rtol)
    return over_seeds(_follower(max_steps), inputs, settings, max_steps, points=points, width=width)


@functools.cache
def _follower(max_steps: int) -> Callable[..., FullPath]:
    """Make the function that follows one seed; the library wants the number of steps before it compiles."""
    return functools.partial(_follow, max_steps)


def _follow(
    max_steps: int,
    E: Array,
    p: Array,
    v: Array,
    corpus: Corpus,
    settings: Sequence[Array],
    _: Array,
    points: int,
) -> FullPath:
    import diffrax  # half a second that only this flow needs

    until_log_loss, rtol = settings
    V, d = E.shape
    rows = jnp.concatenate([E, p[None], v[None]])
    if d > V + 2:
        basis, coefficients = jnp.linalg.qr(rows.T)
        rows = coefficients.T
    else:
        basis = jnp.eye(d)
    start = _Point(rows[:V], rows[V], rows[V + 1], jnp.zeros(()), jnp.zeros(()))
    begin = -_log_loss(start, corpus)
    # A start whose loss is as small already is the whole path.
    left = jnp.maximum(-until_log_loss - begin, 0)
    clock = jnp.append(0, jnp.geomspace(jnp.minimum(_FIRST, left / 2), left, points - 1))
    clock = jnp.where(left > 0, clock, 0).at[-1].set(left)
    found = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda _, point, corpus: _velocity(point, corpus)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=left,
        dt0=None,
        y0=start,
        args=corpus,
        saveat=diffrax.SaveAt(ts=clock),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
        max_steps=max_steps,
        throw=False,
    )
    reached = jnp.isfinite(found.ys.arc_length)
    last = jnp.maximum(reached.sum() - 1, 0)
    at = jax.tree.map(lambda x: x[jnp.where(reached, jnp.arange(points), last)], found.ys)
    ended = jnp.where(found.result == diffrax.RESULTS.max_steps_reached, Stop.STEP_BUDGET, Stop.FAILED)
    return FullPath(
        E=at.E,
        p=at.p,
        v=at.v,
        basis=basis,
        log_loss=jax.vmap(_log_loss, in_axes=(0, None))(at, corpus),
        arc_length=at.arc_length,
        log_time=at.log_time + jnp.log(-jnp.expm1(-at.log_time)),
        drift=jax.vmap(lambda point: _distance(point, start))(at),
        status=jnp.where(reached.all(), Stop.LOSS, ended).astype(jnp.int32),
    )


def _velocity(point: _Point, corpus: Corpus) -> _Point:
    """Compute dθ/dℓ, ds/dℓ and d log(1 + t)/dℓ."""
    E, p, v = point.E, point.p, point.v
    forces = joint_force(corpus, E @ p, E @ v)
    F, G = forces.scores, forces.head
    of_E, of_p, of_v = jnp.outer(F, p) + jnp.outer(G, v), F @ E, G @ E
    square = sum(jnp.square(x).sum() for x in (of_E, of_p, of_v))
    log_loss = _log_loss(point, corpus)
    # ‖∇L‖ = e^log_scale √square.
    factor = jnp.exp(log_loss - forces.log_scale) / square
    log_rate = log_loss - 2 * forces.log_scale - jnp.log(square)
    return _Point(
        E=factor * of_E,
        p=factor * of_p,
        v=factor * of_v,
        arc_length=factor * jnp.sqrt(square),
        # Stages of a step too long may overshoot to t < 0, whose exponential is beyond all numbers.
        log_time=jnp.exp(log_rate - jnp.maximum(point.log_time, 0)),
    )


def _log_loss(point: _Point, corpus: Corpus) -> Array:
    """Compute log L without underflow."""
    bags = corpus.bags
    scores, values = point.E @ point.p, point.E @ point.v
    attention = joint_force(corpus, scores, values).of_scores.attention
    (logits,) = bags.sum(attention * values[bags.index.astype(jnp.int32)])
    margins = corpus.targets * logits
    # log log(1 + x) = log x up to rounding for x = e^(-36).
    safe = jnp.minimum(margins, 36.0)
    log_losses = jnp.where(margins > 36, -margins, jnp.log(jax.nn.softplus(-safe)))
    return jax.scipy.special.logsumexp(log_losses) - jnp.log(corpus.num_examples)


def _distance(point: _Point, start: _Point) -> Array:
    def conserved(x: _Point) -> Array:
        return x.E.T @ x.E - jnp.outer(x.p, x.p) - jnp.outer(x.v, x.v)

    return jnp.linalg.norm(conserved(point) - conserved(start)) / jnp.linalg.norm(conserved(start))
