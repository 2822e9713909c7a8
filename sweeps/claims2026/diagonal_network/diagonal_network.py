"""Diagonal linear networks X·k(θ) with tiny initialisation. Each k_i is a quadratic form or a product."""

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja


class System(ja.Dataset):
    """System of linear equations X k = y, with y as targets.

    Attributes:
        X: (m, n) array with one row per equation.
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
    """Diagonal network with coefficients k_i = ½ (rise_i a_i² - fall_i b_i²).

    Its thresholds are t_i⁺ = 1/rise_i and t_i⁻ = 1/fall_i.

    Attributes:
        log_scale: log(1/s), where a and b are initialised to s times numbers of order 1.
    """

    log_scale: float

    def init(self, key: Array, like: System, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the initial a and b, and the curvatures `rise` and `fall`."""
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
    """Diagonal network with coefficients k_i = a_i1 ⋯ a_iL.

    Attributes:
        log_scale: log(1/s), where a is initialised to s times numbers of order 1.
        layers: number of layers L.
    """

    log_scale: float
    layers: int = 3

    def init(self, key: Array, like: System, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Sample the initial a as an (n, L) array."""
        scale = jnp.exp(jnp.asarray(-self.log_scale, dtype))
        return {"a": scale * away_from_zero(key, (like.X.shape[1], self.layers), dtype)}

    def coefficients(self, params: dict[str, Array]) -> Array:
        """Compute k as an (n,) array."""
        return params["a"].prod(axis=1)

    def outputs(self, params: dict[str, Array], data: System) -> Array:
        """Compute X k as an (m,) array."""
        return data.X @ self.coefficients(params)


def problem(params: dict[str, Array], data: System) -> dict[str, Array]:
    """Return X, y, k and the parameters as flat arrays, from which the check computes the predictions."""
    model = TwoLayer(log_scale=0.0) if "rise" in params else Deep(log_scale=0.0)
    known = {"X": data.X.ravel(), "y": data.targets, "k": model.coefficients(params)}
    return known | {f"theta_{name}": x.ravel() for name, x in params.items()}
