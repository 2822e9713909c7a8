"""Gradient of the loss in the first-layer scores, and its closed form as a mutual information."""

import jax
import jax.numpy as jnp
from jax import Array
from transitions import stationary
from trees import Trees

import jaxattn as ja


def information(data: Trees, floor: float = 0.0) -> Array:
    """Compute the matrix g_ij = E[Σ_ss' π(s'|s)/μ(s') P(s_i = s', s_j = s)] - 1 for j ≤ i < T - 1.

    If j is the parent of i, g_ij is the χ² mutual information of a token and its parent,
    E[Σ_ss' μ(s) π(s'|s)²/μ(s')] - 1. In the denominator, `floor` replaces smaller values of μ(s').
    """
    P, parents = data.P, data.parents[0, :-1]
    T, mu = len(parents), stationary(data.P)
    order = jnp.arange(T)
    independent = mu[:, :, None] * mu[:, None, :]

    def row(joint: Array, i: Array) -> tuple[Array, None]:
        # joint[j, k]: probabilities (n, s, s') of s_j = s and s_k = s', for j and k below i
        own = jnp.where(parents[i] < 0, independent, jnp.einsum("jnab,nbc->jnac", joint[:, parents[i]], P))
        own = own.at[i].set(mu[:, :, None] * jnp.eye(mu.shape[1]))
        return joint.at[:, i].set(own).at[i].set(own.swapaxes(2, 3)), None

    joint = jnp.zeros((T, T, *P.shape))
    joint, _ = jax.lax.scan(row, joint, order)
    g = jnp.einsum("jinab,nab->ij", joint, P / jnp.maximum(mu, floor)[:, None, :]) / len(P) - 1
    return jnp.where(order[None] <= order[:, None], g, 0)


class Gradient(ja.Probe):
    """Comparison of the gradient -(T S i/β) ∂L/∂A1_ij at A2 = β I with g_ij minus its mean over j ≤ i."""

    matrices: int = 1024

    def skip_reason(self, task: object, phase: ja.Phase) -> str | None:
        """Return a reason to skip the phase if it does not train A1, else None."""
        return None if "A1" in phase.train else "requires a phase that trains A1"

    def measure(self, context: ja.probes.ProbeContext) -> dict[str, Array]:
        """Compute the metrics for one seed on its training data."""
        data = context.data.train
        T, parents = data.ids.shape[1], data.parents[0, :-1]
        order, strict = jnp.arange(T - 1), jnp.tri(T - 1, k=-1, dtype=bool)
        scale = T * data.vocab_size * (order + 1.0)[:, None] / context.params["A2"][0, 0]
        measured = -scale * context.loss_and_gradients[1]["A1"][:-1, :-1]
        some, has_parent = data.take(jnp.arange(self.matrices)), parents >= 0
        largest = jnp.where(strict, measured, -jnp.inf).argmax(axis=1) == parents

        def centred(z: Array) -> Array:
            return jnp.where(strict, z - (z * strict).sum() / strict.sum(), 0)

        found = {"gradient_largest": (largest & has_parent).sum() / has_parent.sum()}
        for words, floor in {"": 0.0, "_frequent": 1 / T}.items():
            g = information(some, floor)
            x, y = centred(g - g.sum(axis=1, keepdims=True) / (order + 1.0)[:, None]), centred(measured)
            found[f"gradient_slope{words}"] = (x * y).sum() / (x**2).sum()
            found[f"gradient_correlation{words}"] = (x * y).sum() / jnp.sqrt((x**2).sum() * (y**2).sum())
        return found
