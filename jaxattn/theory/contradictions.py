"""Equal bags with contradictory labels, whose loss is minimal at a fixed output.

All sequences with the same tokens, counts and top tokens have the same output f, and the sum of their losses
is a convex function of f. If it is minimal at p, no change of f reduces it, and the bag is *settled*. Let J
be the derivatives of the outputs of settled bags with respect to p, in coordinates of the values that each of
these outputs can take. If its rows are linearly independent, then by the implicit function theorem

- the points near p at which all of these outputs are minimal form a manifold;
- tied tokens can compensate every effect of a lower token on these outputs.

docs/notes/exact_flow_ties.md derives both.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxattn.core.arithmetic import lengths
from jaxattn.theory.infeasible import not_orthogonal, residues
from jaxattn.theory.orders import Entries, LossDerivatives

# Forces on a token of a bag cancel if their sum is below this fraction of them. A direction counts as zero
# below this fraction.
_ZERO = 1e-8
# Values are linearly dependent below this relative size; rows of J of length 1, below this singular value.
_ROUNDING = 1e-12
_DEPENDENT = 1e-6


class Settled(NamedTuple):
    """Settled bags in n sequences with N entries.

    Attributes:
        sequence: (n,) bool; True for the sequences of settled bags.
        reached: (N,) bool; True if changes in the attention to the top tokens can compensate the effect of
            the entry on the output of its sequence.
        rows: (R, D); J, with rows of length 1, or 0 if the output does not depend on p.
        owner: (R,) int; a sequence of the bag to which the row belongs.
        part: (n,) int; number of the top tokens and of the shares of the labels of the bag. If they are the
            same, two settled bags have the same output and the same minimum.
        zero: (n,) bool; True for sequences of settled bags whose minimum is exactly at an output of zero,
            because all labels are equally frequent.
    """

    sequence: np.ndarray
    reached: np.ndarray
    rows: np.ndarray
    owner: np.ndarray
    part: np.ndarray
    zero: np.ndarray

    def independent(self, some: np.ndarray) -> bool:
        """Return whether the rows of J of some sequences, (n,) bool, are linearly independent."""
        rows = self.rows[some[self.owner]]
        if len(rows) == 0:
            return True
        return len(rows) <= rows.shape[1] and bool(np.linalg.svd(rows, compute_uv=False).min() > _DEPENDENT)

    def compensate(self, entries: Entries) -> bool:
        """Return whether tied tokens can compensate every small change of the outputs that they determine.

        This requires that all bags whose top tokens differ in value are settled, with independent outputs.
        """
        tied = _with_ties(entries)
        return bool(self.sequence[tied].all()) and self.independent(tied)

    def has_common_minimum(self, entries: Entries) -> bool:
        """Return whether there are points near p at which the outputs of all bags with ties are minimal.

        All bags whose top tokens differ in value must be settled, and the outputs of different `part`s must
        be independent.
        """
        tied = _with_ties(entries)
        owners = np.unique(self.owner[tied[self.owner]])
        one_of_each = np.zeros(len(tied), bool)
        one_of_each[owners[np.unique(self.part[owners], return_index=True)[1]]] = True
        return bool(self.sequence[tied].all()) and self.independent(one_of_each)

    def has_value_of_output(self, entries: Entries) -> np.ndarray:
        """Return whether the value of each entry, (N,), is exactly the output of its bag at the minimum."""
        equal = (entries.value == entries.value[_tops(entries)]).all(axis=1) & ~_with_ties(entries)[
            entries.sequence
        ]
        return equal | (self.zero[entries.sequence] & (entries.value == 0).all(axis=1))


def settled(E: np.ndarray, values: np.ndarray, entries: Entries, loss: LossDerivatives) -> Settled:
    """Find the settled bags.

    Args:
        E: (V, D); keys.
        values: (V, C); values. Tokens with the same key and the same value count as the same token.
        entries: the tokens of all sequences.
        loss: the loss derivatives at `entries.f`.
    """
    members = _members(entries)
    number = np.unique(np.column_stack([E, values]), axis=0, return_inverse=True)[1].ravel()
    bag = _bags(number, entries, members)
    shares = _label_shares(bag, loss)
    largest = np.full(int(bag.max()) + 1, -np.inf)
    np.maximum.at(largest, bag, loss.log_size)
    force = np.exp(loss.log_size - largest[bag])[:, None] * loss.direction
    net, gross = np.zeros((len(largest), force.shape[1])), np.zeros((len(largest), force.shape[1]))
    np.add.at(net, bag, force)
    np.add.at(gross, bag, np.abs(force))
    below, own = entries.value - entries.f[entries.sequence], bag[entries.sequence]
    unbalanced = np.abs((net[own] * below).sum(axis=1)) > _ZERO * (gross[own] * np.abs(below)).sum(axis=1)
    minimal = np.bincount(own, unbalanced, len(largest)) == 0
    representative = np.unique(bag, return_index=True)[1]
    reached, rows, owner = np.zeros(len(own), bool), [np.zeros((0, E.shape[1]))], []
    for sequence, inside in enumerate(members):
        top = inside[entries.chosen[inside]]
        basis = _span(entries.value[top] - entries.value[top[0]])
        rest = lengths(below[inside] - below[inside] @ basis.T @ basis)
        reached[inside] = rest <= _ROUNDING * lengths(below[inside]).max()
        if minimal[bag[sequence]] and sequence == representative[bag[sequence]]:
            change = (below[top] * entries.attention[top, None]) @ basis.T
            rows.append(_normalised(change.T @ (E[entries.token[top]] - E[entries.top[top]])))
            owner += [sequence] * len(basis)
    part = _parts(number, entries, members, shares)
    zero = minimal[bag] & (shares == shares[:, :1]).all(axis=1) & (np.abs(entries.f) < _DEPENDENT).all(axis=1)
    return Settled(minimal[bag], reached, np.concatenate(rows), np.array(owner, int), part, zero)


def _members(entries: Entries) -> list[np.ndarray]:
    """Return the indices of the entries of each sequence."""
    order = np.argsort(entries.sequence, kind="stable")
    return np.split(order, np.cumsum(np.bincount(entries.sequence, minlength=len(entries.f)))[:-1])


def _bags(number: np.ndarray, entries: Entries, members: list[np.ndarray]) -> np.ndarray:
    """Number the bags, (n,) int: the same tokens with the same counts, of which the same are on top."""
    rows = list(zip(number[entries.token], entries.log_count, entries.chosen, strict=True))
    bags: dict[tuple[tuple[int, float, bool], ...], int] = {}
    return np.array([bags.setdefault(tuple(sorted(rows[i] for i in x)), len(bags)) for x in members])


def _label_shares(bag: np.ndarray, loss: LossDerivatives) -> np.ndarray:
    """Return how often each label occurs in the bag of a sequence, up to a common factor, (n, K) int."""
    direction = loss.direction
    label = direction.argmax(axis=1) if direction.shape[1] > 1 else (direction[:, 0] > 0).astype(int)
    counts = np.zeros((int(bag.max()) + 1, max(direction.shape[1], 2)), int)
    np.add.at(counts, (bag, label), 1)
    return (counts // np.gcd.reduce(counts, axis=1, keepdims=True))[bag]


def _parts(number: np.ndarray, entries: Entries, members: list[np.ndarray], shares: np.ndarray) -> np.ndarray:
    """Number the top tokens with their counts, together with the shares of the labels, (n,) int."""
    rows = list(zip(number[entries.token], entries.log_count, strict=True))
    parts: dict[Any, int] = {}
    return np.array(
        [
            parts.setdefault((*sorted(rows[i] for i in x if entries.chosen[i]), *own), len(parts))
            for x, own in zip(members, shares.tolist(), strict=True)
        ]
    )


def _with_ties(entries: Entries) -> np.ndarray:
    """Return whether the top tokens of each sequence differ in value, (n,) bool."""
    differs = (entries.value != entries.value[_tops(entries)]).any(axis=1) & entries.chosen
    return np.bincount(entries.sequence, differs, len(entries.f)) > 0


def _tops(entries: Entries) -> np.ndarray:
    """Return the index of a top entry of the same sequence for each entry, (N,)."""
    first = np.zeros(len(entries.f), int)
    first[entries.sequence[entries.chosen]] = np.flatnonzero(entries.chosen)
    return first[entries.sequence]


def _span(rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the span of the rows."""
    _, size, vt = np.linalg.svd(rows, full_matrices=False)
    return vt[size > _ROUNDING * size.max()]


def _normalised(rows: np.ndarray) -> np.ndarray:
    size = lengths(rows)
    return rows / np.where(size > 0, size, 1)[:, None]


def isolated(
    E: np.ndarray,
    leader: np.ndarray,
    entries: Entries,
    edges: np.ndarray,
    loose: np.ndarray,
    found: Settled,
) -> bool:
    """Return whether the loose directions and all forces near them are orthogonal to all other forces.

    A sequence exerts no force if all of its tokens have the same value. The other sequences that contain a
    key difference that is not orthogonal to the loose groups of tied tokens, or to the key differences of
    such a sequence, must have top tokens only, and their bags must be settled and have independent outputs.

    Args:
        E: (V, D); keys.
        leader: (V,) int; the smallest token in each token's group of tied tokens.
        entries: the tokens of all sequences.
        edges: (t, 2) int; pairs of tied tokens that join the tokens of each group.
        loose: (l, D); the loose directions.
        found: the settled bags.
    """
    if len(loose) == 0:
        return True
    rows = E[edges[:, 1]] - E[edges[:, 0]]
    moves = lengths(rows @ loose.T) > _ZERO * lengths(rows)
    keys = residues(E)
    n = len(entries.f)
    closed = np.bincount(entries.sequence, ~entries.chosen, n) == 0
    differs = (entries.value != entries.value[_tops(entries)]).any(axis=1)
    exerts = np.bincount(entries.sequence, differs, n) > 0
    pairs = np.stack([entries.token, entries.top])
    inside = np.zeros(n, bool)
    seeds = edges[np.isin(leader[edges[:, 0]], leader[edges[moves, 0]])]
    near = keys[seeds[:, 1]] - keys[seeds[:, 0]]
    while len(near):
        left = exerts[entries.sequence] & ~inside[entries.sequence]
        distinct, number = np.unique(pairs[:, left], axis=1, return_inverse=True)
        touched = not_orthogonal(keys[distinct[0]] - keys[distinct[1]], near)
        reached = np.unique(entries.sequence[left][touched[number.ravel()]])
        if not (closed & found.sequence)[reached].all():
            return False
        inside[reached] = True
        new = np.isin(entries.sequence, reached)
        near = keys[entries.token[new]] - keys[entries.top[new]]
    return bool(moves.any()) and found.independent(inside)
