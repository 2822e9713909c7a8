"""Gradient flow on p and v at large ‖v‖, parametrised by log r, with v as a function of p.

Let v = r v_mm + b with v_mm = Σ λ_s y_s E_s over the tokens s on which v_mm is tight, and β_s = y b·E_s. The
weights of sequences are

    log w_X = - Σ_s q_s β_s - r Σ_t q_t (y γ_t - 1),   γ = E v_mm,   with b such that Σ_X w_X q_s = λ_s.

The condition on b is a convex program, which is solved at every p by Newton's method. The flow is

    dp/dlog r = Σ_X w_X Σ_{i<j} q_i q_j (r² y (γ_i - γ_j) + r (β_i - β_j)) (E_i - E_j).

The sum over pairs avoids forces that are differences of larger forces. All forces are stored as logarithms.
In a sequence with r q |y γ - 1| > 1e6, the exponent is scaled down to 1e6. A wall is a light sequence that
stops p. The scaling changes the force of a wall of weight r^(-2): its components cancel up to a fraction of
(2 log r)/1e6, instead of (2 log r)/r. The position of the wall is shifted towards other tokens of its
sequence by the same fraction, 2 % at log r = 1e4.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import Radau

STEEP = 1e6
# Sequences whose log-weight is this many nats below the largest one exert no force on p.
ACTIVE = 100.0
# Finite-difference step; smaller than 1e-6, the width of the smoothed constraints.
APART = 1e-7


@dataclass
class Far:
    """Flow of p in log r for one corpus, one E and one v_mm.

    Attributes:
        E: (V, m); embeddings in an orthonormal basis of their span.
        ids: (n, W); the distinct tokens of every sequence.
        log_count: (n, W); log of the count of each token, -inf for padding.
        excess: (n, W); y γ - 1, exactly 0 on the margin.
        point: (n, W); index of each token among the tight tokens, or -1 if the token is not tight.
        multipliers: (k,); λ of the tight tokens.
    """

    E: np.ndarray
    ids: np.ndarray
    log_count: np.ndarray
    excess: np.ndarray
    point: np.ndarray
    multipliers: np.ndarray

    def __post_init__(self):
        self.i, self.j = np.triu_indices(self.ids.shape[1], 1)
        self.apart = self.E[self.ids[:, self.i]] - self.E[self.ids[:, self.j]]
        with np.errstate(divide="ignore"):
            self.log_excess = np.log(np.abs(self.excess))
        self.which = np.eye(len(self.multipliers) + 1)[self.point][:, :, :-1]
        self.beta, self.kept = None, 0.0

    def begin(self, log_r, p):
        """Store corrections that cancel the effect of `scale` on active weights at the initial p."""
        log_q = self.attention(p[None])
        parts = np.sign(self.excess) * np.exp(log_q + self.log_excess + log_r)
        scale, full = self.scale(log_q, log_r), parts.sum(axis=2)
        self.kept = np.where(full < ACTIVE, full * -np.expm1(scale - log_r), 0.0)

    def attention(self, p):
        """Compute log q with shape (B, n, W) at points p with shape (B, m)."""
        own = (p @ self.E.T)[:, self.ids] + self.log_count
        own -= own.max(axis=2, keepdims=True)
        return own - np.log(np.exp(own).sum(axis=2, keepdims=True))

    def scale(self, log_q, log_r):
        """Compute the log of the factor on y f - 1 as a (B, n) array: log r, or less for steep sequences."""
        return np.minimum(log_r, np.log(STEEP) - (log_q + self.log_excess).max(axis=2))

    def weights(self, log_q, log_r):
        """Solve the convex program for β by Newton's method, and return β and log w.

        β has shape (B, k), and log w has shape (B, n).
        """
        q = np.exp(log_q)
        scale = self.scale(log_q, log_r)[:, :, None]
        rest = (np.sign(self.excess) * np.exp(log_q + self.log_excess + scale)).sum(axis=2) + self.kept
        Q = np.einsum("bnw,nwk->bnk", q, self.which)
        beta = self.beta if self.beta is not None else self._begin(Q[:1], rest[:1])
        beta = np.broadcast_to(beta, (len(q), len(self.multipliers))).copy()
        for _ in range(100):
            w = np.exp(np.minimum(-np.einsum("bnk,bk->bn", Q, beta) - rest, 50))
            off = np.einsum("bn,bnk->bk", w, Q) - self.multipliers
            hessian = np.einsum("bn,bnk,bnl->bkl", w, Q, Q)
            move = np.linalg.solve(hessian + 1e-14 * np.eye(len(self.multipliers)), off[..., None])[..., 0]
            beta += np.clip(move, -2, 2)
            settled = (np.abs(move) < 1e-9 * (1 + np.abs(beta))).all(axis=1)
            if settled.all():
                break
        # NaN makes the integrator retry with a smaller step.
        beta[~settled] = np.nan
        return beta, -np.einsum("bnk,bk->bn", Q, beta) - rest

    def _begin(self, Q, rest):
        """Return an initial guess of β, which is exact if every sequence attends to one token."""
        held = (np.exp(-np.maximum(rest, -50))[:, :, None] * Q).sum(axis=(0, 1))
        return np.log(np.maximum(held, 1e-30) / self.multipliers)

    def velocity(self, log_r, p):
        """Compute dp/dlog r at points p with shape (B, m), and β with shape (B, k)."""
        log_q = self.attention(p)
        beta, log_w = self.weights(log_q, log_r)
        held = np.concatenate([beta, np.zeros((len(p), 1))], axis=1)[:, self.point]
        both = log_w[:, :, None] + log_q[:, :, self.i] + log_q[:, :, self.j] + log_r
        there = both != -np.inf  # True for NaN (no solution), so that the integrator sees it
        both = np.where(there, both, -1e4)
        steep = self.excess[:, self.i] - self.excess[:, self.j]
        pull = np.exp(np.minimum(both + log_r, 600)) * steep
        pull += np.exp(np.minimum(both, 600)) * (held[:, :, self.i] - held[:, :, self.j]) * (steep == 0)
        return np.tensordot(np.where(there, pull, 0), self.apart, 2), beta

    def __call__(self, log_r, p):
        """Compute the velocity at one point p with shape (m,), and store β as the next initial guess."""
        found, beta = self.velocity(log_r, p[None])
        if np.isfinite(beta).all():
            self.beta = beta[0]
        return found[0]

    def jacobian(self, log_r, p):
        """Compute ∂(dp/dlog r)/∂p by central differences."""
        moved = APART * np.eye(len(p))
        found, _ = self.velocity(log_r, np.concatenate([p + moved, p - moved]))
        ahead, behind = np.split(found, 2)
        return (ahead - behind).T / (2 * APART)


def follow(far, p, log_r, until, tolerance=1e-6, steps=20_000):
    """Integrate the flow from p at log r to log r = `until`.

    Returns log r with shape (k,), p with shape (k, m), and True if the integration reached `until`.
    """
    far.begin(log_r, p)
    speed = float(np.linalg.norm(far(log_r, p)))
    if not np.isfinite(speed):  # there is no solution for the weights, or p is far from feasible
        return np.array([log_r]), p[None], False
    # Scores need absolute accuracy rather than accuracy relative to ‖p‖: too long a step would change the top
    # token.
    given = {"rtol": 1e-2 * tolerance, "atol": tolerance, "max_step": until / 20}
    # p first relaxes towards the slightly displaced constraints, so the first steps may be tiny.
    given["first_step"] = 1e-6 / max(speed, 1.0)
    solver = Radau(
        lambda after, p: far(log_r + after, p),
        0.0,
        p,
        until - log_r,
        jac=lambda after, p: far.jacobian(log_r + after, p),
        **given,
    )
    times, points = [log_r], [p]
    while solver.status == "running" and len(times) < steps:
        solver.step()
        times.append(log_r + solver.t)
        points.append(solver.y.copy())
    return np.array(times), np.array(points), solver.status == "finished"
