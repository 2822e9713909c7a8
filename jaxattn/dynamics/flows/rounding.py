"""Check whether a computed path of gradient flow depends on rounding errors."""

from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores
from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError
from jaxattn.core.settings import Positive, PositiveInt, Static
from jaxattn.dynamics.flows.exact_flow import exact_flow
from jaxattn.dynamics.flows.seeds import Tolerance

# Length by which starts are moved, relative to ‖p‖ + 1 / max ‖E_s‖: some thousand rounding errors.
_MOVED = 1e-12
# Distance between paths, relative to the same length, beyond which they are different paths. Generic paths
# differ by 2e-6 or less, and unstable ones by 0.02 or more.
_APART = 1e-3


class Sensitivity(NamedTuple):
    """Distances between a path and paths whose initial points differ by rounding errors.

    Attributes:
        deviation: (directions,); the largest distance from the path, relative to ‖p‖ + 1/max ‖E_s‖.
        unstable: True if a deviation exceeds 1e-3: rounding errors then decide where the computed path goes.
    """

    deviation: Float[np.ndarray, " directions"]
    unstable: bool


@checked
def rounding_sensitivity(
    scores: Scores,
    p: Float[Array | np.ndarray, "..."],
    *,
    until_norm: Static[Positive] = 1e4,
    until_arc_length: Static[Positive] | None = None,
    max_steps: PositiveInt = 10_000,
    rtol: Static[Tolerance] = 1e-5,
    points: Annotated[int, msgspec.Meta(ge=3)] = 64,
    directions: Annotated[int, msgspec.Meta(ge=1)] = 2,
    seed: int = 0,
) -> Sensitivity:
    """Compare the path of `exact_flow` with paths whose initial points differ by rounding errors.

    A flow that preserves a symmetry, such as interchangeable tokens, or that approaches a saddle of the loss,
    can be unstable: a perturbation ε of the initial point grows like ε exp(∫ λ ds), where λ > 0 is an
    eigenvalue of the velocity's Jacobian. Rounding errors then determine which token wins, and the status of
    the path does not show this. This function moves p by 1e-12 · (‖p‖ + 1/max ‖E_s‖) in random directions,
    and computes all paths.

    Args:
        scores: keys (m, D), values (m,) or (m, K), and bags of n sequences, for one seed.
        p: (D,); the starting point.
        until_norm: ‖p‖ at which to stop.
        until_arc_length: arc length at which to stop; required if `until_norm` is infinite.
        max_steps: maximum number of steps per path.
        rtol: error tolerance per step.
        points: number of recorded points, at which the paths are compared.
        directions: number of random directions, each of which requires a path.
        seed: seed of the random directions.

    Returns:
        The deviation in each direction. `unstable` = False does not prove stability: on an unstable path,
        long steps may damp a perturbation, so that all computed paths preserve the symmetry.

    Raises:
        InputError: p is not a vector; see also `exact_flow`.

    Example:
        Tokens 0 and 1 can be exchanged, and the token with the higher score wins.

        >>> corpus = ja.data.from_sequences([[0, 1, 2]], labels=[1], vocab_size=3)
        >>> scores = ja.theory.Scores(np.eye(3), corpus, np.array([1.0, 1.0, 0.0]))
        >>> ja.dynamics.rounding_sensitivity(scores, np.zeros(3), until_norm=1e3).unstable
        True
        >>> ja.dynamics.rounding_sensitivity(scores, np.array([0.1, 0, 0]), until_norm=1e3).unstable
        False
    """
    if np.ndim(p) != 1:
        raise InputError(f"p: must be a vector, got shape {np.shape(p)}; check one seed at a time")
    p = np.asarray(p, float)
    unit = 1 / max(np.linalg.norm(np.asarray(scores.keys, float), axis=1).max(), np.finfo(float).tiny)
    moves = np.random.default_rng(seed).normal(size=(directions, len(p)))
    moves *= _MOVED * (np.linalg.norm(p) + unit) / np.linalg.norm(moves, axis=1, keepdims=True)
    paths = exact_flow(
        scores,
        np.stack([p, *(p + moves)]),
        until_norm=until_norm,
        until_arc_length=until_arc_length,
        max_steps=max_steps,
        rtol=rtol,
        points=points,
    )
    path, others, norm = paths.p[0], paths.p[1:], paths.norm[0]
    # Rows have the same arc lengths up to the end of a path, and then repeat it. A path that continues from
    # there, for example from a saddle, therefore deviates.
    distance = np.linalg.norm(others - path, axis=2) / (norm + unit)
    deviation = distance.max(axis=1)
    return Sensitivity(deviation, bool((deviation > _APART).any()))
