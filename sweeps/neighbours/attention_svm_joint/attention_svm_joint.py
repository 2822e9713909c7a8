"""Attention as an SVM in p and v on three sequences. The margin of v is tight on all of them or on two."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

import jaxattn as ja

HEIGHTS = {"tight": 1.0, "relaxed": 1.5}
PLACES = ((0.0, 0.0), (1.0, 1.0), (1.0, -1.0), (0.5, 1.0))


def three_sequences() -> ja.data.Corpus:
    """Return three sequences, each of which consists of token 0 and one other token."""
    return ja.data.from_sequences([[0, 1], [0, 2], [0, 3]], labels=[1, -1, 1], vocab_size=4)


def tokens(key: Array, drawn: Array, *, height: float = 1.0) -> Array:
    """Return the embeddings (0, 0), (1, 1), (1, -1) and (1/2, height) of the four tokens."""
    return jnp.asarray(PLACES, drawn.dtype).at[3, 1].set(height)


def at(key: Array, drawn: Array, *, x: float, y: float) -> Array:
    """Return the initial point (x, y)."""
    return jnp.stack([jnp.asarray(x, drawn.dtype), jnp.asarray(y, drawn.dtype)])


def each_normalised(step_size: optax.Schedule) -> optax.GradientTransformation:
    """Return an optimiser that divides the gradient of each parameter by its norm."""

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return jax.tree.map(lambda g: g / jnp.maximum(jnp.linalg.norm(g), 1e-300), gradients), state

    normalise = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    return optax.chain(normalise, optax.scale_by_learning_rate(step_size))


class AllDigits(ja.models.OneLayer):
    """`OneLayer` for these three sequences, in a form whose gradients remain precise.

    For tokens 0 and k, f = γ_k + σ(a_0 - a_k) (γ_0 - γ_k). If f were computed as a weighted average, the
    difference γ_k - f would be lost once the attention on token 0 is below rounding error.
    """

    def outputs(self, params: Any, data: ja.data.Corpus) -> Array:
        """Compute f for each sequence as a (3,) array."""
        a, values = self.scores_and_values(params)
        return values[1:] + jax.nn.sigmoid(a[0] - a[1:]) * (values[0] - values[1:])


def directions(params: Any, data: ja.data.Corpus) -> dict[str, Array]:
    """Return the coordinates of p, the angle of p, and the angle of v. Angles are from the first axis."""
    (x, y), (a, b) = params.p, params.v
    return {"p_1": x, "p_2": y, "p_angle": jnp.arctan2(y, x), "v_angle": jnp.arctan2(b, a)}
