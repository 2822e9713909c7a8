"""Single-location regression. The target is linear in one token, and a second direction marks this token."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

import jaxattn as ja
from jaxattn.data import Vectors


def locations(
    key: Array, *, dim: int, length: int = 10, sequences: int, variance: float = 0.5, noise: float = 0.1
) -> Vectors:
    """Sample sequences with a random location ℓ, whose token determines the target.

    X_ℓ ~ N(√(d/2) e_1, variance · I), and X_j ~ N(0, I) for all other j. The target is X_ℓ·e_2 plus normal
    noise with standard deviation `noise`.
    """
    place_key, token_key, noise_key = jax.random.split(key, 3)
    place = jax.random.randint(place_key, (sequences,), 0, length)
    X = jax.random.normal(token_key, (sequences, length, dim))
    here = jax.nn.one_hot(place, length)[:, :, None]
    X = jnp.where(here > 0, jnp.sqrt(variance) * X, X).at[:, :, :1].add(jnp.sqrt(dim / 2) * here)
    y = (here * X).sum(axis=1)[:, 1]
    return Vectors(targets=y + noise * jax.random.normal(noise_key, (sequences,)), X=X)


class Params(NamedTuple):
    """Unit vectors k and v, and the number of steps t."""

    k: Array  # (d,) attention direction
    v: Array  # (d,) value direction
    t: Array  # () the time t in λ(t)


class Pointwise(ja.Model[Vectors]):
    """Unnormalised attention f(X) = Σ_j erf(λ X_j·k) X_j·v with λ = sharpness / (1 + decay · t)."""

    takes: ClassVar[type[Vectors]] = Vectors

    sharpness: float = 2.0
    decay: float = 1e-4

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Sample k and v uniformly on the unit sphere, and set t to 0."""
        drawn = jax.random.normal(key, (2, like.dim), dtype)
        return Params(*(drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True)), jnp.zeros((), dtype))

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f for each sequence as an (n,) array."""
        sharpness = self.sharpness / (1 + self.decay * params.t)
        return (jax.scipy.special.erf(sharpness * data.dot(params.k)) * data.dot(params.v)).sum(axis=1)


def on_spheres(step_size: optax.Schedule) -> optax.GradientTransformation:
    """Return gradient descent that keeps k and v on the unit sphere and increments t at each step.

    The gradient is projected onto the tangent space, and the result of the step is normalised.
    """

    def moves(g: Array, x: Array, η: Array) -> Array:
        if x.ndim == 0:
            return jnp.ones_like(x)
        moved = x - η * (g - (x @ g) * x)
        return moved / jnp.linalg.norm(moved) - x

    def update(gradients, count, params):
        η = step_size(count)
        return jax.tree.map(lambda g, x: moves(g, x, η), gradients, params), count + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def found(params: Params, data: Vectors) -> dict[str, Array]:
    """Compute |κ| = |k·e_1| and |ν| = |v·e_2|, the absolute cosines with the directions of the data."""
    return {"kappa": jnp.abs(params.k[0]), "nu": jnp.abs(params.v[1])}
