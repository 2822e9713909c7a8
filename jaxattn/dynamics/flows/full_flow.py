"""Gradient flow on E, p and v together, parametrised by the loss.

As the loss L goes to zero, the flow slows down in proportion to L, so neither time nor the number of
steps is a useful measure of progress. The path is therefore parametrised by ℓ = -log L. For θ =
(E, p, v), arc length s and time t,

    dθ/dℓ = -L ∇L / ‖∇L‖²,   ds/dℓ = L / ‖∇L‖,   dt/dℓ = L / ‖∇L‖².
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, no_type_check

import jax
import jax.numpy as jnp
import msgspec
from flax import struct
from jax import Array

from jaxattn.base.model import Params
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import AnyArray, PathArray
from jaxattn.core.settings import PositiveInt, Static
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import FlowPath, Stop
from jaxattn.dynamics.flows.joint_coordinates import joint_force
from jaxattn.dynamics.flows.seeds import Tolerance, flow_inputs, over_seeds, parts_from_params

# Value of ℓ - ℓ_0 at the first recorded point after the start.
_FIRST = 1e-3
_UNTIL_LOG_LOSS = math.log(1e-12)


@struct.dataclass(repr=False)
class FullPath(FlowPath):
    """Points on a path of gradient flow on E, p and v, in float64.

    For B seeds, all arrays have a leading axis B.

    The vectors x in E, p and v are stored as r coordinates x_r, with x = basis · x_r. These are
    coordinates of the span of E, p and v if V + 2 < d, else of R^d. The rows are at log-spaced values of
    log(L_0/L). Rows that were not reached repeat the last state.

    Attributes:
        E: (k, V, r).
        p: (k, r).
        v: (k, r).
        basis: (d, r), with orthonormal columns.
        log_loss: (k,); log L.
        arc_length: (k,); s, length of the path up to each row.
        log_time: (k,); log t, -inf at the start.
        drift: (k,); ‖Q - Q_0‖ / ‖Q_0‖ for the conserved quantity Q = EᵀE - p pᵀ - v vᵀ, an estimate of
            the integration error.
        status: () int32; why the path ended, a `Stop`: LOSS, STEP_BUDGET or FAILED.
    """

    E: AnyArray
    p: AnyArray
    v: AnyArray
    basis: AnyArray
    log_loss: AnyArray
    arc_length: AnyArray
    log_time: AnyArray
    drift: AnyArray
    status: AnyArray

    @property
    def reached(self) -> PathArray:
        """Row at which the path ended, a scalar."""
        return (self.arc_length < self.arc_length[-1]).sum()

    def params_at(self, row: Array, train: Sequence[str]) -> dict[str, PathArray]:
        """Return E, p and v at a row, in R^d."""
        return {name: getattr(self, name)[row] @ self.basis.T for name in train}

    def metrics_at(self, row: Array) -> dict[str, PathArray]:
        """Return ‖p‖, log L, the arc length, log t and the drift of the conserved quantity at a row."""
        found = self.at(row, "log_loss", "arc_length", "log_time", "drift")
        return {"p_norm": jnp.linalg.norm(self.p[row]), **found}


@no_type_check
@struct.dataclass
class _Point:
    """Variables to integrate: the parameters, the arc length, and log(1 + t)."""

    E: Array
    p: Array
    v: Array
    arc_length: Array
    log_time: Array


@checked
def full_flow(
    params: Params,
    corpus: Corpus,
    *,
    until_log_loss: Static[float] = _UNTIL_LOG_LOSS,
    max_steps: Static[PositiveInt] = 100_000,
    rtol: Static[Tolerance] = 1e-8,
    points: Annotated[int, msgspec.Meta(ge=3)] = 64,
    width: int | None = None,
) -> FullPath:
    """Compute the path of gradient flow on E, p and v down to a given loss.

        dE/dt = -∂L/∂E,   dp/dt = -∂L/∂p,   dv/dt = -∂L/∂v.

    The loss is logistic. Forces are computed in the log domain, so losses as small as e^(-10,000) can be
    reached.

    Args:
        params: E (V, d), p (d,), v (d,). Any of them may have a leading axis of B seeds.
        corpus: n sequences from two classes over V tokens; either one corpus, or B corpora with a leading
            axis.
        until_log_loss: log L at which to stop.
        max_steps: maximum number of steps, accepted or rejected.
        rtol: error tolerance per step, for the root mean square over coordinates x of error / (|x| + 1/100).
        points: number of recorded points k ≥ 3.
        width: number of seeds to vmap. The default is all seeds on an accelerator, and 1 on a CPU: the seeds
            run one after another, and any number of them is compiled once.

    Returns:
        The path. If the loss of a seed stays above the target, for example because its labels cannot be
        fitted, its path ends with status STEP_BUDGET or FAILED. Other seeds are not affected.

    Raises:
        InputError: there are more than two classes, the shapes do not match, the target loss is not finite,
            `max_steps` is below 1, or the function is called inside a jit with float64 disabled, where
            diffrax cannot be lowered.

    Source:
        Gradients of arXiv 2505.17282; conserved quantity as for the layers of a linear network (Du, Hu, Lee
        2018, arXiv 1806.00900).

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> params = ja.models.one_layer.init(jax.random.key(0), vocab_size=3, dim=4)
        >>> path = ja.dynamics.full_flow(params, corpus, until_log_loss=-2.0)
        >>> round(float(path.log_loss[-1]), 3)
        -2.0
    """
    if not math.isfinite(until_log_loss):
        raise InputError(f"until_log_loss: must be finite, got {until_log_loss}")
    traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((params, corpus)))
    if traced and jnp.result_type(float) != jnp.float64:
        raise InputError(
            "full_flow: float64 is not enabled inside jit or vmap; call jax.config.update('jax_enable_x64', "
            "True) first, or call full_flow outside jit and vmap, where it accepts one or many seeds"
        )
    inputs, settings = flow_inputs(parts_from_params(params, corpus), corpus), (until_log_loss, rtol)
    return over_seeds(_follower(max_steps), inputs, settings, max_steps, points=points, width=width)


@functools.cache
def _follower(max_steps: int) -> Callable[..., FullPath]:
    """Compile the function that integrates one seed. diffrax requires `max_steps` at compile time."""
    return jax.jit(functools.partial(_follow, max_steps), static_argnames="points")


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
    import diffrax  # takes half a second to import, and only this flow needs it

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
    # If the initial loss is already below the target, the path consists only of its initial point.
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
        # Stages of an overly long step may overshoot to t < 0, where the exponential overflows.
        log_time=jnp.exp(log_rate - jnp.maximum(point.log_time, 0)),
    )


def _log_loss(point: _Point, corpus: Corpus) -> Array:
    bags = corpus.bags
    scores, values = point.E @ point.p, point.E @ point.v
    attention = joint_force(corpus, scores, values).of_scores.attention
    (logits,) = bags.sum(attention * values[bags.index.astype(jnp.int32)])
    margins = corpus.targets * logits
    # For x = e^(-36), log log(1 + x) = log x up to rounding.
    safe = jnp.minimum(margins, 36.0)
    log_losses = jnp.where(margins > 36, -margins, jnp.log(jax.nn.softplus(-safe)))
    return jax.scipy.special.logsumexp(log_losses) - jnp.log(corpus.num_examples)


def _distance(point: _Point, start: _Point) -> Array:
    def conserved(x: _Point) -> Array:
        return x.E.T @ x.E - jnp.outer(x.p, x.p) - jnp.outer(x.v, x.v)

    return jnp.linalg.norm(conserved(point) - conserved(start)) / jnp.linalg.norm(conserved(start))
