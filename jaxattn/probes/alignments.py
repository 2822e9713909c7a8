"""How parameters lie to each other and to the direction in which training moves them."""

from itertools import combinations
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.base import Probe
from jaxattn.core.params_by_name import get, names
from jaxattn.probes.seen import Seen


def cosine(x: Float[Array, "*shape"], y: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Compute x·y / (‖x‖ ‖y‖) over all entries, of any size; NaN if one of them is zero."""
    # Squares of gradients underflow late in training.
    x, y = (z / jnp.abs(z).max() for z in (x, y))
    return (x * y).sum() / jnp.sqrt((x * x).sum() * (y * y).sum())


class Alignments(Probe, frozen=True, kw_only=True):
    """Cosines between parameters of one shape (cos_p_v), and with the descent direction (cos_p_descent).

    Parameters with one row per token are left out of the pairs. A parameter that has found its direction
    has a cosine of 1 with -∂L/∂θ.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {}

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure cos_θ_θ' for every pair of equal shape, and cos_θ_descent for every trained θ."""
        params, rows = seen.params, seen.model.token_rows
        alike = [
            (one, other)
            for one, other in combinations([x for x in names(params) if x not in rows], 2)
            if get(params, one).shape == get(params, other).shape
        ]
        _, gradients = seen.loss_and_gradients
        between = {f"cos_{x}_{y}": cosine(get(params, x), get(params, y)) for x, y in alike}
        return between | {
            f"cos_{name}_descent": cosine(get(params, name), -gradients[name]) for name in seen.train
        }
