"""Reference implementation of `joint_flow` (gradient flow on p and v with fixed E) in NumPy and SciPy.

The state is p, u = v/‖v‖ and ρ = log ‖v‖. With γ = E u, attention q and weights w = sigmoid(-y e^ρ q·γ) of
the sequences, stored as logarithms,

    dp = e^ρ Σ_X y w Σ_{i<j} q_i q_j (γ_i - γ_j) (E_i - E_j),    G = Σ_X y w Σ_i q_i E_i,
    dρ = e^(-ρ) u·G,    du = e^(-ρ) (G - (u·G) u).

The sums over pairs of tokens avoid cancellation between large forces. Time is rescaled such that
‖dp/dt‖ + |dρ/dt| = 1. Weights lose digits as e^ρ grows: at ρ = 23, a rounding error of 1e-16 in u changes
the weights by 1e-6.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import OdeSolution, Radau
from scipy.optimize import brentq


@dataclass
class JointODE:
    """Velocity of the flow for a corpus with padded sequences.

    Attributes:
        E: (V, m); embeddings in an orthonormal basis of the span of E, p and v.
        ids: (n, T); tokens.
        mask: (n, T); True for tokens, False for padding.
        labels: (n,); -1 or 1.
    """

    E: np.ndarray
    ids: np.ndarray
    mask: np.ndarray
    labels: np.ndarray

    def __call__(self, _, state):
        """Compute the velocity at one state with shape (2m + 1,), or at k states with shape (2m + 1, k)."""
        several = state.reshape(len(state), -1).T
        p, u, rho = np.split(several, [self.E.shape[1], -1], axis=1)
        u = u / np.linalg.norm(u, axis=1, keepdims=True)
        scores = np.where(self.mask, (p @ self.E.T)[:, self.ids], -np.inf)
        scores -= scores.max(axis=2, keepdims=True)
        q = np.exp(scores)
        q /= q.sum(axis=2, keepdims=True)
        values = (u @ self.E.T)[:, self.ids]
        log_weight = -np.logaddexp(0, self.labels * np.exp(rho) * (q * values).sum(axis=2))
        weight = (self.labels * np.exp(log_weight - log_weight.max(axis=1, keepdims=True)))[:, :, None]
        i, j = np.triu_indices(self.ids.shape[1], 1)
        pair = weight * q[:, :, i] * q[:, :, j] * (values[:, :, i] - values[:, :, j])
        apart = self.E[self.ids[:, i]] - self.E[self.ids[:, j]]
        dp = np.exp(rho) * np.tensordot(pair, apart, 2)
        G = np.tensordot(weight * q, self.E[self.ids], 2)
        along = (u * G).sum(axis=1, keepdims=True)
        found = np.concatenate([dp, np.exp(-rho) * (G - along * u), np.exp(-rho) * along], axis=1)
        speed = np.linalg.norm(dp, axis=1, keepdims=True) + np.abs(found[:, -1:])
        return (found / speed).T.reshape(state.shape)


@dataclass
class Followed:
    """Path of the flow of p and v, which `at` evaluates at a given log ‖v‖.

    Attributes:
        solution: the state as a function of time.
        rho: log ‖v‖ at the ends of steps.
        basis: (m, d); orthonormal basis of the span of E, p and v.
    """

    solution: OdeSolution
    rho: np.ndarray
    basis: np.ndarray

    @property
    def until(self):
        """Largest value of log ‖v‖ on the path."""
        return self.rho[-1]

    def at(self, log_norm):
        """Return p and v/‖v‖ at the last point with the given log ‖v‖, as a (2, d) array."""
        last = np.flatnonzero(self.rho[:-1] <= log_norm)[-1]
        ends = self.solution.ts[last : last + 2]
        found = brentq(lambda t: self.solution(t)[-1] - log_norm, *ends, xtol=1e-14)
        p, u = self.solution(found)[:-1].reshape(2, -1)
        return np.stack([p, u / np.linalg.norm(u)]) @ self.basis


def follow(E, p, v, ids, mask, labels, until, tolerance=1e-8, evaluations=100_000):
    """Integrate the flow from p and v until log ‖v‖ ≥ `until`.

    The integration stops earlier after `evaluations` evaluations of the velocity.
    """
    basis = np.linalg.svd(np.concatenate([E, p[None], v[None]]), full_matrices=False)[2]
    m, length = len(basis), np.linalg.norm(v)
    start = np.concatenate([basis @ p, basis @ v / length, [np.log(length)]])
    # The error in u = v/‖v‖ must be a small fraction of e^(-ρ), where ρ = log ‖v‖.
    allowed = np.concatenate([np.full(m, tolerance), np.full(m, 1e-5 * tolerance), [tolerance]])
    field = JointODE(E @ basis.T, ids, mask, labels)
    solver = Radau(field, 0.0, start, np.inf, rtol=tolerance, atol=allowed, vectorized=True)
    times, rho, pieces = [0.0], [start[-1]], []
    while solver.status == "running" and rho[-1] < until and solver.nfev < evaluations:
        solver.step()
        if solver.t > times[-1]:
            times.append(solver.t)
            rho.append(solver.y[-1])
            pieces.append(solver.dense_output())
    return Followed(OdeSolution(times, pieces), np.array(rho), basis)
