"""Softmax attention on n random tokens, compared with its limit on infinitely many tokens."""

from typing import Literal

import flax
import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja

MEAN = jnp.array([0.5, -0.3])
ROOT = jnp.array([[1.0, 0.0], [0.3, 0.7]])
VALUE = jnp.array([[1.0, 0.5], [-0.2, 1.0]])
KEY_QUERY = jnp.array([[0.8, 0.2], [0.0, 0.6]])
STRENGTHS = (0.5, 1.0, 2.0)
RADII = {"normal": (0.5, 1.0, 1.5, 2.0), "uniform": (1.0, 2.0, 4.0, 8.0), "plane": (1.0,)}


class Prompts(ja.Dataset):
    """Prompts of n tokens.

    Attributes:
        X: tokens with shape (prompts, n, d).
        law: name of the distribution of the tokens.
    """

    X: Array
    law: str = flax.struct.field(pytree_node=False)


def prompts(
    key: Array, *, length: int, sequences: int, law: Literal["normal", "uniform", "plane"] = "normal"
) -> Prompts:
    """Sample tokens from N(0, 1), from the uniform distribution on [-1, 1], or from N(m, Γ) in the plane."""
    if law == "uniform":
        X = jax.random.uniform(key, (sequences, length, 1), minval=-1, maxval=1)
    elif law == "normal":
        X = jax.random.normal(key, (sequences, length, 1))
    else:
        X = MEAN + jax.random.normal(key, (sequences, length, 2)) @ ROOT.T
    return Prompts(targets=jnp.zeros((sequences,)), X=X, law=law)


class Nothing(ja.Model[Prompts]):
    """Placeholder model that is not trained. The probes compute attention directly."""

    def init(self, key: Array, like: Prompts, *, dtype: jnp.dtype) -> dict[str, Array]:
        """Return the placeholder parameter u = 0."""
        return {"u": jnp.zeros((), dtype)}

    def outputs(self, params: dict[str, Array], data: Prompts) -> Array:
        """Return the placeholder u for each prompt as a (prompts,) array."""
        return params["u"] + jnp.zeros(data.num_examples)


def attention(X: Array, tilts: Array) -> Array:
    """Compute Σ_t q_t x_t for each tilt s and each prompt as a (tilts, prompts, d) array.

    The attention q is the softmax over t of x_t·s.
    """

    def one(s: Array) -> Array:
        scores = X @ s
        weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        return jnp.einsum("nt,ntd->nd", weights, X) / weights.sum(axis=1)[:, None]

    return jax.lax.map(one, tilts)


def queries(law: str) -> Array:
    """Return a grid of queries in the ball with the largest radius in `RADII`, as a (k, d) array."""
    if law == "plane":
        angles = jnp.arange(16) * 2 * jnp.pi / 16
        circle = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        return jnp.concatenate([jnp.zeros((1, 2)), *(r * circle for r in (0.25, 0.5, 0.75, 1.0))])
    step = {"normal": 8, "uniform": 4}[law]
    top = int(RADII[law][-1] * step)
    return jnp.arange(-top, top + 1)[:, None] / step


def limit(law: str, z: Array) -> Array:
    """Return the attention output for the queries z in the limit of infinitely many tokens.

    The result is a (k, d) array.
    """
    if law == "normal":
        return z
    if law == "plane":
        return (MEAN + (z @ KEY_QUERY.T) @ (ROOT @ ROOT.T).T) @ VALUE.T
    safe = jnp.where(z == 0, 1.0, z)
    return jnp.where(z == 0, 0.0, 1 / jnp.tanh(safe) - 1 / safe)


def ball(params: dict[str, Array], data: Prompts) -> dict[str, Array]:
    """Estimate the expected supremum of ‖A_n(z) - A(z)‖ over queries ‖z‖ ≤ R, for each radius R.

    A_n is the attention output on n tokens, and A is its limit. As a control, metrics with prefix `wrong_`
    compare A_n with 1.5 A. For scalar tokens, `hardmax` is the error of the largest of the n tokens: the mean
    of 1 - max for uniform tokens, and |1 - E[max]/√(2 log n)| for normal tokens.
    """
    z, X = queries(data.law), data.X.astype(params["u"].dtype)
    found = attention(X, z @ KEY_QUERY.T if data.law == "plane" else z)
    if data.law == "plane":
        found = found @ VALUE.T
    aim = limit(data.law, z)[:, None]
    errors = {"": jnp.linalg.norm(found - aim, axis=2), "wrong_": jnp.linalg.norm(found - 1.5 * aim, axis=2)}
    norm = jnp.linalg.norm(z, axis=1)[:, None]
    values = {
        f"{name}error_R{radius:g}": jnp.where(norm <= radius + 1e-9, error, 0).max(axis=0).mean()
        for name, error in errors.items()
        for radius in RADII[data.law]
    }
    n = X.shape[1]
    if data.law == "uniform":
        values["hardmax"] = (1 - X.max(axis=(1, 2))).mean()
    if data.law == "normal":
        values["hardmax"] = jnp.abs(1 - X.max(axis=(1, 2)).mean() / jnp.sqrt(2 * jnp.log(n)))
    return values


def moments(params: dict[str, Array], data: Prompts) -> dict[str, Array]:
    """Estimate E |∫ A_n(u z)² φ(z) dz - u²| for three strengths u.

    φ is the standard normal density. The integral is computed by the trapezoid rule on [-6, 6].
    """
    z = jnp.arange(-24, 25) / 4
    mass = jnp.exp(-(z**2) / 2)
    mass = mass / mass.sum()
    values = {}
    for u in STRENGTHS:
        found = attention(data.X.astype(params["u"].dtype), u * z[:, None])[:, :, 0]
        values[f"moment_u{u:g}"] = jnp.abs(mass @ found**2 - u**2).mean()
    return values
