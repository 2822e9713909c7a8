"""The certificate of where gradient flow on p goes, with tokens that tie."""

from typing import NamedTuple

import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxattn.attention.scores import Scores, require_values
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import Brief, Leaf
from jaxattn.data.corpus import Corpus
from jaxattn.theory.certificate import MaxMargin, Status
from jaxattn.theory.constraints import constraints, entries_of
from jaxattn.theory.max_margin import shortest
from jaxattn.theory.selection import Selection, require_finite


class Residual(NamedTuple):
    """First and second derivatives of the loss ℓ(f) of n sequences with C columns of outputs.

        -∂ℓ/∂f = e^log_size · direction,    ∂²ℓ/∂f² = Σ_j e^log_weight_j modes_j modes_jᵀ.

    C is 1 for two classes, logistic loss, and K for K > 2, cross-entropy.

    Attributes:
        direction: (n, C); sizes of order one.
        log_size: (n,).
        modes: (n, M, C).
        log_weight: (n, M).
    """

    direction: np.ndarray
    log_size: np.ndarray
    modes: np.ndarray
    log_weight: np.ndarray


def residual(f: np.ndarray, labels: np.ndarray, num_classes: int) -> Residual:
    """Differentiate the loss of outputs.

    Logistic:       -∂ℓ/∂f = y σ(-y f),     ∂²ℓ/∂f² = σ(y f) σ(-y f).
    Cross-entropy:  -∂ℓ/∂f = e_y - π = (1 - π_y) (e_y - π'),   ∂²ℓ/∂f² = Σ_k π_k (e_k - π)(e_k - π)ᵀ,

    with π = softmax(f) and π' the softmax over the other classes than y.

    Args:
        f: (n, C) float64.
        labels: (n,) int; -1 and +1 for two classes, 0 .. K-1 for more.
        num_classes: K.

    Returns:
        Both derivatives.
    """
    if num_classes == 2:
        agreement = labels * f[:, 0]
        log_size = -np.logaddexp(0, agreement)
        log_weight = log_size - np.logaddexp(0, -agreement)
        return Residual(1.0 * labels[:, None], log_size, np.ones((len(f), 1, 1)), log_weight[:, None])
    own = np.eye(num_classes)[labels]
    log_pi = f - np.logaddexp.reduce(f, axis=1, keepdims=True)
    log_size = np.logaddexp.reduce(np.where(own > 0, -np.inf, log_pi), axis=1)
    others = np.where(own > 0, 0, np.exp(log_pi - log_size[:, None]))
    # e_k - π, where 1 - π_y is known without cancellation.
    missing = np.where(own > 0, np.exp(log_size)[:, None], 1 - np.exp(log_pi))
    identity = np.eye(num_classes)
    modes = np.where(identity > 0, missing[:, :, None], -np.exp(log_pi)[:, None, :])
    return Residual(own - others, log_size, modes, log_pi)


# Of pulls that cancel, relative to their sizes, and of the squares of lengths: what is smaller is rounding.
_CANCELS, _DEPENDENT = 1e-7, 1e-12
# Scores at ‖p‖ = 1e6 are right to 1e-10, and so are forces, relative to their sizes.
_ZERO = 1e-8
# What a duality gap of 1e-10 leaves of a force that is zero.
_NO_FORCE = 1e-5


@struct.dataclass(repr=False)
class Limit(Brief):
    """Where p goes, and what proves that gradient flow stays on course to it. NumPy numbers, float64.

    Attributes:
        direction: the max-margin problem of the limit; "nothing" if nothing moves p, which then is finite.
        gradient: (); size of the gradient of the tied part of the loss on 𝒯, the span of the differences of
            tied tokens, relative to the forces that cancel in it. 0 without ties.
        curvature: (); smallest eigenvalue of its Hessian on 𝒯, relative to the largest; inf without ties.
            Eigenvalues of zero are left out: their eigenvectors are loose.
        loose: (); length of the part of the tie multipliers' force that lies along loose directions, relative
            to that of p_*. Nothing holds tied tokens in these, so that p_* has to leave them where they are
            without a force.
        drawn: (); smallest p·(E_s - E_s') of the pairs that their sequences draw together; inf without any.
        idle: (); the same among the pairs on which pulls cancel.
    """

    direction: MaxMargin
    gradient: Leaf
    curvature: Leaf
    loose: Leaf
    drawn: Leaf
    idle: Leaf

    @property
    def holds(self) -> bool:
        """Whether all of it is as it has to be."""
        solved = int(self.direction.status) in (Status.SOLVED, Status.NOTHING)
        balanced = self.gradient <= _ZERO and self.curvature > _ZERO
        apart = self.drawn >= 1 - _ZERO and self.idle > _ZERO
        return bool(solved and balanced and self.loose <= _NO_FORCE and apart)


class _Entries(NamedTuple):
    """The tokens of all sequences, one after the other, and what tied ones amount to, (N,) and (N, C)."""

    sequence: np.ndarray
    token: np.ndarray
    chosen: np.ndarray
    weight: np.ndarray
    mean: np.ndarray


def certify_limit(
    scores: Scores,
    p: Float[Array | np.ndarray, " D"],
    selection: Selection,
    *,
    tolerance: float = 1e-10,
) -> Limit:
    """Certify the limit of gradient flow on p, keys and values fixed, from a point far along its path.

        p_* = argmin ‖p‖²  s.t.  p·(Φ_s - Φ_s'') = 0  for tokens that tie,
                                 p·(Φ_s - Φ_s') ≥ 1  for s on top of X, s' of X pushed away.

    All sequences with one class of tied tokens on top pull at another class together: they may push it away,
    draw it near, or cancel. A class that they draw near stays away if p_* moves it away at the same rate or
    faster; where pulls cancel any rate is enough. The program is solved with ≥ 0 for these pairs; where it
    holds with so much to spare they have no multipliers, and p_* is that of the pushed pairs alone. The
    differences of tied tokens settle where the tied part of the loss, that of the tokens on top alone, is
    least, and the flow returns there if that is a strict minimum on 𝒯, but for loose directions, along which
    the forces have no derivative. All of this is local, as the loss is not convex: that a path comes to
    p_*/‖p_*‖ is seen by the cosine of p.

    Args:
        scores: keys Φ (m, D), values γ, and bags of n sequences; two classes and the logistic loss, or
            K > 2 and cross-entropy.
        p: (D,); a point of the path, for the finite differences of tied scores.
        selection: what is on top of every sequence in the limit, `Path.selection`.
        tolerance: largest relative duality gap.

    Returns:
        The certificate. Everything in it is computed anew from the arguments.

    Raises:
        InputError: no values, NaN or inf, a sequence without selected token, shapes that do not
            fit.

    Source:
        docs/explanation/exact_flow_ties.md.
    """
    corpus = scores.corpus
    require_values(scores)
    require_finite(keys=scores.keys, p=p, values=scores.values)
    E, p, values = (np.asarray(x, np.float64) for x in (scores.keys, p, scores.values))
    if E.shape != (corpus.vocab_size, len(p)):
        raise InputError(f"shapes do not fit: keys {E.shape}, p {p.shape}; give (m, D) and (D,)")
    values = values.reshape(len(E), -1)
    leader = constraints(corpus, selection).leader
    entries = _entries(corpus, selection, leader, E @ p, values)
    n, labels = corpus.num_examples, np.asarray(corpus.targets)
    top = np.where(entries.chosen, entries.weight, 0)
    total = np.bincount(entries.sequence, top, n)
    f = _summed(entries.sequence, top[:, None] * entries.mean, n) / total[:, None]
    # Weights like e^(-y f) of sequences that are right by far are below what float64 holds.
    loss = residual(f, labels, corpus.num_classes)
    q = top / total[entries.sequence]
    deviation = q[:, None] * (values[entries.token] - f[entries.sequence])
    gradient, curvature, slack = _balance(E, leader, entries, deviation, q, loss)
    first = np.zeros(n, int)
    first[entries.sequence[entries.chosen]] = leader[entries.token[entries.chosen]]
    net, gross = _pulls(leader, first, entries, loss, loss.log_size - np.log(total), f)
    # A token that ties with those on top, but is not selected, makes the problem infeasible.
    pushed = (net > _CANCELS * gross) | (leader[entries.token] == first[entries.sequence])
    required = np.zeros(np.shape(selection.mask))
    required[np.asarray(corpus.bags.count) > 0] = pushed
    direction = shortest(E, constraints(corpus, selection, required), tolerance=tolerance)
    apart = E @ direction.p
    apart = apart[first[entries.sequence]] - apart[entries.token]
    drawn = ~entries.chosen & (net < -_CANCELS * gross)
    return Limit(
        direction=direction,
        gradient=gradient,
        curvature=curvature,
        loose=_along(E, direction, slack),
        drawn=apart[drawn].min(initial=np.inf),
        idle=apart[~entries.chosen & ~pushed & ~drawn].min(initial=np.inf),
    )


def _entries(
    corpus: Corpus, selection: Selection, leader: np.ndarray, scores: np.ndarray, values: np.ndarray
) -> _Entries:
    present, sequence, token = entries_of(corpus)
    weight = np.asarray(corpus.bags.count)[present] * np.exp(scores - scores[leader])[token]
    _, group = np.unique(sequence * np.int64(len(leader)) + leader[token], return_inverse=True)
    moment = _summed(group, weight[:, None] * values[token], int(group.max()) + 1)
    mean = (moment / np.bincount(group, weight)[:, None])[group]
    return _Entries(sequence, token, np.asarray(selection.mask)[present], weight, mean)


def _summed(index: np.ndarray, columns: np.ndarray, size: int) -> np.ndarray:
    """Sum the rows of (N, C) by index, (size, C)."""
    return np.stack([np.bincount(index, column, size) for column in columns.T], axis=1)


def _balance(
    E: np.ndarray,
    leader: np.ndarray,
    entries: _Entries,
    deviation: np.ndarray,
    q: np.ndarray,
    loss: Residual,
) -> tuple[float, float, np.ndarray]:
    """Compute the gradient of the tied part of the loss on 𝒯, its curvature, and loose directions (k, d)."""
    tied = np.flatnonzero(np.bincount(leader, minlength=len(E))[leader] > 1)
    if len(tied) == 0:
        return 0.0, np.inf, np.zeros((0, E.shape[1]))
    _, size, vt = np.linalg.svd(E[tied] - E[leader[tied]], full_matrices=False)
    normals = vt[size**2 > _DEPENDENT * size[0] ** 2]
    if len(normals) == 0:  # they have one embedding
        return 0.0, np.inf, normals
    lift = E[tied] @ normals.T
    place = np.full(len(E), -1)
    place[tied] = np.arange(len(tied))
    inside = place[entries.token] >= 0
    rows, columns = entries.sequence[inside], place[entries.token[inside]]
    n = len(loss.direction)
    several = np.bincount(entries.sequence[inside & entries.chosen], minlength=n) > 1
    log_share = np.where(several, loss.log_size, -np.inf)
    share = np.exp(log_share - log_share.max())
    pull, size, attention = np.zeros((3, n, len(tied)))
    parts = loss.direction[rows] * deviation[inside]
    pull[rows, columns], size[rows, columns] = parts.sum(axis=1), np.abs(parts).sum(axis=1)
    attention[rows, columns] = q[inside]
    force, gross = share @ pull, share @ size
    product = (share[:, None] * pull).T @ attention
    hessian = product + product.T - np.diag(force)
    weight = np.exp(np.where(several[:, None], loss.log_weight, -np.inf) - log_share.max())
    for mode, heavy in zip(np.moveaxis(loss.modes, 1, 0), weight.T, strict=True):
        steered = np.zeros((n, len(tied)))
        steered[rows, columns] = (mode[rows] * deviation[inside]).sum(axis=1)
        hessian += (heavy[:, None] * steered).T @ steered
    hessian = lift.T @ hessian @ lift
    size, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    loose = np.abs(size) <= _ZERO * np.abs(size).max()
    longest = np.sqrt(np.square(E).sum(axis=1).max())
    gradient = float(np.linalg.norm(force @ lift) / (gross.sum() * longest))
    curvature = float(size[~loose].min(initial=np.inf) / abs(size[-1]))
    return gradient, curvature, (vectors.T @ normals)[loose]


def _along(E: np.ndarray, direction: MaxMargin, slack: np.ndarray) -> float:
    """Compute how much of the force that ties take lies along slack directions, relative to all of p_*."""
    ties = direction.ties
    if not (direction.feasible and direction.p.any() and len(ties) and len(slack)):
        return 0.0
    force = direction.tie_multipliers @ (E[ties[:, 0]] - E[ties[:, 1]])
    return float(np.linalg.norm(slack @ force) / np.linalg.norm(direction.p))


def _pulls(
    leader: np.ndarray,
    first: np.ndarray,
    entries: _Entries,
    loss: Residual,
    log_weight: np.ndarray,
    f: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Sum what pushes the class of every entry off the top class of its sequence, over all that have both.

    Each sum is in a unit of its own, e^(the largest `log_weight` of its sequences).
    """
    key = first[entries.sequence] * np.int64(len(leader)) + leader[entries.token]
    _, group = np.unique(key, return_inverse=True)
    log_own, largest = log_weight[entries.sequence], np.full(group.max() + 1, -np.inf)
    np.maximum.at(largest, group, log_own)
    weight = np.exp(log_own - largest[group]) * entries.weight
    parts = weight[:, None] * loss.direction[entries.sequence] * (f[entries.sequence] - entries.mean)
    net, gross = parts.sum(axis=1), np.abs(parts).sum(axis=1)
    return np.bincount(group, net)[group], np.bincount(group, gross)[group]
