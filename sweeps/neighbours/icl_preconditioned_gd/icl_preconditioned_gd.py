"""In-context linear regression by one layer of linear attention, and its global minimum in closed form."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

import jaxattn as ja
from jaxattn.lab.books import Item, Measured, cells, declare_names, mean

SPECTRUM = np.array([1, 1, 1 / 4, 1 / 16, 1])  # eigenvalues λ of the covariance Σ of x
GROUPS = {"1": 1.0, "1/4": 1 / 4, "1/16": 1 / 16}  # the distinct eigenvalues
PRIORS = {False: "w ~ N(0, I)", True: "w ~ N(0, 1/Σ)"}


class Prompts(ja.Dataset):
    """Prompts of n pairs (x, w·x) and a query (x, 0); the targets are w·x of the query."""

    Z: Array  # (m, n + 1, d + 1)
    U: Array  # (m, d, d) eigenvectors of Σ in columns, the same for all prompts
    inverse: bool = struct.field(pytree_node=False, kw_only=True)


def prompts(key: Array, task_key: Array, *, sequences: int, length: int, inverse: bool = False) -> Prompts:
    """Sample x ~ N(0, Σ) and one w ~ N(0, I) or N(0, Σ^-1) per prompt; Σ = U diag(λ) Uᵀ with a random U."""
    d, std = len(SPECTRUM), jnp.sqrt(SPECTRUM)
    U = jax.random.orthogonal(task_key, d)
    x_key, w_key = jax.random.split(key)
    x = jax.random.normal(x_key, (sequences, length + 1, d)) * std @ U.T
    w = jax.random.normal(w_key, (sequences, d)) / (std if inverse else 1) @ U.T
    y = jnp.einsum("mtd,md->mt", x, w)
    Z = jnp.concatenate([x, y.at[:, -1].set(0)[:, :, None]], axis=2)
    return Prompts(targets=y[:, -1], Z=Z, U=jnp.broadcast_to(U, (sequences, d, d)), inverse=inverse)


def step_sizes(length: int, inverse: bool) -> np.ndarray:
    """Compute the eigenvalues ω/((1 + 1/n) λω + Σλω/n) of the best A; ω are those of the covariance of w."""
    omega = 1 / SPECTRUM if inverse else np.ones_like(SPECTRUM)
    return omega / ((1 + 1 / length) * SPECTRUM * omega + (SPECTRUM * omega).sum() / length)


def least_loss(length: int, inverse: bool) -> float:
    """Compute the loss Σ λω (1 - λ a) of the best A, whose eigenvalues are a."""
    omega = 1 / SPECTRUM if inverse else np.ones_like(SPECTRUM)
    return float((SPECTRUM * omega * (1 - SPECTRUM * step_sizes(length, inverse))).sum())


class Params(NamedTuple):
    """Value matrix P and merged key-query matrix Q."""

    P: Array  # (d + 1, d + 1)
    Q: Array  # (d + 1, d + 1)


class LinearAttention(ja.Model[Prompts]):
    """The negative last entry of the query's token after Z + P Z M (Zᵀ Q Z)/n, where M masks the query."""

    takes: ClassVar[type[Prompts]] = Prompts

    start: float = 0.1

    def init(self, key: Array, like: Prompts, *, dtype: jnp.dtype) -> Params:
        """Sample normal entries with standard deviation `start`."""
        size = like.Z.shape[2]
        return Params(*(self.start * jax.random.normal(key, (2, size, size), dtype)))

    def outputs(self, params: Params, data: Prompts) -> Array:
        """Compute the prediction of w·x of the query, (m,); only the last row of P has an effect."""
        context, query = data.Z[:, :-1], data.Z[:, -1]
        scores = jnp.einsum("mta,ma->mt", context, query @ params.Q.T)
        return -(context @ params.P[-1] * scores).mean(axis=1)


def squares(outputs: Array, targets: Array) -> Array:
    """Compute (f - y)² of each prompt."""
    return (outputs - targets) ** 2


def minimum(data: Prompts) -> Params:
    """Build the closed-form global minimum: P is 1 in the last entry, and Q is -A with zeros around it."""
    size, U = data.Z.shape[2], data.U[0]
    A = U * step_sizes(data.Z.shape[1] - 1, data.inverse) @ U.T
    zero = jnp.zeros((size, size), data.Z.dtype)
    return Params(zero.at[-1, -1].set(1), zero.at[:-1, :-1].set(-A))


@ja.declare(labels={f"step_size_{name}": f"step size along λ = {name} (ratio)" for name in GROUPS})
def preconditioner(params: Params, data: Prompts) -> dict[str, Array]:
    """Compare A = -P_yy Q_xx with the closed form, and measure the other entries that have an effect.

    `step_size_λ` is the mean of uᵀ A u over the eigenvectors u of Σ with eigenvalue λ, over its closed form.
    """
    p, Q, U = params.P[-1], params.Q[:, :-1], data.U[0]
    best = step_sizes(data.Z.shape[1] - 1, data.inverse)
    A = -p[-1] * U.T @ Q[:-1] @ U
    rest = jnp.sqrt((p[:-1] ** 2).sum() / p[-1] ** 2 + (Q[-1] ** 2).sum() / (Q**2).sum())
    ratios = jnp.diagonal(A) / best
    sizes = {f"step_size_{name}": ratios[value == SPECTRUM].mean() for name, value in GROUPS.items()}
    error = jnp.linalg.norm(A - jnp.diag(best)) / np.linalg.norm(best)
    return sizes | {"matrix_error": error, "other_entries": rest}


@ja.declare(labels={"loss_ratio": "loss / that of the closed form"})
def loss_ratio(params: Params, data: Prompts) -> Array:
    """Compute the loss over that of the closed-form minimum on the same prompts."""
    losses = [
        squares(LinearAttention().outputs(x, data), data.targets).mean() for x in (params, minimum(data))
    ]
    return losses[0] / losses[1]


MEASURED = {  # by metric
    **{f"step_size_{name}": f"step size along λ = {name} / closed form" for name in GROUPS},
    "matrix_error": "relative error of A",
    "other_entries": "other entries",
    "loss_ratio": "loss / that of the closed form",
    "loss": "loss / closed form",
}


@declare_names(*(f"{prior}: {words}" for prior in PRIORS.values() for words in MEASURED.values()))
def at_the_end(results: ja.Results, item: Item) -> Measured:
    """Compare the trained matrices and the loss at the end of training with the closed form."""
    findings = []
    for cell in cells(results):
        inverse, length = cell["data.inverse"], cell["data.length"]
        for metric, words in MEASURED.items():
            samples = cell.last(metric, "train") / (least_loss(length, inverse) if metric == "loss" else 1)
            findings.append(mean(f"{PRIORS[inverse]}: {words}", samples))
    return Measured(findings, {})
