"""Gradient flow dp/dt = -∂L/∂p, with its path parametrised by arc length.

The flow slows down like e^(-margin ‖p‖), but its path does not depend on the parametrisation:

    dp/ds = -∂L/∂p / ‖∂L/∂p‖,   t(s) = ∫ ds / ‖∂L/∂p‖.

For large ‖p‖, the path is almost straight, so the step length grows like ‖p‖. Extending the path by a factor
of 100 in ‖p‖ is therefore cheap.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores, require_values
from jaxattn.core import backend
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import AnyArray
from jaxattn.core.settings import NotNegative, Positive, PositiveInt, Static
from jaxattn.data.corpus import Corpus
from jaxattn.dynamics.flows.arc_length import (
    GRADIENT_RTOL,
    Ends,
)
from jaxattn.dynamics.flows.seeds import (
    Inputs,
    Tolerance,
    flow_inputs,
    over_seeds,
    to_float64,
)
from jaxattn.dynamics.flows.stages import LinearPath, PathSoFar, begin_stages, extend, unit_keys
from jaxattn.dynamics.flows.ties import tied_selection
from jaxattn.theory.selection import Selection


@struct.dataclass(repr=False)
class Path(LinearPath):
    """Points on a path of gradient flow on p, in float64. For B seeds, all arrays have a leading axis B.

    Row 0 is the start, the last row is the end, and the rows in between are at log-spaced arc lengths.
    Rows that were not reached repeat the last state. The property `stop` is the name of `status`, and
    `reason` describes it in words.

    Attributes:
        p: (k, d); the points.
        arc_length: (k,); s, length of the path up to each row.
        norm: (k,); ‖p‖.
        log_gradient_norm: (k,); log ‖∂L/∂p‖, -inf if the gradient is exactly zero.
        log_time: (k,); log t, -inf at the start. Its error is mostly below 1e-3; see `gradient_rtol` in
            `exact_flow`.
        steps: (k,) int32; number of steps attempted up to each row.
        status: () int32; why the path ended, a `Stop`.
        accepted: () int32; number of accepted steps.
        rejected: () int32; number of rejected steps.
        columns: () int; number of columns in the Jacobian. Each costs one gradient evaluation per step.
        selection: the highest-scoring token in each sequence at the end, and the tokens that tie with it
            in the limit: their scores differ by a bounded amount while ‖p‖ grows.
    """

    p: AnyArray
    arc_length: AnyArray
    norm: AnyArray
    log_gradient_norm: AnyArray
    log_time: AnyArray
    steps: AnyArray
    status: AnyArray
    accepted: AnyArray
    rejected: AnyArray
    columns: AnyArray
    selection: Selection


@checked
def exact_flow(
    scores: Scores,
    p: Float[Array | np.ndarray, "..."],
    *,
    until_norm: Static[Positive] = 1e6,
    until_arc_length: Static[Positive] | None = None,
    until_direction: Static[NotNegative] = 0.0,
    max_steps: PositiveInt = 10_000,
    rtol: Static[Tolerance] = 1e-5,
    gradient_rtol: float = GRADIENT_RTOL,
    points: Annotated[int, msgspec.Meta(ge=3)] = 64,
    width: int | None = None,
) -> Path:
    """Compute the exact path of gradient flow on p up to a stopping condition.

    Keys and values are fixed. The loss is logistic for two classes, and cross-entropy for K > 2:

        L = (1/n) Σ_X ℓ(f(X), y_X),   f(X) = Σ_s q_s γ_s,   q = softmax of a = Φ p over X.

    All computations are in float64. Rounding breaks exact symmetries, for example if two tokens with equal
    values are exchangeable and p = 0; `rounding_sensitivity` detects such paths. The sine of the angle
    between p and dp/dt is the change in p/‖p‖ per e-fold of ‖p‖, and approximately the distance of p/‖p‖
    from its limit.

    Args:
        scores: keys (m, D), values (m,) for two classes or (m, K) for K > 2, and bags of n sequences. Any
            of them may have a leading axis of B seeds. `theory.scores.one_layer` builds scores from E and
            v.
        p: (D,), or (B, D); the starting point.
        until_norm: ‖p‖ at which to stop.
        until_arc_length: arc length at which to stop; required if `until_norm` is infinite.
        until_direction: sine of the angle between p and dp/dt at or below which to stop.
        max_steps: maximum number of steps, accepted or rejected.
        rtol: error tolerance per step, relative to ‖p‖ + 1/max ‖E_s‖, where E_s are the keys.
        gradient_rtol: maximum relative error in ‖∂L/∂p‖ per step, to keep `log_time` accurate. A tenth of it
            is the largest relative change of the time that halving an interval of its quadrature may cause.
            Pass infinity to save steps if only the path is needed.
        points: number of recorded points k ≥ 3.
        width: number of seeds to vmap. The default is all seeds on an accelerator, and 1 on a CPU: the seeds
            run one after another, and any number of them is compiled once.

    Returns:
        The path. If a seed fails (because of NaN or a step too short for float64), `status` records the
        failure and the path ends with the seed's last state. Other seeds are not affected.

    Raises:
        InputError: `scores.values` is None, the shapes do not match, or no stopping condition is finite.

    Source:
        Lemma 4.2 and Theorem 4.3 of arXiv 2505.17282.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2], [1, 2]], labels=[1, -1], vocab_size=3)
        >>> scores = ja.theory.Scores(np.eye(3), corpus, np.array([1.0, -1.0, 0.0]))
        >>> path = ja.dynamics.exact_flow(scores, np.zeros(3), until_norm=100.0)
        >>> ja.dynamics.Stop(int(path.status)).name, (path.p[-1] / path.norm[-1]).round(2).tolist()
        ('NORM', [0.41, 0.41, -0.82])
    """
    ends = ends_of(until_norm, until_arc_length, until_direction, rtol, gradient_rtol)
    return over_seeds(_follow, _inputs(scores, p), ends, max_steps, points=points, width=width)


def ends_of(
    until_norm: float,
    until_arc_length: float | None,
    until_direction: float,
    rtol: float,
    gradient_rtol: float = GRADIENT_RTOL,
) -> Ends:
    """Return the stopping conditions and error tolerances for `exact_flow`.

    Raises:
        InputError: a value is out of range, or no stopping condition is finite.
    """
    arc_length = math.inf if until_arc_length is None else until_arc_length
    if not (math.isfinite(until_norm) or math.isfinite(arc_length)):
        raise InputError(
            "until_norm and until_arc_length are both infinite; set at least one to a finite value"
        )
    if not gradient_rtol > 0:
        raise InputError(f"gradient_rtol: must be positive, got {gradient_rtol}")
    return Ends(until_norm, arc_length, until_direction, rtol, gradient_rtol)


def _inputs(scores: Scores, p: Array | np.ndarray) -> Inputs:
    require_values(scores)
    columns = scores.corpus.num_classes > 2
    parts = {"keys": (scores.keys, 2), "p": (p, 1), "values": (scores.values, 1 + columns)}
    return flow_inputs(parts, scores.corpus)


def begin_path(scores: Scores, p: Array, ends: Ends, points: int) -> PathSoFar:
    """Return a path for one seed that contains only its start. `continue_path` computes further rows."""
    keys, start, values, corpus = _inputs(scores, p).arrays
    with backend.float64():
        numbers = *to_float64((keys, start, values)), corpus, to_float64(ends)
        return begin_stages(*numbers, points, evaluate_start=True)


def continue_path(
    scores: Scores, path: PathSoFar, ends: Ends, max_steps: int | Array, row: int | Array
) -> PathSoFar:
    """Extend a path from `begin_path`, with the same scores, until it reaches the given row or ends."""
    with backend.float64():
        numbers = *to_float64((scores.keys, scores.values)), scores.corpus, path, to_float64(ends)
        return extend(*numbers, jnp.asarray(max_steps, jnp.int32), jnp.asarray(row + 1, jnp.int32))


def _follow(
    E: Array, p: Array, values: Array, corpus: Corpus, ends: Ends, max_steps: Array, points: int
) -> Path:
    initial = begin_stages(E, p, values, corpus, ends, points)
    path = extend(E, values, corpus, initial, ends, max_steps, jnp.asarray(points, jnp.int32))
    return _finish(E, corpus, path)


@jax.jit
def _finish(E: Array, corpus: Corpus, path: PathSoFar) -> Path:
    rows = path.rows
    return Path(
        p=path.p,
        arc_length=rows.arc_length,
        norm=path.norm,
        log_gradient_norm=rows.log_gradient_norm,
        log_time=rows.log_time,
        steps=rows.steps,
        status=path.status,
        accepted=path.integration.accepted,
        rejected=path.integration.rejected,
        columns=path.columns,
        selection=Selection(tied_selection(unit_keys(E, corpus)[0], path.start, corpus, path.ties.leader)),
    )
