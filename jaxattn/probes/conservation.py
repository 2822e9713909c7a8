"""A quantity that gradient flow on all of E, p and v conserves, and how far training drifts off it.

Where the loss depends on E, p and v through E p and E v alone,

    d/dt Q = 0,   Q = EᵀE - Σ_h p_h p_hᵀ - Σ_k v_k v_kᵀ,

over all queries and all heads. Steps of size η drift in proportion to η.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxattn.base import Phase, Probe, Task
from jaxattn.core import params_by_name
from jaxattn.probes.seen import Seen


class Conservation(Probe, frozen=True, kw_only=True):
    """The drift ‖Q - Q_0‖ / ‖Q_0‖ since the start of a phase that trains all of E, p and v."""

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {"conservation_drift": r"$\Vert Q-Q_0\Vert\,/\,\Vert Q_0\Vert$"}

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants E, p and v trained: Q moves where one of them is held fixed."""
        return None if {"E", "p", "v"} <= set(phase.train) else "wants a phase that trains E, p and v"

    def remember(self, params: Any) -> Float[Array, "m d"] | Float[Array, "d d"]:
        """Keep of the start what is smaller: Q_0 (d, d), or the m rows of E, p and v, (m, d)."""
        rows, signs = _rows(params)
        return rows if len(rows) < rows.shape[1] else _quantity(rows, signs)

    def measure(self, seen: Seen) -> dict[str, Array]:
        """Measure conservation_drift."""
        rows, signs = _rows(seen.params)
        return {"conservation_drift": _drift(rows, signs, seen.memory)}


def _drift(rows: Array, signs: Array, memory: Array) -> Array:
    if len(rows) >= rows.shape[1]:
        start, now = memory, _quantity(rows, signs)
    else:
        # In an orthonormal basis of all rows there are 2m coordinates. Gram matrices of the rows would give
        # the same norm as a difference of large squares, and lose half of the digits of a small drift.
        both = jnp.linalg.qr(jnp.concatenate([rows, memory]).T, mode="r").T
        now, start = (_quantity(x, signs) for x in jnp.split(both, 2))
    return jnp.linalg.norm(now - start) / jnp.linalg.norm(start)


def _rows(params: Any) -> tuple[Float[Array, "m d"], Float[Array, "m"]]:
    """Stack the rows of E, all queries and all heads, with their signs in Q.

    Queries are (d,) or (H, d); heads (d,), (d, K), (H, d) or (H, d, K).
    """
    E, p, v = (params_by_name.get(params, name) for name in ("E", "p", "v"))
    dim = E.shape[1]
    queries, heads = p.reshape(-1, dim), jnp.moveaxis(v, p.ndim - 1, -1).reshape(-1, dim)
    rows = jnp.concatenate([E, queries, heads])
    return rows, jnp.where(jnp.arange(len(rows)) < len(E), 1, -1).astype(E.dtype)


def _quantity(rows: Float[Array, "m d"], signs: Float[Array, "m"]) -> Float[Array, "d d"]:
    return (rows * signs[:, None]).T @ rows
