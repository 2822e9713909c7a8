"""A dense mixture of linear experts with a softmax gate or a normalised sigmoid gate."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors


def regression(key: Array, *, dim: int, sequences: int) -> Vectors:
    """Sample normal inputs (n, 1, d) and normal targets (n, d)."""
    first, second = jax.random.split(key)
    X = jax.random.normal(first, (sequences, 1, dim))
    return Vectors(targets=jax.random.normal(second, (sequences, dim)), X=X)


class Experts(ja.Model[Vectors]):
    """Mixture f(x) = Σ_i g_i(x) A_i x with gates g = s(Wx)/Σ s(Wx), where s is exp or the sigmoid.

    The gates have weights W (k, d), and the experts have weights A (k, d, d).
    """

    takes: ClassVar[type[Vectors]] = Vectors

    gate: Literal["softmax", "sigmoid"]
    experts: int = 3

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample normal gates and experts."""
        first, second = jax.random.split(key)
        d = like.dim
        return {
            "W": jax.random.normal(first, (self.experts, d), dtype) / d**0.5,
            "A": jax.random.normal(second, (self.experts, d, d), dtype) / d**0.5,
        }

    def outputs(self, params: dict[str, Array], data: Vectors) -> Array:
        """Compute f for each input as an (n, d) array."""
        x = data.X[:, 0]
        logits = x @ params["W"].T
        logs = logits if self.gate == "softmax" else jax.nn.log_sigmoid(logits)
        return jnp.einsum("nk,kde,ne->nd", jax.nn.softmax(logs, axis=1), params["A"], x)


def gates(params: dict[str, Array], data: Vectors) -> dict[str, Array]:
    """Return the sum of the rows of W as a (d,) array, and the first row as a control."""
    return {"sum": params["W"].sum(axis=0), "first": params["W"][0]}
