"""Convergence of W to the max-margin direction with gradient, normalised, Polyak and rescaled steps."""

from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

import jaxattn as ja
from jaxattn.attention.scores import from_query
from jaxattn.base import State, Task
from jaxattn.data import Vectors
from jaxattn.theory import Scores


def one_optimal(key: Array, *, dim: int, length: int, sequences: int) -> Vectors:
    """Sample labels y = ±1 and tokens from N(0, I/d), and replace the first entry of each token.

    The first entry becomes y in the first token, and 0 in all other tokens. The query is the first token.
    """
    label_key, token_key = jax.random.split(key)
    y = jax.random.rademacher(label_key, (sequences,), jnp.int32)
    X = jax.random.normal(token_key, (sequences, length, dim)).at[:, :, 0].set(0) / dim**0.5
    X = X.at[:, 0, 0].set(y)
    return Vectors(targets=y, X=X, z=X[:, 0], classes=2)


class Params(NamedTuple):
    """Key-query matrix W with shape (d, d), initialised to zero."""

    W: Array


class FixedDecoder(ja.Model[Vectors]):
    """Attention f(X) = Σ_t q_t x_t·e_1 with scores x_t·W x_1.

    f equals y times the attention on the first token.
    """

    takes: ClassVar[type[Vectors]] = Vectors
    linear_in: ClassVar[str] = "W"

    def init(self, key: Array, like: Vectors, *, dtype: jnp.dtype) -> Params:
        """Return W = 0."""
        return Params(jnp.zeros((like.dim, like.dim), dtype))

    def outputs(self, params: Params, data: Vectors) -> Array:
        """Compute f for each sequence as an (n,) array."""
        return (jnp.exp(log_attention(params, data)) * data.X[:, :, 0]).sum(axis=1)

    def scores(self, params: Params, data: Vectors) -> Scores:
        """Return the scores as a linear function Φ vec W with Φ = x ⊗ z, and the values x·e_1."""
        return from_query(data.X, data.z, data.targets, values=data.X[:, :, 0])


def log_attention(params: Params, data: Vectors) -> Array:
    """Compute the logarithm of the attention q as an (n, T) array."""
    return jax.nn.log_softmax(data.dot(data.z @ params.W.T), axis=1)


def steepest(params: Params, data: Vectors) -> tuple[Array, Array, Array]:
    """Compute -∇L/‖∇L‖, log ‖∇L‖ and log(L - L*), where L* = log(1 + 1/e).

    The computation is in the log domain, and therefore accurate for any ‖W‖. It uses

        -∂L/∂W = (1/n) Σ_i σ(-q_i1) q_i1 Σ_t q_it (x_i1 - x_it) z_iᵀ,

    in which all weights are positive.
    """
    log_q = log_attention(params, data)
    log_off = jax.nn.logsumexp(log_q[:, 1:], axis=1)  # 1 - q_1
    weight = log_q[:, 1:] + (log_q[:, 0] + jax.nn.log_sigmoid(-jnp.exp(log_q[:, 0])))[:, None]
    largest, apart = weight.max(), data.X[:, :1] - data.X[:, 1:]
    G = jnp.einsum("nt,ntd,ne->de", jnp.exp(weight - largest), apart, data.z) / data.num_examples
    norm = jnp.linalg.norm(G)
    # This is log(1 + σ(-1)(e^δ - 1)) with δ = 1 - q_1, which is approximately σ(-1) δ for small δ.
    small, σ = log_off < -20, jax.nn.sigmoid(-1.0)
    exact = jnp.log(jnp.log1p(σ * jnp.expm1(jnp.exp(log_off))))
    excess = jnp.where(small, jnp.log(σ) + log_off, exact)
    return G / norm, largest + jnp.log(norm), jax.nn.logsumexp(excess) - jnp.log(data.num_examples)


class Steps(ja.Phase, kw_only=True):
    """Descent on W with gradient, normalised, Polyak or rescaled steps.

    Gradient steps have length η ‖∇L‖, normalised steps η, and Polyak steps η (L - L*)/‖∇L‖. Rescaled steps
    have length η. After the first 100 of them, ‖W‖ is set to radius · 1.2^k for k = 0, 1, ... in turn, and is
    bounded by this value for `hold` steps.
    """

    train: ClassVar[tuple[str, ...]] = ("W",)

    rule: Literal["gradient", "normalised", "polyak", "rescaled"] = "normalised"
    step_size: float
    steps: int
    radius: float = 80.0
    hold: int = 5

    def step(self, task: Task, state: State) -> State:
        """Take one step."""
        W, data, radius = state.params.W, task.data.train, jnp.inf
        if self.rule == "rescaled":
            k, since = jnp.divmod(state.step - 100, self.hold)
            radius = jnp.where(k < 0, jnp.inf, self.radius * 1.2**k)
            W = jnp.where((k >= 0) & (since == 0), radius / jnp.linalg.norm(W), 1) * W
        u, log_norm, excess = steepest(Params(W), data)
        lengths = {"gradient": jnp.exp(log_norm), "polyak": jnp.exp(excess - log_norm)}
        W = W + self.step_size * lengths.get(self.rule, 1.0) * u
        W = W * jnp.minimum(1, radius / jnp.linalg.norm(W))
        return state.replace(params=Params(W), step=state.step + 1)


def log_off(params: Params, data: Vectors) -> Array:
    """Compute the logarithm of the mean attention on tokens other than the first."""
    return jax.nn.logsumexp(log_attention(params, data)[:, 1:]) - jnp.log(data.num_examples)
