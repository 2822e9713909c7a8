"""Probes of parameters: norms, angles, what the flow conserves of them, and the sharpness of the loss."""

from collections.abc import Callable
from itertools import combinations
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from matfree import decomp

from jaxattn.base import Phase, Probe, Task
from jaxattn.base.probe import ProbeContext
from jaxattn.core.pytrees import get, names, replaced
from jaxattn.core.settings import PositiveInt
from jaxattn.models.gradients import loss_and_gradients


class Norms(Probe, frozen=True, kw_only=True):
    """The Euclidean norm of every vector and the Frobenius norm of every matrix: norm_E, norm_p, ..."""

    rotation_invariant: ClassVar[bool] = True

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure norm_θ for every parameter θ, trained or not."""
        return {f"norm_{name}": optax.tree.norm(get(context.params, name)) for name in names(context.params)}


def cosine(x: Float[Array, "*shape"], y: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Compute x·y / (‖x‖ ‖y‖) over all entries, of any size; NaN if one of them is zero."""
    # Squares of gradients underflow late in training.
    x, y = (z / jnp.abs(z).max() for z in (x, y))
    return (x * y).sum() / jnp.sqrt((x * x).sum() * (y * y).sum())


class Alignments(Probe, frozen=True, kw_only=True):
    """Cosines between parameters of the same shape (cos_p_v), and between a parameter and its descent
    direction (cos_p_descent).

    Parameters with one row per token are not compared with each other. Once the direction of θ has converged,
    its cosine with -∂L/∂θ is 1.
    """

    rotation_invariant: ClassVar[bool] = True

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure cos_θ_θ' for every pair of equal shape, and cos_θ_descent for every trained θ."""
        params, rows = context.params, context.model.token_rows
        alike = [
            (one, other)
            for one, other in combinations([x for x in names(params) if x not in rows], 2)
            if get(params, one).shape == get(params, other).shape
        ]
        _, gradients = context.loss_and_gradients
        between = {f"cos_{x}_{y}": cosine(get(params, x), get(params, y)) for x, y in alike}
        return between | {
            f"cos_{name}_descent": cosine(get(params, name), -gradients[name]) for name in context.train
        }


class Conservation(Probe, frozen=True, kw_only=True):
    """The drift ‖Q - Q_0‖ / ‖Q_0‖ of a conserved quantity Q in a phase that trains E, p and v.

    If the loss depends on E, p and v only through E p and E v, gradient flow conserves

        Q = EᵀE - Σ_h p_h p_hᵀ - Σ_k v_k v_kᵀ,   d/dt Q = 0,

    summed over all queries and heads. With steps of size η the drift is proportional to η.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {"conservation_drift": r"$\Vert Q-Q_0\Vert\,/\,\Vert Q_0\Vert$"}

    def why_not(self, task: Task, phase: Phase) -> str | None:
        """Say that it wants E, p and v trained: Q moves where one of them is held fixed."""
        return None if {"E", "p", "v"} <= set(phase.train) else "wants a phase that trains E, p and v"

    def remember(self, params: Any) -> Float[Array, "m d"] | Float[Array, "d d"]:
        """Keep of the start what is smaller: Q_0 (d, d), or the m rows of E, p and v, (m, d)."""
        rows, signs = _rows(params)
        return rows if len(rows) < rows.shape[1] else _quantity(rows, signs)

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure conservation_drift."""
        rows, signs = _rows(context.params)
        return {"conservation_drift": _drift(rows, signs, context.memory)}


def _drift(rows: Array, signs: Array, memory: Array) -> Array:
    if len(rows) >= rows.shape[1]:
        start, now = memory, _quantity(rows, signs)
    else:
        # In an orthonormal basis of all rows there are 2m coordinates. Gram matrices of the rows would give
        # the same norm as a difference of large squares, and lose half of the digits of a small drift.
        both = jnp.linalg.qr(jnp.concatenate([rows, memory]).T, mode="r").T
        now, start = (_quantity(x, signs) for x in jnp.split(both, 2))
    return jnp.linalg.norm(now - start) / jnp.linalg.norm(start)


def _rows(params: Any) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    """Stack the rows of E, all queries and all heads, with their signs in Q.

    Queries are (d,) or (H, d); heads (d,), (d, K), (H, d) or (H, d, K).
    """
    E, p, v = (get(params, name) for name in ("E", "p", "v"))
    dim = E.shape[1]
    queries, heads = p.reshape(-1, dim), jnp.moveaxis(v, p.ndim - 1, -1).reshape(-1, dim)
    rows = jnp.concatenate([E, queries, heads])
    return rows, jnp.where(jnp.arange(len(rows)) < len(E), 1, -1).astype(E.dtype)


def _quantity(rows: Float[Array, "m d"], signs: Float[Array, " m"]) -> Float[Array, "d d"]:
    return (rows * signs[:, None]).T @ rows


def largest_eigenvalue(
    product: Callable[[Array], Array], start: Float[Array, " N"], iterations: int
) -> Float[Array, ""]:
    """Estimate the largest eigenvalue of a symmetric matrix from products with it.

    Args:
        product: x -> A x, (N,) -> (N,).
        start: (N,); no eigenvector, for example random.
        iterations: products, N at most; the estimate grows with them and is exact, but for rounding, if
            there are as many as A has distinct eigenvalues.

    Returns:
        The estimate, at most the eigenvalue; NaN if A holds NaN.

    Source:
        Lanczos 1950; the iteration with reorthogonalisation is matfree's.
    """
    # The method squares what it is given: a Hessian late in training would underflow.
    size = jnp.abs(product(start)).max() / jnp.abs(start).max()
    scale = jnp.where(size > 0, size, 1)
    lanczos = decomp.hessenberg(min(iterations, len(start)), reortho="full", custom_vjp=False)
    _, matrix, _, _ = lanczos(lambda x: product(x) / scale, start)
    diagonal, below = jnp.diagonal(matrix), jnp.diagonal(matrix, -1)
    # Where the vectors found span an invariant subspace the next one is rounding error, or 0/0. What precedes
    # it holds all there is; the rest is filled up with a number that is no larger than the eigenvalue.
    reach = jax.lax.cummax(jnp.maximum(jnp.abs(diagonal[:-1]), below))
    goes_on = jnp.cumprod(below > float(np.finfo(start.dtype).eps) ** 0.5 * reach).astype(bool)
    diagonal = jnp.where(jnp.append(True, goes_on), diagonal, diagonal[0])
    below = jnp.where(goes_on, below, 0)
    found = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(below, -1) + jnp.diag(below, 1))[-1]
    return jnp.where(jnp.isfinite(diagonal[0]), scale * found, jnp.nan)


class Sharpness(Probe, frozen=True, kw_only=True):
    """The largest eigenvalue of the Hessian of the training loss with respect to the trained parameters.

    The computation takes `iterations` Hessian-vector products, each as expensive as a few gradients, and
    stores one vector per iteration.

    Attributes:
        iterations: number of Hessian-vector products.
    """

    iterations: PositiveInt = 20
    labels: ClassVar[dict[str, str]] = {"sharpness": "sharpness"}

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Measure sharpness."""
        trained = {name: get(context.params, name) for name in context.train}
        flat, unravel = ravel_pytree(trained)

        def gradients(trained: dict[str, Array]) -> dict[str, Array]:
            params = replaced(context.params, **trained)
            return loss_and_gradients(
                params, context.sampled.train, context.train, context.model.outputs, per_sequence=context.loss
            )[1]

        def product(x: Array) -> Array:
            # Forward over reverse: the derivative of attention is hand-written in reverse.
            return ravel_pytree(jax.jvp(gradients, (trained,), (unravel(x),))[1])[0]

        start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
        return {"sharpness": largest_eigenvalue(product, start, self.iterations)}
