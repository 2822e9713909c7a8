"""Mirror descent in ℓ_q. W converges to the attention SVM of its selection in this norm, and in no other."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from lq_margin import lq_max_margin

import jaxattn as ja
from jaxattn.attention.scores import from_query

NORMS = (1.75, 2.0, 3.0)


def mirror(step_size: optax.Schedule, *, q: float = 2.0) -> optax.GradientTransformation:
    """Return the optimiser w ← ∇ψ⁻¹(∇ψ(w) - η g / ‖g‖_q*), where ψ(w) = ‖w‖_q^q / q and 1/q + 1/q* = 1."""
    scale = optax.scale_by_learning_rate(step_size)

    def power(x: Array, exponent: Any) -> Array:
        return jnp.sign(x) * jnp.abs(x) ** exponent

    def update(gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        dual = q / (q - 1)
        norm = sum((jnp.abs(g) ** dual).sum() for g in jax.tree.leaves(gradients)) ** (1 / dual)
        moves, state = scale.update(jax.tree.map(lambda g: g / norm, gradients), state)
        return jax.tree.map(lambda w, m: power(power(w, q - 1) + m, 1 / (q - 1)) - w, params, moves), state

    return optax.GradientTransformation(scale.init, update)


def divergence(target: np.ndarray, w: np.ndarray, q: float) -> np.ndarray:
    """Compute the Bregman divergence D_ψ(target, w), where both arguments are normalised to ‖·‖_q = 1.

    `w` has shape (..., D).
    """
    w = w / np.linalg.norm(w, q, axis=-1, keepdims=True)
    target = target / np.linalg.norm(target, q)
    return 1 - (np.sign(w) * np.abs(w) ** (q - 1) * target).sum(axis=-1)


class Divergences(ja.PhaseProbe):
    """Bregman divergences of W from the ℓ_q attention SVMs of its selection, for several q.

    The potential of the divergence is that of the descent.
    """

    metrics: ClassVar[tuple[str, ...]] = tuple(
        f"{what}_{q:g}" for what in ("divergence_to", "gap") for q in NORMS
    )

    def skip_reason(self, task: Any, phase: ja.Phase) -> str | None:
        """Return a reason to skip the phase if it is not mirror descent, else None."""
        options = phase.options if isinstance(phase, ja.dynamics.Descent) else {}
        return None if "q" in options else "requires a descent in ℓ_q"

    def observe(self, phase: Any, state: Any) -> Array:
        """Return the entries of W for one seed, followed by q, as a (D + 1,) array."""
        return jnp.append(phase.parameter(state, "W").reshape(-1), phase.options["q"])

    def conclude(self, history: np.ndarray, params: Any, model: Any, loaded: Any) -> Any:
        """Solve the ℓ_q max-margin problems for each seed, and compare the path of W with the solutions."""
        data = jax.device_get(loaded.splits.train)
        each = [compare(path, *x) for path, *x in zip(history, data.X, data.z, data.targets, strict=True)]
        return tuple(jax.tree.map(lambda *x: np.stack(x), *found) for found in zip(*each, strict=True))


def compare(path: np.ndarray, X: np.ndarray, z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    """Return the divergences along the path of one seed, and the duality gaps of the max-margin problems."""
    path, norm = path[:, :-1], float(path[0, -1])
    scores = from_query(np.asarray(X, float), np.asarray(z, float), y)
    chosen = ja.theory.selection(path[-1], scores)
    best = {q: lq_max_margin(scores, chosen, q=q) for q in NORMS}
    on_the_way = {f"divergence_to_{q:g}": divergence(best[q].p, path, norm) for q in NORMS}
    return on_the_way, {f"gap_{q:g}": np.asarray(best[q].duality_gap, float) for q in NORMS}
