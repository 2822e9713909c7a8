"""Probes for parameters: norms, angles, conserved quantities of the flow, and sharpness of the loss."""

from collections.abc import Callable
from itertools import combinations
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from matfree import decomp

from jaxattn.base import Phase, Probe, Task
from jaxattn.base.model import Params
from jaxattn.base.probe import ProbeContext
from jaxattn.core.pytrees import get, names, replace
from jaxattn.core.scales import CORRELATION, ERROR, NOT_NEGATIVE, Scale
from jaxattn.core.settings import PositiveInt
from jaxattn.models.gradients import loss_and_gradients


class Norms(Probe, frozen=True, kw_only=True):
    """Norms of the parameters (Euclidean for vectors, Frobenius for matrices): norm_E, norm_p, ..."""

    rotation_invariant: ClassVar[bool] = True
    scales: ClassVar[dict[str, Scale]] = {"norm_*": NOT_NEGATIVE}

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the norm of each parameter, trained or not; the metric for a parameter θ is norm_θ."""
        return {f"norm_{name}": optax.tree.norm(get(context.params, name)) for name in names(context.params)}


def cosine_array(x: Float[Array, "*shape"], y: Float[Array, "*shape"]) -> Float[Array, ""]:
    """Compute x·y / (‖x‖ ‖y‖) over all entries; return NaN if x or y is zero.

    The computation avoids overflow and underflow.
    """
    # Without scaling, the squares of small gradients would underflow.
    x, y = (z / jnp.abs(z).max() for z in (x, y))
    return (x * y).sum() / jnp.sqrt((x * x).sum() * (y * y).sum())


class Alignments(Probe, frozen=True, kw_only=True):
    """Cosines between parameters of equal shape, and between each parameter and its descent direction.

    The metrics have names such as cos_p_v and cos_p_descent. Parameters with one row per token are not
    compared with each other. If a parameter θ has converged in direction, its cosine with -∂L/∂θ is 1.
    """

    rotation_invariant: ClassVar[bool] = True
    scales: ClassVar[dict[str, Scale]] = {"cos_*": CORRELATION}

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute cos_θ_θ' for pairs of parameters of equal shape, and cos_θ_descent for each trained θ."""
        params, rows = context.params, context.model.token_rows
        pairs = [
            (one, other)
            for one, other in combinations([x for x in names(params) if x not in rows], 2)
            if get(params, one).shape == get(params, other).shape
        ]
        _, gradients = context.loss_and_gradients
        between = {f"cos_{x}_{y}": cosine_array(get(params, x), get(params, y)) for x, y in pairs}
        return between | {
            f"cos_{name}_descent": cosine_array(get(params, name), -gradients[name]) for name in context.train
        }


class Conservation(Probe, frozen=True, kw_only=True):
    """Drift ‖Q - Q_0‖ / ‖Q_0‖ of a conserved quantity Q, in a phase that trains E, p and v.

    If the loss depends on E, p and v only through E p and E v, gradient flow conserves

        Q = EᵀE - Σ_h p_h p_hᵀ - Σ_k v_k v_kᵀ,   d/dt Q = 0.

    The sums are over all queries p_h and all read-out vectors v_k. With steps of size η, the drift is
    proportional to η.
    """

    rotation_invariant: ClassVar[bool] = True
    labels: ClassVar[dict[str, str]] = {"conservation_drift": r"$\Vert Q-Q_0\Vert\,/\,\Vert Q_0\Vert$"}
    scales: ClassVar[dict[str, Scale]] = {"conservation_drift": ERROR}

    def skip_reason(self, task: Task, phase: Phase) -> str | None:
        """Return why the probe is skipped, or None if the phase trains E, p and v.

        If one of these parameters is fixed, Q is not conserved.
        """
        return None if {"E", "p", "v"} <= set(phase.train) else "requires a phase that trains E, p and v"

    def remember(self, params: Params) -> Float[Array, "m d"] | Float[Array, "d d"]:
        """Return the initial Q, (d, d), or the m initial rows of E, p and v, (m, d), whichever is smaller."""
        rows, signs = _rows(params)
        return rows if len(rows) < rows.shape[1] else _quantity(rows, signs)

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the `conservation_drift` metric."""
        rows, signs = _rows(context.params)
        return {"conservation_drift": _drift(rows, signs, context.memory)}


def _drift(rows: Array, signs: Array, memory: Array) -> Array:
    if len(rows) >= rows.shape[1]:
        start, now = memory, _quantity(rows, signs)
    else:
        # An orthonormal basis of all rows has at most 2m vectors. Computing the norm from Gram matrices
        # instead would subtract large squares, and a small drift would lose half of its digits.
        both = jnp.linalg.qr(jnp.concatenate([rows, memory]).T, mode="r").T
        now, start = (_quantity(x, signs) for x in jnp.split(both, 2))
    return jnp.linalg.norm(now - start) / jnp.linalg.norm(start)


def _rows(params: Params) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    """Stack the rows of E, all queries and all read-out vectors; also return each row's sign in Q.

    Q, a signed sum over these rows, is the conserved quantity; see `Conservation`. Queries are (d,) or
    (H, d), and read-out vectors (d,), (d, K), (H, d) or (H, d, K).
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
    """Estimate the largest eigenvalue of a symmetric matrix A from matrix-vector products.

    Args:
        product: x -> A x, (N,) -> (N,).
        start: (N,); a vector that is not an eigenvector, for example a random vector.
        iterations: number of products, at most N. The estimate increases with this number, and is exact up to
            rounding if it is at least the number of distinct eigenvalues.

    Returns:
        The estimate, a lower bound on the eigenvalue; NaN if A contains NaN.

    Source:
        Lanczos 1950, with the reorthogonalisation used in matfree.
    """
    # Scale the product, because the Lanczos method squares its input and small Hessians would underflow.
    size = jnp.abs(product(start)).max() / jnp.abs(start).max()
    scale = jnp.where(size > 0, size, 1)
    lanczos = decomp.hessenberg(min(iterations, len(start)), reortho="full", custom_vjp=False)
    _, matrix, _, _ = lanczos(lambda x: product(x) / scale, start)
    diagonal, below = jnp.diagonal(matrix), jnp.diagonal(matrix, -1)
    # If the vectors span an invariant subspace, the next vector is rounding error or 0/0. The earlier vectors
    # then contain all the information; fill the remaining entries with a lower bound on the eigenvalue.
    reach = jax.lax.cummax(jnp.maximum(jnp.abs(diagonal[:-1]), below))
    is_valid = jnp.cumprod(below > float(np.finfo(start.dtype).eps) ** 0.5 * reach).astype(bool)
    diagonal = jnp.where(jnp.append(True, is_valid), diagonal, diagonal[0])
    below = jnp.where(is_valid, below, 0)
    found = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(below, -1) + jnp.diag(below, 1))[-1]
    return jnp.where(jnp.isfinite(diagonal[0]), scale * found, jnp.nan)


class Sharpness(Probe, frozen=True, kw_only=True):
    """Largest eigenvalue of the Hessian of the training loss with respect to the trained parameters.

    The computation requires `iterations` Hessian-vector products, each as expensive as a few gradients, and
    stores one vector per iteration.

    Attributes:
        iterations: number of Hessian-vector products.
    """

    iterations: PositiveInt = 20
    labels: ClassVar[dict[str, str]] = {"sharpness": "sharpness"}

    def measure(self, context: ProbeContext) -> dict[str, Array]:
        """Compute the `sharpness` metric."""
        trained = {name: get(context.params, name) for name in context.train}
        flat, unravel = ravel_pytree(trained)

        def gradients(trained: dict[str, Array]) -> dict[str, Array]:
            params = replace(context.params, **trained)
            return loss_and_gradients(
                params, context.sampled.train, context.train, context.model.outputs, per_sequence=context.loss
            )[1]

        def product(x: Array) -> Array:
            # Use forward-over-reverse differentiation, because attention defines a custom reverse-mode
            # derivative.
            return ravel_pytree(jax.jvp(gradients, (trained,), (unravel(x),))[1])[0]

        start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
        return {"sharpness": largest_eigenvalue(product, start, self.iterations)}
