"""Attention as an SVM in p from fixed initial points, on one or three inputs."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxattn as ja
from jaxattn.attention.scores import from_vectors
from jaxattn.data import Vectors
from jaxattn.theory import Scores

# Three inputs of seven tokens in two dimensions, sampled by PyTorch's generator with seed 0.
THREE = """
0.77483204 -0.23047204 -1.0867758 1.1697421 -1.0632026 0.57695609 -1.252667 1.0699966 -0.4760317
-0.25246842 -0.54945554 -0.77053073 -0.38666988 -0.34129833 0.68898097 -0.068272069 -0.84996209
0.88290056 -0.96330442 1.2778732 -0.81074032 0.83126462 -0.49368144 -0.5985354 -0.41206083 -0.47751774
-0.41176882 -0.52046193 0.94206648 0.010501497 -0.53955892 0.70622122 -1.1138496 1.1839942 -0.74202523
0.70436516 -0.59462396 -0.23494503 -0.60994874 -0.59596688 -0.71339603 -0.27701209
"""


def tokens(case: str) -> np.ndarray:
    """Return the tokens of a case as an (n, T, 3) array.

    The last axis contains two coordinates and the value of the token. The value is largest for the first
    token.
    """
    if case != "three":
        return np.array([[(-0.1, 1, 1), (1, 0, 0.9), (0, 0, 0.9 if case == "global" else 0)]])
    X = np.full((3, 7, 3), 0.5)
    X[:, 0, 2], X[:, :, :2] = 1.0, np.array(THREE.split(), float).reshape(3, 7, 2)
    return X


def inputs(*, case: Literal["global", "local", "three"] = "global") -> Vectors:
    """Return the token sequences of a case, with labels +1."""
    X = tokens(case)
    return Vectors(targets=jnp.ones(len(X), jnp.int32), X=jnp.asarray(X), classes=2)


class Attention(ja.Model[Vectors]):
    """Attention f(X) = Σ_t q_t γ_t with scores x_t·p.

    With `all_digits`, f is computed as γ_top + Σ_t q_t (γ_t - γ_top) for the top token, so that gradients
    keep their precision.
    """

    takes: ClassVar[type[Vectors]] = Vectors
    linear_in: ClassVar[str] = "p"

    x: float = 0.0
    y: float = 0.0
    all_digits: bool = False

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Return the initial point p = (x, y)."""
        return {"p": jnp.stack([self.x, self.y]).astype(dtype)}

    def outputs(self, params: dict[str, Array], data: Vectors) -> Array:
        """Compute f for each sequence as an (n,) array."""
        q, values = jax.nn.softmax(data.X[:, :, :2] @ params["p"], axis=1), data.X[:, :, 2]
        top = jnp.take_along_axis(values, q.argmax(axis=1)[:, None], axis=1) * self.all_digits
        return top[:, 0] + (q * (values - top)).sum(axis=1)

    def scores(self, params: dict[str, Array], data: Vectors) -> Scores:
        """Return the scores as a linear function Φ p, and the values. Φ contains the token coordinates."""
        return from_vectors(data.X[:, :, :2], data.targets, values=data.X[:, :, 2])


def first_attention(params: dict[str, Array], data: Vectors) -> Array:
    """Compute the attention on the first token, averaged over sequences."""
    return jax.nn.softmax(data.X[:, :, :2] @ params["p"], axis=1)[:, 0].mean()


def program(case: str, token: int = 0, coordinates: int = 2) -> ja.theory.MaxMargin:
    """Solve the max-margin problem for the selection of token `token` in every sequence.

    Only the first `coordinates` coordinates of the tokens are used.
    """
    X = tokens(case)[:, :, :coordinates]
    mask = np.arange(X.shape[1]) == np.full((len(X), 1), token)
    return ja.theory.max_margin(from_vectors(X, np.ones(len(X), int)), ja.theory.Selection(mask))
