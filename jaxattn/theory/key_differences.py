"""Groups of token pairs whose key differences are equal modulo 𝒯, the span of differences of tied keys."""

import numpy as np

from jaxattn.theory.infeasible import exact_rank, residues

# Two key differences count as equal modulo 𝒯 if the part of their difference orthogonal to 𝒯 is less than
# this fraction of it. Without ties, they are equal only if their difference is exactly zero.
_SAME = 1e-11
# Bound on the rounding error of a difference of keys, relative to its entries.
_ROUNDING = 16 * 2.0**-52


def key_groups(
    E: np.ndarray, token: np.ndarray, top: np.ndarray, normals: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Group entries whose key differences are equal modulo 𝒯.

    Args:
        E: (V, D); keys.
        token: (N,) int; token of each entry.
        top: (N,) int; a top token of its sequence.
        normals: (k, D); orthonormal basis of 𝒯.

    Returns:
        The index of the group of each entry, (N,); and whether this group contains more than one distinct
        difference, (N,) bool.
    """
    pairs, number = np.unique(token * len(E) + top, return_inverse=True)
    token, top = np.divmod(pairs, len(E))
    flat = E - E @ normals.T @ normals
    x = flat @ _directions(E.shape[1])
    found = _label_groups(x[token] - x[top], _SAME * E.shape[1] * float(np.abs(flat).max()))
    rows = E[top] - E[token]
    back = E[top] - rows  # the rounding error of the subtraction, after Knuth
    rest = (E[top] - (rows + back)) + (back - E[token])
    for members in _members(found):
        _relabel(found, members, _classes(rows[members], rest[members], normals))
    several = np.zeros(len(found), bool)
    for members in _members(found):
        differs = (rows[members] != rows[members[0]]) | (rest[members] != rest[members[0]])
        several[members] = differs.any()
    return np.unique(found, return_inverse=True)[1][number], several[number]


def _classes(rows: np.ndarray, rest: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Return a label for each row + rest, (m,), the same for rows that are equal modulo 𝒯.

    Rows that a random projection does not distinguish are compared through their differences from the first
    of them. These are exact up to their own rounding, however short they are.
    """
    apart = rows
    for _ in range(2):  # two passes make the result orthogonal up to rounding
        apart = apart - apart @ normals.T @ normals
    size = np.abs(rows).max(axis=1)
    apart = np.where((np.abs(apart).max(axis=1) <= _SAME * size)[:, None], 0.0, apart)
    scale, dim = float(np.abs(apart).max()), rows.shape[1]
    if scale == 0:
        return np.zeros(len(rows), int)
    rounding = _SAME * scale + _ROUNDING * float(size.max())
    found = _label_groups(apart @ _directions(dim), dim * min(rounding, 1e-3 * scale))
    if not found.any():  # every row is near another one: separate at least those that are zero
        found = apart.any(axis=1).astype(int)
    for members in _members(found):
        high, low = rows[members] - rows[members[0]], rest[members] - rest[members[0]]
        total = high + low
        _relabel(found, members, _classes(total, low - (total - high), normals))
    return found


def _directions(dim: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(dim, 2))


def _label_groups(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Return a label for each point, (m,). Gaps larger than the tolerance in a coordinate separate labels."""
    found = np.zeros(len(points), int)
    for x in points.T:
        order = np.lexsort((x, found))
        new = (np.diff(found[order]) > 0) | (np.diff(x[order]) > tolerance)
        found[order] = np.concatenate([[0], np.cumsum(new)])
    return found


def _members(found: np.ndarray) -> list[np.ndarray]:
    """Return the indices of the members of each label that has more than one."""
    order = np.argsort(found, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(found[order])) + 1)
    return [members for members in parts if len(members) > 1]


def _relabel(found: np.ndarray, members: np.ndarray, labels: np.ndarray) -> None:
    found[members] = np.where(labels > 0, found.max() + labels, found[members])


def exactly_equal(
    E: np.ndarray, token: np.ndarray, top: np.ndarray, group: np.ndarray, some: np.ndarray, edges: np.ndarray
) -> bool:
    """Return whether the key differences of some entries are exactly equal modulo 𝒯 within their groups.

    Args:
        E: (V, D); keys.
        token: (N,) int; token of each entry.
        top: (N,) int; a top token of its sequence.
        group: (N,) int; the group of each entry.
        some: (N,) bool; True for the entries to compare.
        edges: (t, 2) int; pairs of tied tokens whose key differences span 𝒯.
    """
    if not some.any():
        return True
    members = np.unique(np.stack([group, top, token])[:, some], axis=1)
    first = np.unique(members[0], return_index=True, return_inverse=True)
    keys = residues(E)
    rows = keys[members[1]] - keys[members[2]]
    ties = keys[edges[:, 1]] - keys[edges[:, 0]]
    return exact_rank(np.concatenate([ties, rows - rows[first[1]][first[2]]])) == exact_rank(ties)
