"""Tied part of the loss: balance and curvature along the differences of tied keys.

The tied part is the loss if only the top tokens of each sequence receive attention. It depends on p only
through the score differences of tied tokens. These may belong to key differences of very different lengths,
and to sequences of very different weights. Coordinates are therefore score differences z, one for each of r
linearly independent edges of a forest that joins every tied token to a nearby one. Gradient and Hessian along
a coordinate are measured relative to the forces along the same coordinate.
"""

from typing import NamedTuple

import numpy as np

from jaxattn.core.arithmetic import lengths
from jaxattn.theory.constraints import near_ties
from jaxattn.theory.infeasible import exact_rank, residues
from jaxattn.theory.orders import LARGE, Entries, LossDerivatives, TiedPart

# A curvature, or a gradient, counts as zero below this fraction of the forces that cancel along the same
# direction.
_ZERO = 1e-8
# A key difference counts as linearly dependent on longer ones if its orthogonal part is below this fraction
# of its length. If it is not dependent in exact arithmetic, the balance is unknown.
_DEPENDENT = 1e-8
# Bound on the rounding error in a component of a vector, relative to its length.
_ROUNDING = 64 * 2.0**-52
# Uncertainty of a component that cannot be computed.
_UNKNOWN = 1e100


class Balance(NamedTuple):
    """Equilibrium of tied tokens; see `Limit` for `gradient` and `curvature`.

    Attributes:
        gradient: () float.
        curvature: () float.
        normals: (r, D); orthonormal basis of 𝒯, the span of the differences of tied keys.
        loose: (l, D); orthonormal basis of the loose directions in 𝒯.
        part: the tied part without its loose directions.
    """

    gradient: float
    curvature: float
    normals: np.ndarray
    loose: np.ndarray
    part: TiedPart


class _Coordinates(NamedTuple):
    """Score differences z of r independent edges as coordinates of 𝒯.

    Attributes:
        tokens: (k,) int; the tied tokens.
        edges: (t, 2) int; pairs of tied tokens with different keys, which join the tokens of each group.
        scores: (k, r); ∂a/∂z, where a is the score relative to the root of the token's group.
        uncertainty: (k, r); bound on the rounding error of `scores`.
        normals: (r, D); orthonormal basis of 𝒯.
        lift: (r, r); components along `normals` of ∂p/∂z.
    """

    tokens: np.ndarray
    edges: np.ndarray
    scores: np.ndarray
    uncertainty: np.ndarray
    normals: np.ndarray
    lift: np.ndarray


def tied_part(E: np.ndarray, leader: np.ndarray, entries: Entries, loss: LossDerivatives) -> Balance:
    """Compute the gradient, the curvature and the loose directions of the tied part.

    Args:
        E: (V, D) float64; the keys.
        leader: (V,) int; the smallest token in each token's group of tied tokens.
        entries: the tokens of all sequences.
        loss: the loss derivatives at `entries.f`.
    """
    nothing = np.zeros((0, E.shape[1]))
    at = _coordinates(E, leader)
    if len(at.normals) == 0:  # no ties, or all tied tokens have equal keys
        part = TiedPart(
            nothing, np.zeros((E.shape[1], 0)), 0.0, np.zeros((0, 0)), np.zeros(0), np.zeros((0, 2), int)
        )
        return Balance(0.0, np.inf, nothing, nothing, part)
    forces = _forces(len(E), at.tokens, entries, loss)
    gradient, log_force = _gradient(at, forces)
    hessian, gross, log_scale = _hessian(at, forces)
    size, vectors = np.linalg.eigh(hessian)
    rounding = _ROUNDING * np.abs(size).max()
    loose = np.abs(size) <= _ZERO * np.square(gross @ vectors).sum(axis=0) + rounding
    curvature = float(size[~loose].min() / np.abs(size[~loose]).max()) if not loose.all() else np.inf
    # Coordinates whose forces underflow next to the largest ones have no effect on other tokens.
    log_unit = float(log_scale.max())
    log_ratio = (log_unit - log_scale) / 2
    turned = at.lift @ (np.exp(np.minimum(log_ratio, LARGE))[:, None] * vectors)
    kept = ~loose & ~(np.abs(vectors) > _ZERO)[log_ratio > LARGE].any(axis=0)
    within = turned[:, loose] / np.maximum(np.linalg.norm(turned[:, loose], axis=0), np.finfo(float).tiny)
    log_left = np.minimum(log_force - (log_scale + log_unit) / 2, LARGE)
    error = np.abs(vectors).T @ np.exp(log_left) / np.maximum(np.abs(size), np.finfo(float).tiny)
    basis = np.linalg.qr(within, mode="complete")[0]
    number = int(loose.sum())
    part = TiedPart(
        normals=basis[:, number:].T @ at.normals,
        directions=at.normals.T @ turned[:, kept],
        log_unit=log_unit,
        hessian=np.diag(size[kept]),
        # If p is not near an equilibrium, there is no limit, and the forces are those at p.
        error=error[kept] * (gradient <= _ZERO),
        edges=at.edges,
    )
    return Balance(gradient, curvature, at.normals, basis[:, :number].T @ at.normals, part)


class _Forces(NamedTuple):
    """Forces on the k tied tokens in n sequences, on a logarithmic scale.

    Attributes:
        log_share: (n,); log of the weight of the sequence; -inf unless multiple tokens are tied.
        pull: (n, k); force of the sequence on the score of the token, in units of e^log_share.
        attention: (n, k).
        steered: list of (n, k); modes of the second derivative of the loss, applied to the deviations.
        log_modes: list of (n,); log-weights of the modes.
        net: (k,); sum of the forces over sequences, relative to the sum of their sizes; 0 if that is 0.
        log_gross: (k,); log of the sum of the sizes; -inf if it is 0.
    """

    log_share: np.ndarray
    pull: np.ndarray
    attention: np.ndarray
    steered: list[np.ndarray]
    log_modes: list[np.ndarray]
    net: np.ndarray
    log_gross: np.ndarray


def _forces(vocab: int, tokens: np.ndarray, entries: Entries, loss: LossDerivatives) -> _Forces:
    place = np.full(vocab, -1)
    place[tokens] = np.arange(len(tokens))
    inside = (place[entries.token] >= 0) & entries.chosen
    rows, columns = entries.sequence[inside], place[entries.token[inside]]
    n = len(loss.direction)
    several = np.bincount(rows, minlength=n) > 1
    attention = entries.attention[inside]
    deviation = attention[:, None] * (entries.value[inside] - entries.f[rows])

    def table(x: np.ndarray) -> np.ndarray:
        filled = np.zeros((n, len(tokens)))
        filled[rows, columns] = x
        return filled

    parts = loss.direction[rows] * deviation
    pull, size = table(parts.sum(axis=1)), table(np.abs(parts).sum(axis=1))
    log_share = np.where(several, loss.log_size, -np.inf)
    # Sum the forces on each token in units of the largest weight of its sequences.
    log_each = np.where(size > 0, log_share[:, None], -np.inf)
    unit = log_each.max(axis=0, initial=-np.inf)
    unit[~np.isfinite(unit)] = 0.0
    weight = np.exp(log_each - unit)
    net, gross = (weight * pull).sum(axis=0), (weight * size).sum(axis=0)
    modes = np.moveaxis(loss.modes, 1, 0)
    return _Forces(
        log_share,
        pull,
        table(attention),
        [table((mode[rows] * deviation).sum(axis=1)) for mode in modes],
        [np.where(several, x, -np.inf) for x in loss.log_weight.T],
        np.divide(net, gross, out=np.zeros_like(net), where=gross > 0),
        unit + _log(gross),
    )


def _gradient(at: _Coordinates, forces: _Forces) -> tuple[float, np.ndarray]:
    """Compute the gradient of the tied part, including its uncertainty.

    Returns:
        Its largest component relative to the terms in it; and the log of the sizes of its components, (r,).
    """
    log_terms = forces.log_gross[:, None] + _log(np.abs(at.scores))
    largest = log_terms.max(axis=0)
    largest[~np.isfinite(largest)] = 0.0
    terms = np.exp(log_terms - largest)
    total = np.maximum(terms.sum(axis=0), np.finfo(float).tiny)
    net = np.abs((np.sign(at.scores) * terms).T @ forces.net)
    unknown = np.exp(np.minimum(forces.log_gross[:, None] + _log(at.uncertainty) - largest, 0)).sum(axis=0)
    return float(np.minimum((net + unknown) / total, 1.0).max()), _log(net + unknown) + largest


def _hessian(at: _Coordinates, forces: _Forces) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the Hessian and the forces along the coordinates, each in its own unit.

    Returns:
        The Hessian, (r, r); square roots of the forces on each token, (k, r), such that the forces along a
        direction x have the sum of squares of `gross @ x`; and the log of the unit of the Hessian, (r,).
    """
    log_squares = forces.log_gross[:, None] + 2 * _log(np.abs(at.scores))
    largest = log_squares.max(axis=0)
    # A coordinate without forces takes the unit of the heaviest sequence.
    largest = np.where(np.isfinite(largest), largest, forces.log_share.max())
    log_scale = largest + np.log(np.maximum(np.exp(log_squares - largest).sum(axis=0), np.finfo(float).tiny))
    log_scale = np.where(np.exp(log_squares - largest).any(axis=0), log_scale, largest)
    gross = np.exp((log_squares - log_scale) / 2) * np.sign(at.scores)

    def along(log_weight: np.ndarray, x: np.ndarray) -> np.ndarray:
        unit = np.exp(np.minimum((log_weight[:, None] - log_scale) / 2, LARGE))
        return unit * (x @ at.scores)

    product = along(forces.log_share, forces.pull).T @ along(forces.log_share, forces.attention)
    hessian = product + product.T - (gross * forces.net[:, None]).T @ gross
    for log_weight, steered in zip(forces.log_modes, forces.steered, strict=True):
        turned = along(log_weight, steered)
        hessian += turned.T @ turned
    return (hessian + hessian.T) / 2, gross, log_scale


def _coordinates(E: np.ndarray, leader: np.ndarray) -> _Coordinates:
    tokens = np.flatnonzero(np.bincount(leader, minlength=len(E))[leader] > 1)
    edges, joins = near_ties(E, leader)
    rows = E[edges[:, 1]] - E[edges[:, 0]]
    different = lengths(rows) > 0
    edges, joins, rows = edges[different], joins[:, different], rows[different]
    basis, normals, left = _independent(rows)
    inside = rows @ normals.T
    square = np.tril(inside[basis])
    inverse = _inverse(square)
    coefficients = inside @ inverse
    coefficients[basis] = np.eye(len(basis))
    unknown = _ROUNDING * lengths(rows)[:, None] / left
    unknown[basis] = 0.0
    if len(basis) < min(rows.shape) and _exact_rank(E, edges) > len(basis):
        unknown[np.setdiff1d(np.arange(len(rows)), basis)] = _UNKNOWN
    return _Coordinates(tokens, edges, joins @ coefficients, joins @ unknown, normals, inverse)


def _exact_rank(E: np.ndarray, edges: np.ndarray) -> int:
    keys = residues(E[edges.ravel()])
    return exact_rank(keys[1::2] - keys[0::2])


def _independent(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose linearly independent rows, longest first, by the Gram-Schmidt process.

    Returns:
        Their indices, (r,); an orthonormal basis of their span, (r, D); and the length of each chosen row's
        component orthogonal to the rows chosen before, (r,).
    """
    size, rest = lengths(rows), rows.copy()
    left, chosen = size.copy(), []
    normals, kept = np.zeros((0, rows.shape[1])), []
    while (left > _DEPENDENT * size).any():
        each = int(np.where(left > _DEPENDENT * size, left, 0.0).argmax())
        chosen.append(each)
        kept.append(left[each])
        along = rest[each] / left[each]
        along = along - normals.T @ (normals @ along)
        along = along / np.linalg.norm(along)
        normals = np.concatenate([normals, along[None]])
        rest = rest - np.outer(rest @ along, along)
        left = lengths(rest)
        left[chosen] = 0.0
    return np.array(chosen, int), normals, np.array(kept)


def _inverse(triangle: np.ndarray) -> np.ndarray:
    from scipy.linalg import solve_triangular  # slow to import

    return solve_triangular(triangle, np.eye(len(triangle)), lower=True) if len(triangle) else triangle


def _log(x: np.ndarray) -> np.ndarray:
    return np.log(x, out=np.full(x.shape, -np.inf), where=x > 0)
