"""Shrink a counterexample: remove indices, simplify matrices and entries, as long as it stays one.

Only a predicate decides, which is exact (`batch.verdict`). Scores play no part, so a float cannot
mislead the reduction, and the assumptions of the statement hold for every intermediate instance.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from jaxattn.lab.refute.claim import Claim
from jaxattn.lab.refute.space import Instance

# Largest number of calls of the predicate.
CALLS = 2000
Predicate = Callable[[Sequence[Instance]], int | None]


def default_size(instance: Instance) -> tuple[Any, ...]:
    """Return a key that is smaller for a simpler instance.

    Its parts, in this order: number of entries, number of square matrices other than the identity, largest
    absolute value, number of nonzero entries, number of distinct values in each array, sum of absolute
    values, number of negative entries, minus the sum, and the entries themselves, so that larger ones come
    first.
    """
    arrays = [np.asarray(x) for x in instance.values()]
    entries = np.concatenate([x.ravel() for x in arrays])
    other = sum(_is_square(x) and not np.array_equal(x, np.eye(len(x))) for x in arrays)
    return (
        entries.size,
        other,
        int(np.abs(entries).max(initial=0)),
        int((entries != 0).sum()),
        sum(len(np.unique(x)) for x in arrays),
        int(np.abs(entries).sum()),
        int((entries < 0).sum()),
        -int(entries.sum()),
        tuple((-entries).tolist()),
    )


def shrink(claim: Claim, instance: Instance, holds: Predicate, calls: int = CALLS) -> tuple[Instance, int]:
    """Return a smaller instance for which the predicate holds, and the number of candidates tried.

    The reductions are tried in this order, and again from the first after a success: remove an index of an
    axis, equate two values, replace a square matrix by the identity, make entries smaller, change signs, and
    exchange two indices.

    Args:
        claim: the claim, for its axes and its `size`.
        instance: an instance for which the predicate holds.
        holds: function that returns the index of the first of several instances that is a counterexample, or
            None.
        calls: largest number of candidates.
    """
    size = claim.size or default_size
    tried, progress = 0, True
    while progress and tried < calls:
        progress = False
        for family in (_removed, _equated, _identities, _smaller, _signs, _exchanged):
            key = size(instance)
            simpler = (one for one in family(claim, instance) if _in_range(claim, instance, one))
            candidates = [one for one in simpler if size(one) < key][: calls - tried]
            if not candidates:
                continue
            index = holds(candidates)
            tried += len(candidates) if index is None else index + 1
            if index is not None:
                instance, progress = candidates[index], True
                break
    return instance, tried


def one_by_one(is_counterexample: Callable[[Instance], bool]) -> Predicate:
    """Return the predicate for `shrink` that tests instances in order until one is a counterexample."""

    def first(candidates: Sequence[Instance]) -> int | None:
        return next((i for i, one in enumerate(candidates) if is_counterexample(one)), None)

    return first


def _removed(claim: Claim, instance: Instance) -> Iterator[Instance]:
    for axis, length in sorted(_lengths(claim, instance).items(), key=lambda x: (-x[1], x[0])):
        for index in range(length if length > 1 else 0):
            yield _taken(claim, instance, axis, np.delete(np.arange(length), index))


def _equated(claim: Claim, instance: Instance) -> Iterator[Instance]:
    for name, x in instance.items():
        values = np.unique(x)
        for old in values[np.argsort(-np.abs(values), kind="stable")]:
            for new in values[np.abs(values) <= abs(old)]:
                if new != old:
                    yield {**instance, name: np.where(x == old, new, x)}


def _identities(claim: Claim, instance: Instance) -> Iterator[Instance]:
    for name, x in instance.items():
        low, high = claim.space.arrays[name].low, claim.space.arrays[name].high
        if _is_square(x) and low <= 0 and high >= 1:
            yield {**instance, name: np.eye(len(x), dtype=x.dtype)}


def _smaller(claim: Claim, instance: Instance) -> Iterator[Instance]:
    for name, x in instance.items():
        flat = x.ravel()
        for index in np.argsort(-np.abs(flat), kind="stable"):
            c = int(flat[index])
            steps = [0, int(c / 2), c - int(np.sign(c))]
            for new in dict.fromkeys(step for step in steps if abs(step) < abs(c)):
                yield {**instance, name: _replaced(x, int(index), new)}
    # One entry may be unable to change alone: subtract the same amount from two entries of an array.
    for name, x in instance.items():
        flat = x.ravel()
        for i in range(flat.size):
            for j in range(i + 1, flat.size if flat.size <= 12 else i + 1):
                both = _replaced(x, i, int(flat[i] - np.sign(flat[i])))
                yield {**instance, name: _replaced(both, j, int(flat[j] - np.sign(flat[j])))}


def _signs(claim: Claim, instance: Instance) -> Iterator[Instance]:
    for name, x in instance.items():
        yield {**instance, name: -x}
        for axis in range(x.ndim):
            for index in range(x.shape[axis]):
                flipped = np.moveaxis(x.copy(), axis, 0)
                flipped[index] *= -1
                yield {**instance, name: np.moveaxis(flipped, 0, axis)}
        for index in range(x.size if x.ndim != 1 else 0):
            yield {**instance, name: _replaced(x, index, -int(x.ravel()[index]))}
    yield {name: -x for name, x in instance.items()}


def _exchanged(claim: Claim, instance: Instance) -> Iterator[Instance]:
    for axis, length in sorted(_lengths(claim, instance).items()):
        for i, j in combinations(range(length), 2):
            order = np.arange(length)
            order[[i, j]] = j, i
            yield _taken(claim, instance, axis, order)


def _in_range(claim: Claim, before: Instance, after: Instance) -> bool:
    """Return whether entries are in the ranges of the space, or no farther outside than before."""
    return all(
        min(x.low, before[name].min()) <= after[name].min()
        and after[name].max() <= max(x.high, before[name].max())
        for name, x in claim.space.arrays.items()
    )


def _lengths(claim: Claim, instance: Instance) -> dict[str, int]:
    """Return the lengths of the axes that are not fixed, by name."""
    pairs = (
        pair for name, x in instance.items() for pair in zip(claim.space.axes(name), x.shape, strict=True)
    )
    return {axis: length for axis, length in pairs if axis not in claim.fixed}


def _taken(claim: Claim, instance: Instance, axis: str, indices: np.ndarray) -> Instance:
    """Return the instance with the given indices of an axis, in all arrays that have this axis."""

    def one(name: str, x: np.ndarray) -> np.ndarray:
        for k, own in enumerate(claim.space.axes(name)):
            x = np.take(x, indices, axis=k) if own == axis else x
        return x

    return {name: one(name, x) for name, x in instance.items()}


def _replaced(x: np.ndarray, index: int, value: int) -> np.ndarray:
    flat = x.ravel().copy()
    flat[index] = value
    return flat.reshape(x.shape)


def _is_square(x: np.ndarray) -> bool:
    return x.ndim == 2 and x.shape[0] == x.shape[1]
