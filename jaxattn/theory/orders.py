"""Leading order of the force between each token and the top of its sequence, with tied tokens in equilibrium.

The top tokens of a sequence X are those that attention selects in the limit. Let a_s be the score and γ_s the
value of token s, and f the output of the sequence. With x = e^(a_s - a_top) for a token s below the top, the
loss L, the mean of ℓ(f) over sequences, is a power series in x (derived in docs/notes/exact_flow_ties.md):

    L = L₀ + Σ_i g_i x_i + ½ Σ_ij M_ij x_i x_j + ...,    M = H - G K⁻¹ Gᵀ,

    g_i = -mean_X r·V_i,    H_ij = mean_X [V_i·S V_j + r·(V_i U_j + V_j U_i)],    G = ∂g/∂y.

U is the weight of s relative to the top tokens. At x = 0, V = U (γ_s - f), r = -∂ℓ/∂f, S = ∂²ℓ/∂f². K is the
Hessian of the tied part of the loss (the loss if only the top tokens receive attention) in coordinates y of
𝒯, the span of the differences of tied keys. Entries whose key differences agree modulo 𝒯 have the same x.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxattn.theory.key_differences import exactly_equal, key_groups

# A sum of forces of both signs is resolved if its error is at most this fraction of the forces.
_RESOLVED = 1e-7
# With tied tokens, a second-order force counts as zero if cancellation leaves less than this fraction.
_CANCELS_TWICE = 1e-6
# Bound on the rounding error of an output or a force, relative to the terms in it.
_ROUNDING = 16 * 2.0**-52
# Safety factor for first-order bounds on the error of forces at a point near the equilibrium of tied tokens.
_SAFETY = 4.0
# Cap exponents at this value to prevent overflow in exp; the factor in front of exp vanishes faster.
LARGE = 300.0


class LossDerivatives(NamedTuple):
    """First and second derivatives of the loss ℓ(f), for n sequences and C output columns.

        -∂ℓ/∂f = e^log_size · direction,    ∂²ℓ/∂f² = Σ_j e^log_weight_j modes_j modes_jᵀ.

    C = 1 for two classes with the logistic loss, and C = K for K > 2 classes with cross-entropy.

    Attributes:
        direction: (n, C); of order one.
        log_size: (n,).
        modes: (n, M, C); vectors of the M rank-one terms of the second derivative.
        log_weight: (n, M).
    """

    direction: np.ndarray
    log_size: np.ndarray
    modes: np.ndarray
    log_weight: np.ndarray


def residual(f: np.ndarray, labels: np.ndarray, num_classes: int) -> LossDerivatives:
    """Compute the first and second derivatives of the loss with respect to the outputs.

        Logistic:       -∂ℓ/∂f = y σ(-y f),     ∂²ℓ/∂f² = σ(y f) σ(-y f).
        Cross-entropy:  -∂ℓ/∂f = e_y - π = (1 - π_y) (e_y - π'),   ∂²ℓ/∂f² = Σ_k π_k (e_k - π)(e_k - π)ᵀ,

    where e_k is a unit vector, π = softmax(f), and π' is the softmax over the classes other than y.

    Args:
        f: (n, C) float64; outputs, with C = 1 for two classes and C = K for K > 2.
        labels: (n,) int; y, -1 and +1 for two classes, 0 to K-1 for K > 2.
        num_classes: K.
    """
    if num_classes == 2:
        agreement = labels * f[:, 0]
        log_size = -np.logaddexp(0, agreement)
        log_weight = log_size - np.logaddexp(0, -agreement)
        return LossDerivatives(1.0 * labels[:, None], log_size, np.ones((len(f), 1, 1)), log_weight[:, None])
    own = np.eye(num_classes)[labels]
    log_pi = f - np.logaddexp.reduce(f, axis=1, keepdims=True)
    log_size = np.logaddexp.reduce(np.where(own > 0, -np.inf, log_pi), axis=1)
    others = np.where(own > 0, 0, np.exp(log_pi - log_size[:, None]))
    # Compute e_k - π. For the true class, sum the other probabilities to avoid cancellation in 1 - π_y.
    missing = np.where(own > 0, np.exp(log_size)[:, None], 1 - np.exp(log_pi))
    identity = np.eye(num_classes)
    modes = np.where(identity > 0, missing[:, :, None], -np.exp(log_pi)[:, None, :])
    return LossDerivatives(own - others, log_size, modes, log_pi)


class Entries(NamedTuple):
    """Tokens of all sequences as flat arrays, (N,), and the outputs if only top tokens receive attention.

    Attributes:
        sequence: (N,) int; index of the sequence.
        token: (N,) int.
        top: (N,) int; a top token of the sequence.
        chosen: (N,) bool; True for top tokens.
        log_count: (N,); log of the number of occurrences in the sequence.
        apart: (N,); a_s - a_top, with scores a.
        value: (N, C); token values γ.
        f: (n, C); outputs.
        log_total: (n,); log of the total weight of the top tokens.
    """

    sequence: np.ndarray
    token: np.ndarray
    top: np.ndarray
    chosen: np.ndarray
    log_count: np.ndarray
    apart: np.ndarray
    value: np.ndarray
    f: np.ndarray
    log_total: np.ndarray

    @property
    def attention(self) -> np.ndarray:
        """Attention of each entry if only top tokens receive attention, (N,); 0 for all other tokens."""
        log_share = self.log_count + self.apart - self.log_total[self.sequence]
        return np.exp(np.where(self.chosen, log_share, -np.inf))


class TiedPart(NamedTuple):
    """Tied part of the loss near its minimum.

    The tied part is the loss if only the top tokens of each sequence receive attention.

    Attributes:
        normals: (k, D); orthonormal basis of 𝒯, the span of the differences of tied keys, excluding
            directions along which the Hessian is zero.
        directions: (D, j); directions in 𝒯, j ≤ k, along which p responds. Their lengths are such that the
            score differences of tied tokens change at similar rates. Directions are missing if the forces
            along them underflow.
        log_unit: () float; log of the unit in which `hessian` is measured.
        hessian: (j, j); second derivative, with respect to p along the directions, of the sum of the losses.
        error: (j,); first-order bound on the distance of p from the equilibrium along the directions; 0 if p
            is not near an equilibrium.
        edges: (t, 2) int; pairs of tied tokens whose key differences span 𝒯.
    """

    normals: np.ndarray
    directions: np.ndarray
    log_unit: float
    hessian: np.ndarray
    error: np.ndarray
    edges: np.ndarray


class Orders(NamedTuple):
    """Order of the lowest nonzero term in the force on each entry below the top.

    Each entry is compared with a top token of its sequence. Entries whose differences from the key of the top
    token agree modulo 𝒯, the span of the differences of tied keys, form one pair. A pair cancels if its
    first-order force is at most its error. Errors are due to rounding and to the distance between p and the
    equilibrium of tied tokens.

    Attributes:
        first: (N,) int; 1 if the first-order force repels the token from the top, -1 if it attracts the
            token, 0 if the force cancels or the token is a top token.
        pair: (N,) int; index of the cancelling pair to which the entry belongs, -1 for other entries.
        second_order: (m, m); the matrix M of the module docstring for the m cancelling pairs, in units that
            differ between pairs.
        silent: (m,) bool; True if the pair alone exerts no force: all of its tokens have the value of the
            output.
        doubt: (m,); bound on the relative error of the forces of the pair due to the distance between p and
            the equilibrium. A first-order force of this relative size may remain.
        resolved: () bool; False if errors of scores hide whether some first-order force cancels, or if forces
            of both signs form one pair although their key differences agree modulo 𝒯 only up to rounding.
        reference: (N,) int; the entry with the highest score in the pair. The x of a pair is that of its
            reference.
        log_first: (N,); log of |n g|, for n sequences, the same for all entries of a pair.
        log_unit: (m,); log of the unit u of each cancelling pair: n M_ij = u_i u_j second_order_ij.
    """

    first: np.ndarray
    pair: np.ndarray
    second_order: np.ndarray
    silent: np.ndarray
    doubt: np.ndarray
    resolved: bool
    reference: np.ndarray
    log_first: np.ndarray
    log_unit: np.ndarray


def orders(E: np.ndarray, entries: Entries, loss: LossDerivatives, tied: TiedPart, rounding: float) -> Orders:
    """Compute the order of the force on each entry, given the loss derivatives at `entries.f`.

    `rounding` is the rounding error of the scores.
    """
    below = entries.value - entries.f[entries.sequence]
    moved, distance = _errors(E, entries, tied, below)
    relative = distance + (_ROUNDING * (1 + np.abs(loss.log_size)))[entries.sequence]
    uncertain, terms_of_output = _uncertainty(entries, moved)
    below = np.where(np.abs(below) <= uncertain, 0, below)
    group, several = key_groups(E, entries.token, entries.top, tied.normals)
    relative = relative + np.where(several, rounding, 0.0)
    # Within a group, score differences stay bounded, because they are those of tied tokens. Scale x such that
    # the largest U is 1.
    rest = ~entries.chosen
    apart = np.where(several, entries.apart - _largest(group, entries.apart, rest)[group], 0.0)
    log_share = entries.log_count + apart - entries.log_total[entries.sequence]
    unit_of_share = _largest(group, log_share, rest)[group]
    log_share = np.where(rest, log_share - unit_of_share, -np.inf)
    # Express sequence weights relative to the largest weight in the group.
    log_own = loss.log_size[entries.sequence]
    unit_of_own = _largest(group, log_own, rest)[group]
    log_own = log_own - unit_of_own
    weight = np.exp(np.where(rest, log_share + log_own, -np.inf))
    parts = weight[:, None] * loss.direction[entries.sequence] * below
    pull, gross = parts.sum(axis=1), np.abs(parts).sum(axis=1)
    error = relative * gross
    error += weight * np.abs(loss.direction[entries.sequence] * np.where(below, uncertain, 0)).sum(axis=1)
    # Terms that cancel within a sequence leave an error. Set it to zero; otherwise it could dominate the
    # other forces when they are small.
    pull[np.abs(pull) <= error] = 0
    net, size, error = (np.bincount(group, x)[group] for x in (pull, gross, error))
    # Forces of the same sign do not cancel, whatever their sizes are.
    mixed = rest & (np.bincount(group, pull > 0) > 0)[group] & (np.bincount(group, pull < 0) > 0)[group]
    first = np.where(rest & ((np.abs(net) > error) | ~mixed), -np.sign(net), 0).astype(int)
    hidden = mixed & (first == 0) & (error > _RESOLVED * size)
    resolved = not hidden.any() and exactly_equal(
        E, entries.token, entries.top, group, mixed & several, tied.edges
    )
    idle = rest & (first == 0)
    pair = np.full(len(group), -1)
    pair[idle] = np.unique(group[idle], return_inverse=True)[1]
    terms = log_share, log_own, below, relative
    second, silent = _second_order(E, entries, loss, tied, pair, terms)
    with np.errstate(divide="ignore"):
        log_first = np.log(np.abs(net)) + unit_of_share + unit_of_own
    log_unit = np.zeros(len(second))
    log_unit[pair[idle]] = (unit_of_share + unit_of_own / 2)[idle]
    reference = _highest(group, entries.apart, rest)
    size_of_terms = np.where(terms_of_output > 0, terms_of_output, 1)
    shifted = distance + (moved[entries.sequence] / size_of_terms).max(axis=1)
    doubt = np.zeros(len(second))
    np.maximum.at(doubt, pair[idle], shifted[idle])
    return Orders(first, pair, second, silent, doubt, bool(resolved), reference, log_first, log_unit)


def _largest(group: np.ndarray, x: np.ndarray, among: np.ndarray) -> np.ndarray:
    largest = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(largest, group[among], x[among])
    return np.where(np.isfinite(largest), largest, 0)


def _highest(group: np.ndarray, x: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return the index of the largest x among some entries of the group, for each entry, (N,)."""
    order = np.lexsort((np.where(among, x, -np.inf), group))
    last = np.append(np.flatnonzero(np.diff(group[order])), len(order) - 1)
    return order[last][group]


def _errors(
    E: np.ndarray, entries: Entries, tied: TiedPart, below: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bound the errors due to the distance of p from the equilibrium of tied tokens.

    Returns:
        The error of the outputs, (n, C); and the relative error of the weight of each entry times that of its
        sequence, (N,).
    """
    lift = E @ tied.directions
    shift = _SAFETY * np.abs(lift[entries.token] - lift[entries.top]) @ tied.error
    moved, total = np.zeros_like(entries.f), np.zeros(len(entries.f))
    np.add.at(moved, entries.sequence, (entries.attention * shift)[:, None] * np.abs(below))
    np.add.at(total, entries.sequence, entries.attention * shift)
    of_sequence = total + 2 * moved.sum(axis=1)
    return moved, shift + of_sequence[entries.sequence]


def _uncertainty(entries: Entries, moved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bound the error of γ_s - f for each entry, (N, C); zero if f is the value of a single top token.

    The second result is the size of its terms, (N, C).
    """
    n = len(entries.f)
    several = np.bincount(entries.sequence[entries.chosen], minlength=n) > 1
    size = np.zeros_like(entries.f)
    np.add.at(size, entries.sequence, entries.attention[:, None] * np.abs(entries.value))
    size = size[entries.sequence] + np.abs(entries.value)
    # With more than one output, the values are differences, which are rounded.
    inexact = several[entries.sequence, None] | (entries.f.shape[1] > 1)
    return np.where(inexact, moved[entries.sequence] + _ROUNDING * size, 0.0), size


def _second_order(
    E: np.ndarray,
    entries: Entries,
    loss: LossDerivatives,
    tied: TiedPart,
    pair: np.ndarray,
    terms: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    log_share, log_own, below, relative = terms
    m = int(pair.max()) + 1
    if m == 0:
        return np.zeros((0, 0)), np.zeros(0, bool)
    idle = np.flatnonzero(pair >= 0)
    place, shape = (entries.sequence[idle], pair[idle]), (len(loss.log_size), m)
    share = np.exp(log_share[idle] + log_own[idle] / 2)
    weight = _sparse(share, *place, shape)
    deviation = [_sparse(share * column, *place, shape) for column in below[idle].T]
    columns = loss.direction.T
    along = sum(_scale_rows(r, x) for r, x in zip(columns, deviation, strict=True))
    size = sum(_scale_rows(np.abs(r), abs(x)) for r, x in zip(columns, deviation, strict=True))
    cross = (along.T @ weight).toarray()
    # Second derivative of the loss, in units of the first derivative.
    heavy = np.exp(np.minimum(loss.log_weight - loss.log_size[:, None], LARGE))
    steered = [
        sum(_scale_rows(mode[:, c], x) for c, x in enumerate(deviation))
        for mode in np.moveaxis(loss.modes, 1, 0)
    ]
    direct = sum((x.T @ _scale_rows(h, x)).toarray() for h, x in zip(heavy.T, steered, strict=True))
    sizes = (size.T @ weight).toarray()
    gross = sum((abs(x).T @ _scale_rows(h, abs(x))).toarray() for h, x in zip(heavy.T, steered, strict=True))
    gross = gross + sizes + sizes.T
    direct = direct + cross + cross.T
    solution = np.zeros((m, m))
    if tied.directions.shape[1]:
        own = idle, pair[idle], share
        turning = _response(E, entries, loss, tied, own, (weight, along, steered), heavy, below)
        solution = turning @ np.linalg.solve(tied.hessian, turning.T)
    error = np.zeros(m)
    np.maximum.at(error, pair[idle], relative[idle])
    cancels = error[:, None] + error
    if tied.directions.shape[1]:
        cancels = np.maximum(cancels, _CANCELS_TWICE)
    second = direct - solution
    second[np.abs(second) <= cancels * (gross + np.abs(solution))] = 0
    return second, (np.diag(gross) == 0) & (np.diag(second) == 0)


def _response(
    E: np.ndarray,
    entries: Entries,
    loss: LossDerivatives,
    tied: TiedPart,
    idle: tuple[np.ndarray, np.ndarray, np.ndarray],
    of_pairs: tuple[Any, Any, list[Any]],
    heavy: np.ndarray,
    below: np.ndarray,
) -> np.ndarray:
    """Compute n ∂g/∂y for the m pairs with cancelling first-order forces, (m, k), for n sequences.

    The result is in the units of each pair and of the tied part. See the module docstring for g and y.
    """
    (place, number, share), (weight, along, steered) = idle, of_pairs
    lift, shape = E @ tied.directions, (len(loss.log_size), len(E))
    # Combine both units with the sequence weight: e^(log_size - pair unit/2 - tied unit/2).
    unit = np.exp(np.minimum((loss.log_size - tied.log_unit) / 2, LARGE))
    moved = entries.attention[:, None] * below  # ∂f_X/∂a of each top entry

    def by_token(x: np.ndarray) -> Any:
        return _scale_rows(unit, _sparse(x, entries.sequence, entries.token, shape))

    r = loss.direction[entries.sequence]
    of_entries = [(weight, (r * moved).sum(axis=1)), (along, entries.attention)]
    products = [(of_pair, by_token(of_entry)) for of_pair, of_entry in of_entries]
    for mode, h, x in zip(np.moveaxis(loss.modes, 1, 0), heavy.T, steered, strict=True):
        turned = (mode[entries.sequence] * moved).sum(axis=1)
        products.append((x, _scale_rows(h, by_token(turned))))
    own = share * unit[entries.sequence[place]] * (r[place] * below[place]).sum(axis=1)
    inner = _sparse(own, number, entries.token[place], (weight.shape[1], len(E)))
    on_tokens = sum(of_pair.T @ of_token for of_pair, of_token in products) - inner
    sizes = sum(abs(of_pair).T @ abs(of_token) for of_pair, of_token in products) + abs(inner)
    first = np.unique(number, return_index=True)[1]
    low, top = entries.token[place][first], entries.top[place][first]
    total, size = (np.asarray(_scale_rows(unit, x).sum(axis=0)).ravel()[:, None] for x in (along, abs(along)))
    apart = lift[low] - lift[top]
    turning = on_tokens @ lift + total * apart
    # Terms that cancel leave rounding error. Set it to zero, because it could dominate other terms of M if
    # these are small.
    gross = sizes @ np.abs(lift) + size * np.abs(apart)
    return np.where(np.abs(turning) <= _CANCELS_TWICE * gross, 0, turning)


def _sparse(x: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_array  # slow to import

    return csr_array((x, (rows, columns)), shape=shape)


def _scale_rows(rows: np.ndarray, x: Any) -> Any:
    return x.multiply(rows[:, None]).tocsr()
