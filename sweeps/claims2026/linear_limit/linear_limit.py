"""Limit of softmax attention on infinite Gaussian prompts: a linear layer with a matrix A and a scalar b.

The loss of gradient flow is the population risk of in-context regression, which has a closed form:

    R(A, b) = ½ tr((bΣA - I) Σ (bΣA - I)ᵀ)
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja


class Population(ja.Dataset):
    """Covariance Σ = C Cᵀ of the queries. The targets are the transpose of its Cholesky factor C.

    Attributes:
        covariance: the (d, d) matrix Σ.
    """

    covariance: Array


def population(key: Array, *, dim: int, spread: float, scale: float) -> Population:
    """Sample Σ with log-uniform eigenvalues between scale/spread and scale, and random eigenvectors."""
    first, second = jax.random.split(key)
    axes, _ = jnp.linalg.qr(jax.random.normal(first, (dim, dim)))
    values = scale * jnp.asarray(spread) ** -jax.random.uniform(second, (dim,))
    covariance = (axes * values) @ axes.T
    covariance = (covariance + covariance.T) / 2
    return Population(targets=jnp.linalg.cholesky(covariance).T, covariance=covariance)


class Linear(ja.Model[Population]):
    """Linear layer with a (d, d) matrix A and a scalar b, initialised to A = αΘΘᵀ and b = ‖A‖.

    Θ is random with ‖ΘΘᵀ‖ = 1.

    Attributes:
        alpha: ratio of α to √2 / (d^¼ ‖Σ‖).
        start: "full" for Θ with d columns, "rank one" for Θ with one column, or "blind" for A = 0 and b = α.
        scale: upper bound on the eigenvalues of Σ, which is used in place of ‖Σ‖.
    """

    alpha: float
    scale: float
    start: Literal["full", "rank one", "blind"] = "full"

    def init(self, key: Array, like: Population, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the initial A and b. They are balanced, ‖A‖ = b, unless A = 0."""
        d = like.num_examples
        columns = 1 if self.start == "rank one" else d
        theta = jax.random.normal(key, (d, columns), dtype)
        square = theta @ theta.T
        alpha = self.alpha * 2**0.5 / d**0.25 / self.scale
        A = alpha * square / jnp.linalg.norm(square)
        if self.start == "blind":
            return {"A": jnp.zeros_like(A), "b": jnp.asarray(alpha, dtype)}
        return {"A": A, "b": jnp.linalg.norm(A)}

    def outputs(self, params: dict[str, Array], data: Population) -> Array:
        """Return a (d, d) array whose rows have a mean squared distance of 2R/d from the targets."""
        return data.targets @ (params["b"] * data.covariance @ params["A"]).T


def risk(params: dict[str, Array], task: ja.dynamics.Task) -> Array:
    """Return the population risk R(A, b)."""
    S = task.data.train.covariance.astype(params["A"].dtype)
    rest = params["b"] * S @ params["A"] - jnp.eye(len(S))
    return jnp.trace(rest @ S @ rest.T) / 2


def limit(params: dict[str, Array], data: Population) -> dict[str, Array]:
    """Return the relative distances of A and b from their predicted limits, the risk, and the imbalance.

    The risk is divided by its value ½ tr(Σ) at A = 0. The imbalance is ‖A‖² - b², divided by the square of
    the predicted limit of b.
    """
    S = data.covariance.astype(params["A"].dtype)
    inverse = jnp.linalg.inv(S)
    b = jnp.trace(inverse @ inverse) ** 0.25
    A = inverse / b
    rest = params["b"] * S @ params["A"] - jnp.eye(len(S))
    return {
        "distance_A": jnp.linalg.norm(params["A"] - A) / jnp.linalg.norm(A),
        "distance_b": jnp.abs(params["b"] - b) / b,
        "risk": jnp.trace(rest @ S @ rest.T) / 2 / (jnp.trace(S) / 2),
        "balance": (jnp.linalg.norm(params["A"]) ** 2 - params["b"] ** 2) / b**2,
    }
