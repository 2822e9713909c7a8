"""Dense mixture of linear experts with a softmax gate or a normalised sigmoid gate."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors


def regression(key: Array, *, dim: int, sequences: int) -> Vectors:
    """Sample inputs with shape (n, 1, d) and targets with shape (n, d), with standard normal entries."""
    first, second = jax.random.split(key)
    X = jax.random.normal(first, (sequences, 1, dim))
    return Vectors(targets=jax.random.normal(second, (sequences, dim)), X=X)


class Experts(ja.Model[Vectors]):
    """Mixture of experts f(x) = Σ_i g_i(x) A_i x with gates g_i(x) = s(w_i·x) / Σ_j s(w_j·x).

    The function s is exp or the sigmoid. The rows w_i of the (k, d) array W are the weights of the gates. The
    weights of the experts are a (k, d, d) array A.
    """

    takes: ClassVar[type[Vectors]] = Vectors

    gate: Literal["softmax", "sigmoid"]
    experts: int = 3

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample W and A with entries from N(0, 1/d)."""
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
