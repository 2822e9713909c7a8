"""Diagonal linear networks X k(θ) with tiny initialisation, where k_i is a quadratic form or a product."""

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja


class System(ja.Dataset):
    """System of linear equations X k = y.

    Attributes:
        X: (m, n); one row per equation.
    """

    X: Array


def systems(key: Array, *, equations: int, unknowns: int) -> System:
    """Sample X and y with standard normal entries."""
    first, second = jax.random.split(key)
    X = jax.random.normal(first, (equations, unknowns))
    return System(targets=jax.random.normal(second, (equations,)), X=X)


def away_from_zero(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Sample numbers with absolute values between 1/2 and 3/2 and random signs."""
    first, second = jax.random.split(key)
    size = jax.random.uniform(first, shape, dtype, 0.5, 1.5)
    return size * jax.random.rademacher(second, shape, dtype)


class TwoLayer(ja.Model[System]):
    """Diagonal network k_i = ½ (rise_i a_i² - fall_i b_i²), with thresholds t_i⁺ = 1/rise_i, t_i⁻ = 1/fall_i.

    Attributes:
        log_scale: log(1/s); a and b start at s times numbers of order 1.
    """

    log_scale: float

    def init(self, key: Array, like: System, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the initial parameters and the curvatures."""
        n, keys = like.X.shape[1], jax.random.split(key, 4)
        scale = jnp.exp(jnp.asarray(-self.log_scale, dtype))
        return {
            "a": scale * away_from_zero(keys[0], (n,), dtype),
            "b": scale * away_from_zero(keys[1], (n,), dtype),
            "rise": jax.random.uniform(keys[2], (n,), dtype, 0.5, 2.0),
            "fall": jax.random.uniform(keys[3], (n,), dtype, 0.5, 2.0),
        }

    def coefficients(self, params: dict[str, Array]) -> Array:
        """Compute k as an (n,) array."""
        return (params["rise"] * params["a"] ** 2 - params["fall"] * params["b"] ** 2) / 2

    def outputs(self, params: dict[str, Array], data: System) -> Array:
        """Compute X k as an (m,) array."""
        return data.X @ self.coefficients(params)


class Deep(ja.Model[System]):
    """Diagonal network k_i = a_i1 ⋯ a_iL.

    Attributes:
        log_scale: log(1/s); a starts at s times numbers of order 1.
        layers: L.
    """

    log_scale: float
    layers: int = 3

    def init(self, key: Array, like: System, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the initial parameters."""
        scale = jnp.exp(jnp.asarray(-self.log_scale, dtype))
        return {"a": scale * away_from_zero(key, (like.X.shape[1], self.layers), dtype)}

    def coefficients(self, params: dict[str, Array]) -> Array:
        """Compute k as an (n,) array."""
        return params["a"].prod(axis=1)

    def outputs(self, params: dict[str, Array], data: System) -> Array:
        """Compute X k as an (m,) array."""
        return data.X @ self.coefficients(params)


def problem(params: dict[str, Array], data: System) -> dict[str, Array]:
    """Return X, y, k and the parameters, from which the check computes the predictions."""
    model = TwoLayer(log_scale=0.0) if "rise" in params else Deep(log_scale=0.0)
    known = {"X": data.X.ravel(), "y": data.targets, "k": model.coefficients(params)}
    return known | {f"theta_{name}": x.ravel() for name, x in params.items()}
