"""In-context classification by one attention layer, and the gradient descent steps that it resembles."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja


class Prompts(ja.Dataset):
    """Labelled points and a query on the unit sphere. The target is the label of the query."""

    X: Array  # (n, N, d)
    y: Array  # (n, N)
    query: Array  # (n, d)


def prompts(key: Array, *, sequences: int, dim: int, length: int, spread: float | None = None) -> Prompts:
    """Sample one linear classifier sign(w·x) per prompt, and points on the unit sphere.

    By default, the points are uniform. If `spread` is given, they are normal with this standard deviation
    around one of four random centres, and are projected onto the sphere. Centre k has probability ∝ exp(-k).
    """
    w_key, x_key, centre_key, which_key = jax.random.split(key, 4)
    w = jax.random.normal(w_key, (sequences, dim))
    x = jax.random.normal(x_key, (sequences, length + 1, dim))
    if spread is not None:
        centres = jax.random.normal(centre_key, (sequences, 4, dim))
        which = jax.random.categorical(which_key, -jnp.arange(4.0), shape=(sequences, length + 1))
        x = jnp.take_along_axis(centres, which[..., None], axis=1) + spread * x
    x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
    y = jnp.sign(jnp.einsum("nd,ntd->nt", w, x))
    return Prompts(targets=y[:, -1], X=x[:, :-1], y=y[:, :-1], query=x[:, -1])


class InContext(ja.Model[Prompts]):
    """Attention layer with logit Σ_i a_i u·(x_i, y_i) for the query (x, 0).

    The attention a_i to the N points depends on the scores s_i = (x, 0)ᵀ A (x_i, y_i). It is linear (s_i/N),
    exponential (exp(s_i)/N) or the softmax of the scores.
    """

    takes: ClassVar[type[Prompts]] = Prompts

    weighting: Literal["linear", "exponential", "softmax"]
    start: float = 0.1

    def init(self, key: Array, like: Prompts, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample normal weights with standard deviation `start`."""
        A_key, u_key = jax.random.split(key)
        D = like.query.shape[1] + 1
        A = jax.random.normal(A_key, (D, D), dtype)
        return {"A": self.start * A, "u": self.start * jax.random.normal(u_key, (D,), dtype)}

    def outputs(self, params: dict[str, Array], data: Prompts) -> Array:
        """Compute the logit for each query as an (n,) array."""
        tokens = jnp.concatenate([data.X, data.y[..., None]], axis=-1)
        scores = jnp.einsum("nd,de,nte->nt", data.query, params["A"][:-1], tokens)
        return (attend(self.weighting, scores) * (tokens @ params["u"])).sum(axis=1)


def attend(kind: str, scores: Array) -> Array:
    """Compute the attention to each point from the scores as an (n, N) array."""
    if kind == "softmax":
        return jax.nn.softmax(scores, axis=1)
    return (scores if kind == "linear" else jnp.exp(scores)) / scores.shape[1]


def logistic(outputs: Array, targets: Array) -> Array:
    """Compute the logistic loss log(1 + exp(-y f)) for each prompt as an (n,) array."""
    return jax.nn.softplus(-targets * outputs)


class GradientStep(ja.Probe):
    """Comparison of trained weights and predictions with one step of gradient descent."""

    labels: ClassVar = {
        "identity": "cosine of A for points with the identity",
        "label_value": "cosine of u with the label",
        "step_correlation": "correlation with one step of gradient descent",
        "test_accuracy": "test accuracy",
    }

    def measure(self, context: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed on its test data."""
        data, A, u = context.data.test, context.params["A"], context.params["u"]
        points, dim = A[:-1, :-1], data.query.shape[1]
        scale = jnp.trace(points) / dim
        kernel = attend(context.model.weighting, scale * jnp.einsum("nd,ntd->nt", data.query, data.X))
        step, ours = u[-1] * (kernel * data.y).sum(axis=1), context.outputs(data)
        return {
            "identity": jnp.abs(scale) * dim**0.5 / jnp.linalg.norm(points),
            "label_score": jnp.linalg.norm(A[:-1, -1]) / jnp.linalg.norm(points),
            "label_value": jnp.abs(u[-1]) / jnp.linalg.norm(u),
            "step_correlation": jnp.corrcoef(step, ours)[0, 1],
            "scale": scale,
            "accuracy": (jnp.sign(ours) == data.targets).mean(),
        }
