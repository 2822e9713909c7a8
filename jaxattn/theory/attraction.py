"""Forces that attract a token to the top: whether p still moves outwards to its limit.

Let p = s p_* + w with w ⟂ p_*. A term c e^(-θ·p) of the loss has the rate θ·p_*, where p_* has margin 1. It
attracts if c < 0. Terms with a rate above 1 vanish next to those with rate 1, and for large s,

    ‖p_*‖ ds/dt = e^(-s) F·e,    dw/dt = e^(-s) (F - (F·e) e),    F(w) = Σ_k c_k θ_k e^(-θ_k·w),

where e = p_*/‖p_*‖, over the terms with rate 1. If all of them repel, the right-hand side is the gradient of
a convex function of w, and s grows. Otherwise, the path converges to the direction p_* if the forces across
p_* cancel at some w where Σ_k c_k θ_k θ_kᵀ e^(-θ_k·w) is positive definite across p_*, and F·e > 0. The other
terms are then a perturbation that decays, and w returns to this point, provided that it starts nearby. At the
given point, the sum of all forces must move p outwards, too: a term with a rate slightly above 1 may still
outweigh the others there. It must also not move w far before it decays, because its force grows on the way.
docs/notes/exact_flow_ties.md derives the bound.
"""

from typing import NamedTuple

import numpy as np

from jaxattn.core.arithmetic import lengths
from jaxattn.theory.infeasible import exact_rank, residues
from jaxattn.theory.orders import Entries, Orders
from jaxattn.theory.solution import MaxMargin

# Accuracy of a rate in float64, and the relative size below which a force or a stiffness counts as zero.
_ZERO = 1e-8
# Maximum relative size of a force that should be zero, at a duality gap of 1e-10.
_NO_FORCE = 1e-5
# Newton's method changes no exponent by more than this at a time.
_STEP = 1.0
_ITERATIONS = 100


class Attraction(NamedTuple):
    """`attracting_rate`, `attracting_component`, `attracting_drift` and `outward` of `Limit`."""

    rate: float
    component: float
    drift: float
    outward: float


class Terms(NamedTuple):
    """Terms c e^(-θ·p) of the loss times n, (k,). θ is the difference of two keys, or the sum of two of them.

    Attributes:
        ends: (k, 4) int; tokens with θ = E_0 - E_1 + E_2 - E_3.
        sign: (k,); 1 for c > 0, which repels, and -1 for c < 0.
        log_size: (k,); log |c|.
    """

    ends: np.ndarray
    sign: np.ndarray
    log_size: np.ndarray


def accuracy(direction: MaxMargin) -> float:
    """Bound the error of p_* relative to its norm: ‖p - p_*‖² ≤ gap ‖p‖², for the solution p."""
    return _ZERO + float(np.sqrt(direction.duality_gap))


def attraction(
    E: np.ndarray,
    entries: Entries,
    order: Orders,
    direction: MaxMargin,
    normals: np.ndarray,
    p: np.ndarray,
) -> Attraction:
    """Measure the attracting forces near the point p of a path to p_*, the solution of `direction`."""
    ends, terms = _attracting(entries, order), leading_terms(entries, order)
    if not direction.feasible or not (len(ends) or (terms.sign < 0).any()):
        return Attraction(np.inf, 0.0, 0.0, np.inf)
    theta = _differences(E, ends)
    slowest = (theta @ direction.p).min(initial=np.inf)
    near = _near(theta, direction)
    every = _differences(E, terms.ends)
    exponents = terms.log_size - every @ p
    now = _balance(terms.sign, exponents, every @ direction.p)
    span = _span(E, direction, normals)
    component = span.component(theta[near], ends[near]) if near.any() else 0.0
    if not component <= _NO_FORCE:
        return Attraction(slowest, component, np.inf, now)
    leading = _near(every, direction)
    # A repelling term outside the span has a larger rate, or vanishes while p moves out of the span.
    held = [k for k in np.flatnonzero(leading) if span.component(every[[k]], terms.ends[[k]]) <= _NO_FORCE]
    later, shift = _outward(every[held], terms.sign[held], exponents[held], span, direction.p)
    flat = every - every @ normals.T @ normals
    # If a term with rate 1 attracts, the balance is stable only locally, so no other force may leave it.
    ahead = ~leading & ((terms.sign < 0) | near.any())
    points = exponents, exponents - every @ shift
    drift = max(_drift(flat, terms.sign, x, direction.p, ahead) for x in points)
    return Attraction(slowest, component, drift, min(now, later) if near.any() else now)


def _drift(
    theta: np.ndarray, sign: np.ndarray, exponents: np.ndarray, limit: np.ndarray, ahead: np.ndarray
) -> float:
    """Compute `Limit.attracting_drift`.

    Args:
        theta: (k, D); θ, orthogonal to the differences of tied keys.
        sign: (k,); 1 for terms that repel, and -1 for terms that attract.
        exponents: (k,); the logarithms of the sizes of the terms.
        limit: (D,); p_*.
        ahead: (k,) bool; the terms with a rate above 1 whose drift is computed.
    """
    if not ahead.any():
        return 0.0
    size = float(np.linalg.norm(limit))
    force, along = np.exp(exponents - exponents.max()), theta @ limit
    across = lengths(theta - np.outer(along, limit) / size**2)
    outwards = (sign * force) @ along / size
    if not outwards > 0:
        return np.inf
    speed = size * force[ahead] * across[ahead] / outwards
    return float(across.max() * (speed / (along[ahead] - 1)).sum())


def _balance(sign: np.ndarray, exponents: np.ndarray, along: np.ndarray) -> float:
    """Return Σ_k c_k x_k relative to Σ_k |c_k x_k|, for forces with these signs and log sizes."""
    force = sign * np.exp(exponents - exponents.max())
    gross = np.abs(force) @ np.abs(along)
    return float(force @ along / gross) if gross else 0.0


def _differences(E: np.ndarray, ends: np.ndarray) -> np.ndarray:
    return E[ends[:, 0]] - E[ends[:, 1]] + (E[ends[:, 2]] - E[ends[:, 3]])


def _near(theta: np.ndarray, direction: MaxMargin) -> np.ndarray:
    """Return which terms may have a rate of 1 or less, (k,) bool."""
    rounding = accuracy(direction) * lengths(theta) * float(np.linalg.norm(direction.p))
    return theta @ direction.p <= 1 + rounding


def _attracting(entries: Entries, order: Orders) -> np.ndarray:
    """Return the ends of the terms that must have a rate of at least 1 without being constraints, (k, 4)."""
    number = np.unique(order.pair[order.pair >= 0], return_index=True)[1]
    place = np.flatnonzero(order.pair >= 0)[number]
    pairs = np.stack([entries.top, entries.token], axis=1)
    i, j = np.nonzero(np.triu(order.second_order))
    # Skip a mixed term that does not attract if the squares of both its pairs repel, because it then needs no
    # condition of its own.
    square = np.diag(order.second_order)
    own = (order.second_order[i, j] < 0) | (square[i] <= 0) | (square[j] <= 0)
    alone = np.unique(pairs[order.first < 0], axis=0)
    # A term of second order is the sum of two differences. The second difference of other terms is zero.
    return np.concatenate(
        [
            np.pad(alone, [(0, 0), (0, 2)]),
            np.concatenate([pairs[place[i[own]]], pairs[place[j[own]]]], axis=1),
        ]
    )


def leading_terms(entries: Entries, order: Orders) -> Terms:
    """Return all terms of first order, and those of second order for pairs whose first order cancels."""
    pairs = np.stack([entries.top, entries.token], axis=1)
    first = np.unique(order.reference[order.first != 0])
    number = np.unique(order.pair[order.pair >= 0], return_index=True)[1]
    place = order.reference[np.flatnonzero(order.pair >= 0)[number]]
    i, j = np.nonzero(np.triu(order.second_order))
    second = order.second_order[i, j] / np.where(i == j, 2, 1)
    return Terms(
        ends=np.concatenate(
            [
                np.pad(pairs[first], [(0, 0), (0, 2)]),
                np.concatenate([pairs[place[i]], pairs[place[j]]], axis=1),
            ]
        ),
        sign=np.concatenate([order.first[first], np.sign(second)]),
        log_size=np.concatenate(
            [order.log_first[first], np.log(np.abs(second)) + order.log_unit[i] + order.log_unit[j]]
        ),
    )


class _Span(NamedTuple):
    """Span of the support pairs of p_* and of the differences of tied keys.

    Attributes:
        basis: (r, D); orthonormal basis of the part of the span that is orthogonal to the tied differences.
        normals: (k, D); orthonormal basis of the tied differences.
        exact: (t, D + 1) int; the differences that span it, each with twice its rate, modulo a prime.
        keys: (V, D) int; the keys modulo the prime.
    """

    basis: np.ndarray
    normals: np.ndarray
    exact: np.ndarray
    keys: np.ndarray

    def component(self, theta: np.ndarray, ends: np.ndarray) -> float:
        """Return the largest component of θ outside the span, relative to its length.

        The result is 1 if only exact arithmetic shows that some θ is not in the span, or that its rate is not
        1.
        """
        whole = np.concatenate([self.basis, self.normals])
        left = float((lengths(theta - theta @ whole.T @ whole) / lengths(theta)).max())
        exact = np.column_stack([_differences(self.keys, ends), np.full(len(ends), 2)])
        same = exact_rank(np.concatenate([self.exact, exact])) == exact_rank(self.exact)
        return left if left > _NO_FORCE or same else 1.0


def _span(E: np.ndarray, direction: MaxMargin, normals: np.ndarray) -> _Span:
    rows = E[direction.pairs[:, 0]] - E[direction.pairs[:, 1]]
    length = lengths(rows)
    # The force of a pair on p is its multiplier times the length of its difference.
    active = direction.multipliers * length > _NO_FORCE * float(np.linalg.norm(direction.p))
    apart = rows[active] / length[active, None]
    _, size, vt = np.linalg.svd(apart - apart @ normals.T @ normals, full_matrices=False)
    keys = residues(E)
    tight = np.concatenate([direction.pairs[active], direction.ties])
    rates = np.concatenate([np.rint(2 * rows[active] @ direction.p), np.zeros(len(direction.ties))])
    differences = keys[tight[:, 0]] - keys[tight[:, 1]]
    return _Span(
        basis=vt[size > _NO_FORCE * size.max(initial=0)],
        normals=normals,
        exact=np.column_stack([differences, rates.astype(int)]),
        keys=keys,
    )


def _outward(
    theta: np.ndarray, sign: np.ndarray, exponents: np.ndarray, span: _Span, limit: np.ndarray
) -> tuple[float, np.ndarray]:
    """Compute `Limit.outward` for terms with rate 1 whose θ lie in the span, and how far their balance is.

    Args:
        theta: (k, D).
        sign: (k,); 1 for terms that repel, and -1 for terms that attract.
        exponents: (k,); the logarithms of the sizes of the terms at p.
        span: the span.
        limit: (D,); p_*.

    Returns:
        The value, -inf if there is no balance near p; and the difference between the point of balance and p,
        (D,), NaN in this case.
    """
    u, e = theta @ span.basis.T, span.basis @ limit
    e = e / np.linalg.norm(e)
    along, across = u @ e, u - np.outer(u @ e, e)
    _, size, vt = np.linalg.svd(across, full_matrices=False)
    directions = vt[size > _NO_FORCE * lengths(u).max()]
    side, shift, nowhere = across @ directions.T, np.zeros(len(directions)), np.full(len(limit), np.nan)
    for _ in range(_ITERATIONS):
        at = exponents - side @ shift
        force = sign * np.exp(at - at.max())
        outward = _balance(sign, at, along)
        stiffness = side.T @ (force[:, None] * side)
        gross = np.abs(force) @ np.square(side).sum(axis=1)
        smallest = np.linalg.eigvalsh(stiffness).min() / gross if gross else np.inf
        found = float(min(outward, smallest))
        if found <= _ZERO:
            return found, nowhere
        step = np.linalg.solve(stiffness, force @ side)
        largest = np.abs(side @ step).max()
        if largest <= _ZERO:
            return found, span.basis.T @ directions.T @ shift
        shift = shift + step * min(1.0, _STEP / largest)
    return -np.inf, nowhere
