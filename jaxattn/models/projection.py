"""Scores E p and values E v in one product, and so are their cotangents: E is read once instead of twice."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jaxattn.core import backend


def scores_and_values(
    E: Array | np.ndarray, p: Array | np.ndarray, v: Array | np.ndarray
) -> tuple[Array, Array]:
    """Project embeddings on the query and the head.

    Args:
        E: (V, d).
        p: (d,).
        v: (d,), or (d, K) heads.

    Returns:
        E p, (V,), and E v, (V,) or (V, K). A derivative of a derivative must be taken forward over reverse.
    """
    if backend.platform() != "cpu":
        # Compilers for accelerators fuse the two products, and what reads them, by themselves.
        return jnp.matmul(E, p), jnp.matmul(E, v)
    scores, values = _project(E, p, v if v.ndim == 2 else v[:, None])
    return scores, values if v.ndim == 2 else values[:, 0]


def _product(E: Any, p: Any, heads: Any) -> tuple[Array, Array]:
    projected = E @ jnp.concatenate([p[:, None], heads], axis=1)
    return projected[:, 0], projected[:, 1:]


def _forward(E: Any, p: Any, heads: Any) -> tuple[tuple[Array, Array], Any]:
    # What is not differentiated by takes no part in the product of the backward pass.
    wanted = (() if p.perturbed else None, () if heads.perturbed else None)
    return _product(E.value, p.value, heads.value), (E.value, p.value, heads.value, wanted)


def _backward(residuals: Any, cotangents: Any) -> tuple[Any, Any, Any]:
    """∂L/∂E = ∂L/∂a pᵀ + ∂L/∂γ vᵀ, ∂L/∂p = Eᵀ ∂L/∂a and ∂L/∂v = Eᵀ ∂L/∂γ."""
    E, p, heads, wanted = residuals
    shapes = E.shape[:1], (E.shape[0], heads.shape[1])
    d_scores, d_values = (
        jnp.zeros(shape, E.dtype) if isinstance(x, SymbolicZero) else x
        for x, shape in zip(cotangents, shapes, strict=True)
    )
    # Outer products are fused into what reads ∂L/∂E, where a product of matrices would write it out.
    d_E = d_scores[:, None] * p
    d_E = d_E + (d_values * heads[:, 0] if heads.shape[1] == 1 else d_values @ heads.T)
    if wanted == ((), None):
        return d_E, d_scores @ E, None
    if wanted == (None, ()):
        return d_E, None, (d_values.T @ E).T
    both = jnp.concatenate([d_scores[None], d_values.T]) @ E
    return d_E, both[0], both[1:].T


_project = jax.custom_vjp(_product)
_project.defvjp(_forward, _backward, symbolic_zeros=True)
