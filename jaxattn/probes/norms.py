"""The norm of every parameter."""

from typing import ClassVar

import optax
from jaxtyping import Array

from jaxattn.base import Probe
from jaxattn.core.params_by_name import get, names
from jaxattn.probes.seen import Seen


class Norms(Probe, frozen=True, kw_only=True):
    """The Euclidean norm of every parameter, Frobenius' for matrices: norm_E, norm_p, ..."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {}

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure norm_θ for every parameter θ, trained or not."""
        return {f"norm_{name}": optax.tree.norm(get(seen.params, name)) for name in names(seen.params)}
