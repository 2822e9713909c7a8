"""Single-location regression by descent on the population risk, from different initial points."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxattn as ja

Z, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
OVERLAPS = {"kappa": "k·k*", "nu": "v·v*", "eta": "k·v*", "theta": "v·k*", "rho": "k·v"}


def law() -> ja.Dataset:
    """Return one placeholder example, because the risk is a function of the parameters alone."""
    return ja.Dataset(targets=jnp.zeros(1))


class Params(NamedTuple):
    """Unit vectors k and v, and the number of steps t."""

    k: Array  # (d,) attention direction; k* = e_1
    v: Array  # (d,) value direction; v* = e_2
    t: Array  # () the time t in λ(t)


class Risk(ja.Model[ja.Dataset]):
    """Population risk E[(f(X) - X_ℓ·v*)²] of f(X) = Σ_j erf(λ X_j·k) X_j·v.

    λ = sharpness / (1 + decay · t).
    """

    dim: int = 400
    length: int = 10
    variance: float = 0.5
    sharpness: float = 0.1
    decay: float = 0.0
    on_manifold: bool = False

    def init(self, key: Array, like: ja.Dataset, *, dtype: jnp.dtype) -> Params:
        """Sample k and v uniformly on the unit sphere.

        If `on_manifold` is True, they satisfy k·v* = v·k* = k·v = 0.
        """
        k, v = jax.random.normal(key, (2, self.dim), dtype)
        if self.on_manifold:
            k, v = k.at[1].set(0), v.at[0].set(0)
            rest = k.at[0].set(0)
            v = v - (v @ rest) / (rest @ rest) * rest
        return Params(k / jnp.linalg.norm(k), v / jnp.linalg.norm(v), jnp.zeros((), dtype))

    def outputs(self, params: Params, data: ja.Dataset) -> Array:
        """Compute the risk as a (1,) array.

        Expectations are one-dimensional integrals over a = X_j·k, because X_j·v is Gaussian given a.
        """
        κ, ν, θ, η, ρ = overlaps(params)
        mean, γ = jnp.sqrt(self.dim / 2), jnp.sqrt(self.variance)
        weights, λ = WEIGHTS / WEIGHTS.sum(), self.sharpness / (1 + self.decay * params.t)
        # At position ℓ: X_ℓ·v = b + noise of variance γ²(1 - ρ²), whose covariance with X_ℓ·v* is γ²(ν - ηρ).
        erf, b = jax.scipy.special.erf(λ * (mean * κ + γ * Z)), mean * θ + γ * ρ * Z
        product = weights @ (erf * (γ * η * Z * b + γ**2 * (ν - η * ρ)))
        here, square = weights @ (erf * b), weights @ (erf**2 * (b**2 + γ**2 * (1 - ρ**2)))
        erf = jax.scipy.special.erf(λ * Z)
        elsewhere, noise = weights @ (erf * ρ * Z), weights @ (erf**2 * (ρ**2 * Z**2 + 1 - ρ**2))
        others = self.length - 1
        crossed = 2 * others * elsewhere * here + others * (others - 1) * elsewhere**2
        return (γ**2 - 2 * product + square + others * noise + crossed)[None]


def overlaps(params: Params) -> tuple[Array, ...]:
    """Compute κ = k·k*, ν = v·v*, θ = v·k*, η = k·v*, ρ = k·v, which determine the risk."""
    k, v, _ = params
    return k[0], v[1], v[0], k[1], k @ v


def risk(outputs: Array, targets: Array) -> Array:
    """Return the output itself as the loss."""
    return outputs


def aligned(params: Params, data: ja.Dataset) -> dict[str, Array]:
    """Compute the absolute values of the overlaps, and the distance √(θ² + η² + ρ²) from θ = η = ρ = 0."""
    κ, ν, θ, η, ρ = overlaps(params)
    sizes = {"kappa": κ, "nu": ν, "theta": θ, "eta": η, "rho": ρ}
    return {name: jnp.abs(x) for name, x in sizes.items()} | {"distance": jnp.sqrt(θ**2 + η**2 + ρ**2)}
