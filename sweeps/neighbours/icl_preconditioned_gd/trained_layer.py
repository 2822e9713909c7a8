"""Probes that compare a layer trained on in-context linear regression with the closed form."""

import jax.numpy as jnp
import numpy as np
from icl_preconditioned_gd import (
    SPECTRUM,
    LinearAttention,
    Params,
    Prompts,
    minimum,
    squares,
    step_sizes,
)
from jax import Array

import jaxattn as ja

GROUPS = {"1": 1.0, "1/4": 1 / 4, "1/16": 1 / 16}  # the distinct eigenvalues
PRIORS = {False: "w ~ N(0, I)", True: "w ~ N(0, 1/Σ)"}


@ja.declare(labels={f"step_size_{name}": f"step size along λ = {name} (ratio)" for name in GROUPS})
def preconditioner(params: Params, data: Prompts) -> dict[str, Array]:
    """Compare A = -P_yy Q_xx with the closed form, and measure the other entries that affect the output.

    For each eigenvalue λ of Σ, `step_size_λ` is the mean of uᵀ A u over the eigenvectors u with eigenvalue λ,
    divided by its closed form.
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
    """Compute the ratio of the loss to the loss of the closed-form minimum on the same prompts."""
    losses = [
        squares(LinearAttention().outputs(x, data), data.targets).mean() for x in (params, minimum(data))
    ]
    return losses[0] / losses[1]
