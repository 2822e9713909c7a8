"""In-context linear regression by linear attention, with merged or separate key and query matrices."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from regression_prompts import CONTEXT, Rows, spectrum

import jaxattn as ja


class LinearAttention(ja.Model[Rows]):
    """Linear attention f = Σ_h v_hᵀ S W_h x_query, where S is the sum of x xᵀ over the tokens.

    If `rank` is 0, the parameters are the merged matrices W_h. Otherwise, W_h = k_hᵀ q_h with separate
    key and query matrices of this rank. With `mlp`, the heads use only v_y and W_xx.
    """

    takes: ClassVar[type[Rows]] = Rows

    heads: int
    rank: int = 0
    start: float = 1e-6
    smaller: bool = False  # True for the initial values used by the published code since commit 6d24121
    mlp: bool = False

    def init(self, key: Array, like: Rows, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample normal weights, and set the weights that mix x with y to zero."""
        H, E, R = self.heads, like.dim + 1, self.rank
        shapes = {"k": (H, R, E), "q": (H, R, E), "v": (H, E)} if R else {"W": (H, E, E), "v": (H, E)}
        std = dict.fromkeys(shapes, self.start)
        if R:
            entries = R * E * (H if self.smaller else 1)
            std |= {"k": self.start / entries**0.5, "q": self.start / entries**0.5}
            std |= {"v": self.start / (H * E * E) ** 0.5} if self.smaller else {}
        keys = jax.random.split(key, len(shapes))
        drawn = {
            n: std[n] * jax.random.normal(k, shapes[n], dtype) for n, k in zip(shapes, keys, strict=True)
        }
        mixing = {"k": drawn["k"].at[:, :, -1].set(0)} if R else {"W": drawn["W"].at[:, -1, :-1].set(0)}
        return drawn | mixing | {"v": drawn["v"].at[:, :-1].set(0)}

    def outputs(self, params: dict[str, Array], data: Rows) -> Array:
        """Predict the answer to each query as an (n,) array."""
        C, (a, b) = tensor(params), np.triu_indices(data.dim + 1)
        if self.mlp:
            C = jnp.zeros_like(C).at[-1, :-1].set(C[-1, :-1])
        both = jnp.where((a == b)[:, None], C[a, b], C[a, b] + C[b, a])
        return data.features @ both.reshape(-1)


def tensor(params: dict[str, Array]) -> Array:
    """Compute the coefficients of S_ab x_c in the output f as a (D + 1, D + 1, D) array."""
    W = params["W"] if "W" in params else jnp.einsum("hra,hrb->hab", params["k"], params["q"])
    return jnp.einsum("ha,hbc->abc", params["v"], W[:, :, :-1])


def squares(outputs: Array, targets: Array) -> Array:
    """Compute the squared error (f - y)² for each output f and target y."""
    return (outputs - targets) ** 2


def component(params: dict[str, Array], data: Rows) -> dict[str, Array]:
    """Compute the coefficient of S_yd x_d for each d, relative to its value at the minimum loss."""
    values = spectrum(data.dim, data.white)
    found = jnp.diagonal(tensor(params)[-1, :-1]) * values * (CONTEXT + 1 + 1 / values)
    return {f"component_{d + 1}": found[d] for d in range(data.dim)}


def growing(params: dict[str, Array], data: Rows) -> dict[str, Array]:
    """Compute the squared growing component Σ_h (v_hy + ⟨W_h, I/√D⟩)² / 4.

    The result is 0 if the key and query matrices are separate.
    """
    if "W" not in params:
        return {"growing": jnp.zeros(())}
    along = jnp.trace(params["W"][:, :-1, :-1], axis1=1, axis2=2) / data.dim**0.5
    return {"growing": ((params["v"][:, -1] + along) ** 2).sum() / 4}
