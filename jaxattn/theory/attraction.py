"""Forces that attract a token to the top: whether p still moves outwards to its limit.

Let p = s p_* + w with w ⟂ p_*. A term c e^(-θ·p) of the loss has the rate θ·p_*, where p_* has margin 1. It
attracts if c < 0. Terms with a rate above 1 vanish next to those with rate 1, and for large s,

    ‖p_*‖ ds/dt = e^(-s) F·e,    dw/dt = e^(-s) (F - (F·e) e),    F(w) = Σ_k c_k θ_k e^(-θ_k·w),

where e = p_*/‖p_*‖, over the terms with rate 1. If all of them repel, the right-hand side is the gradient of
a convex function of w, and s grows. Otherwise, the path converges to the direction p_* if the forces across
p_* cancel at some w where Σ_k c_k θ_k θ_kᵀ e^(-θ_k·w) is positive definite across p_*, and F·e > 0. The other
terms are then a perturbation that decays, and w returns to this point, provided that it starts nearby. At the
given point, the sum of all forces must move p outwards, too: a term with a rate slightly above 1 may still
outweigh the others there.
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
    """The attributes `attracting_rate`, `attracting_component` and `outward` of `Limit`."""

    rate: float
    component: float
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
        return Attraction(np.inf, 0.0, np.inf)
    theta = _differences(E, ends)
    slowest = (theta @ direction.p).min(initial=np.inf)
    near = _near(theta, direction)
    every = _differences(E, terms.ends)
    now = _balance(terms.sign, terms.log_size - every @ p, every @ direction.p)
    if not near.any():
        return Attraction(slowest, 0.0, now)
    span = _span(E, direction, normals)
    component = span.component(theta[near], ends[near])
    if component > _NO_FORCE:
        return Attraction(slowest, component, now)
    # A repelling term outside the span has a larger rate, or vanishes while p moves out of the span.
    places = np.flatnonzero(_near(every, direction))
    held = [k for k in places if span.component(every[[k]], terms.ends[[k]]) <= _NO_FORCE]
    later = _outward(every[held], Terms(*(x[held] for x in terms)), span, direction.p, p)
    return Attraction(slowest, component, min(now, later))


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


def _outward(theta: np.ndarray, terms: Terms, span: _Span, limit: np.ndarray, p: np.ndarray) -> float:
    """Compute `Limit.outward` for terms with rate 1, whose θ lie in the span, near the point p."""
    u, e = theta @ span.basis.T, span.basis @ limit
    e = e / np.linalg.norm(e)
    along, across = u @ e, u - np.outer(u @ e, e)
    _, size, vt = np.linalg.svd(across, full_matrices=False)
    side = across @ vt[size > _NO_FORCE * lengths(u).max()].T
    # All rates are 1, so p·p_* adds the same number to every exponent.
    exponents = terms.log_size - theta @ p
    for _ in range(_ITERATIONS):
        force = terms.sign * np.exp(exponents - exponents.max())
        outward = _balance(terms.sign, exponents, along)
        stiffness = side.T @ (force[:, None] * side)
        gross = np.abs(force) @ np.square(side).sum(axis=1)
        smallest = np.linalg.eigvalsh(stiffness).min() / gross if gross else np.inf
        found = float(min(outward, smallest))
        if found <= _ZERO:
            return found
        change = side @ np.linalg.solve(stiffness, force @ side)
        largest = np.abs(change).max()
        if largest <= _ZERO:
            return found
        exponents = exponents - change * min(1.0, _STEP / largest)
    return -np.inf
