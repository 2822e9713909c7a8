"""Max-margin head v_mm and finite scores in the limit of the joint flow of p and v."""

from typing import NamedTuple

import numpy as np
from two_sided import two_sided

# Multipliers below this fraction of their sum count as rounding error.
_NO_MULTIPLIER = 1e-9
_NEWTON_STEPS = 50


class Entries(NamedTuple):
    """Distinct tokens of all sequences as flat arrays with shape (N,), and labels with shape (n,)."""

    sequence: np.ndarray
    token: np.ndarray
    times: np.ndarray
    labels: np.ndarray

    def attention(self, scores: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
        """Compute log q as an (N,) array from scores with shape (V,).

        If the mask `among` is given, the softmax is restricted to its entries.
        """
        own = scores[self.token] + np.log(self.times)
        own = own if among is None else np.where(among, own, -np.inf)
        top = np.full(len(self.labels), -np.inf)
        np.maximum.at(top, self.sequence, own)
        top = np.where(np.isfinite(top), top, 0)
        total = np.bincount(self.sequence, np.exp(own - top[self.sequence]), len(self.labels))
        return own - (top + np.log(np.where(total > 0, total, 1)))[self.sequence]


class NotCertified(Exception):
    """Raised when there is no certificate. The message states the reason."""


class Head(NamedTuple):
    """Head v_mm at the points of heavy sequences, and the proof that finite scores maximise its margin."""

    scores: np.ndarray
    v: np.ndarray
    point: np.ndarray
    multipliers: np.ndarray
    gap: float
    gradient: float
    curvature: float


def solve_head(
    E: np.ndarray, p: np.ndarray, entries: Entries, heavy: np.ndarray, mixed: np.ndarray, normals: np.ndarray
) -> Head:
    """Solve for v_mm and the finite scores jointly by Newton's method."""
    place, point = _points(entries, heavy, mixed)
    chosen = mixed & np.isin(entries.sequence, place)
    rows, q, z = _at(E, p, entries, chosen, place)
    first = two_sided(z, np.ones(len(z)))
    if not first.feasible:
        raise NotCertified("no v separates the points of heavy sequences")
    active = first.multipliers > _NO_MULTIPLIER * first.multipliers.sum()
    if not active.all():
        raise NotCertified("a heavy sequence has no multiplier")
    v, multipliers = first.p, first.multipliers
    lift = E @ normals.T
    for _ in range(_NEWTON_STEPS if len(normals) else 0):
        force, system, unknown = _system(E, lift, entries, chosen, rows, q, z, v, multipliers)
        move = np.linalg.lstsq(system, -force, rcond=1e-13)[0]
        t, dv, dm = np.split(move, unknown)
        p, v, multipliers = p + normals.T @ t, v + dv, multipliers + dm
        rows, q, z = _at(E, p, entries, chosen, place)
        if np.abs(move).max() < 1e-13 * (1 + np.abs(multipliers).max()):
            break
    if not (multipliers > 0).all():
        raise NotCertified("a heavy sequence has no multiplier at the stationary finite scores")
    summed = multipliers @ z
    gap = 1 - (z @ summed).min() * multipliers.sum() / (summed @ summed)
    gradient, curvature = 0.0, np.inf
    if len(normals):
        force, system, unknown = _system(E, lift, entries, chosen, rows, q, z, summed, multipliers)
        parts = np.abs(q * (E @ summed)[entries.token[chosen]]) @ np.abs(lift[entries.token[chosen]])
        gradient = float(np.abs(force[: unknown[0]]).max() / (multipliers.max() * parts.max()))
        curvature = _least_curvature(system, unknown)
    return Head(E @ p, summed, point, multipliers, max(gap, 0.0), gradient, curvature)


def _points(entries: Entries, heavy: np.ndarray, mixed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a sequence for each point, and the point of each sequence, which is -1 for light sequences."""
    single = np.bincount(entries.sequence[mixed], minlength=len(heavy)) == 1
    key = np.arange(len(heavy)) + 2 * (entries.token.max() + 1)
    own = mixed & single[entries.sequence]
    key[entries.sequence[own]] = 2 * entries.token[own] + (entries.labels[entries.sequence[own]] > 0)
    _, place, point = np.unique(key[heavy], return_index=True, return_inverse=True)
    all_points = np.full(len(heavy), -1)
    all_points[heavy] = point
    return np.flatnonzero(heavy)[place], all_points


def _at(
    E: np.ndarray, p: np.ndarray, entries: Entries, chosen: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the point index and y q for each chosen entry, and the (k, D) points z = y Σ q E."""
    log_q = entries.attention(E @ p, chosen)[chosen]
    sequence = entries.sequence[chosen]
    order = np.argsort(place)
    rows = order[np.searchsorted(place, sequence, sorter=order)]
    q = entries.labels[sequence] * np.exp(log_q)
    z = np.zeros((len(place), E.shape[1]))
    np.add.at(z, rows, q[:, None] * E[entries.token[chosen]])
    return rows, q, z


def _system(
    E: np.ndarray,
    lift: np.ndarray,
    entries: Entries,
    chosen: np.ndarray,
    rows: np.ndarray,
    q: np.ndarray,
    z: np.ndarray,
    v: np.ndarray,
    multipliers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the residuals of the optimality conditions, their Jacobian, and the end indices of t and v.

    The conditions are

        Σ λ ∂(v·z)/∂t = 0,   Σ λ z - v = 0,   v·z - 1 = 0,   with coordinates t along 𝒯.
    """
    token = entries.token[chosen]
    k, (m, dim) = lift.shape[1], z.shape
    labels = np.sign(q)
    mean = np.zeros((m, k))
    np.add.at(mean, rows, np.abs(q)[:, None] * lift[token])
    u = lift[token] - mean[rows]
    signs = np.zeros(m)
    signs[rows] = labels
    below = (E @ v)[token] - signs[rows] * (z @ v)[rows]
    turning = np.zeros((m, dim, k))
    np.add.at(turning, rows, q[:, None, None] * E[token][:, :, None] * u[:, None, :])
    bend = (u * (multipliers[rows] * q * below)[:, None]).T @ u
    across = np.tensordot(multipliers, turning, 1)
    slopes = np.einsum("mdk,d->mk", turning, v)
    force = np.concatenate([multipliers @ slopes, multipliers @ z - v, z @ v - 1])
    system = np.block(
        [[bend, across.T, slopes.T], [across, -np.eye(dim), z.T], [slopes, z, np.zeros((m, m))]]
    )
    return force, system, [k, k + dim]


def _least_curvature(system: np.ndarray, unknown: list[int]) -> float:
    """Compute the smallest eigenvalue of -∇² in (t, v) at fixed margins, relative to the largest modulus."""
    size = unknown[1]
    hessian, margins = -system[:size, :size], system[size:, :size]
    _, values, vt = np.linalg.svd(margins)
    rank = int((values > 1e-10 * values[0]).sum())
    tangent = vt[rank:]
    if len(tangent) == 0:
        return np.inf
    eigenvalues = np.linalg.eigvalsh(tangent @ hessian @ tangent.T)
    return float(eigenvalues[0] / np.abs(eigenvalues).max())


def weights_of_sequences(entries: Entries, heavy: np.ndarray, head: Head) -> np.ndarray:
    """Distribute the multiplier of each point equally among its sequences, and return an (n,) array."""
    shared = np.bincount(head.point[heavy], minlength=len(head.multipliers))
    weight = np.zeros(len(heavy))
    weight[heavy] = (head.multipliers / shared)[head.point[heavy]]
    return weight
