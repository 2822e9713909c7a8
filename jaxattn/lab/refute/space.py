"""Spaces of small integer instances: named axes, ranges, random instances and mutations.

An instance is a dictionary of integer arrays. A batch has the same arrays with a leading axis.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxattn.core.errors import InputError

Instance = dict[str, np.ndarray]

# A space with at most this many instances of one size is enumerated instead of sampled.
ENUMERABLE = 4096
# Probabilities of the number of elementary changes in a mutation: 1, 2 and 3.
_CHANGES = 0.6, 0.3, 0.1


class Integers(NamedTuple):
    """Array of integers with named axes.

    Attributes:
        axes: names of the axes, separated by spaces, such as "token dim"; "" for a scalar. Axes with the same
            name have the same length, also in different arrays. Shrinking removes an index from all of them.
        low: smallest value.
        high: largest value.
    """

    axes: str
    low: int
    high: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(self.axes.split())


@dataclass(frozen=True)
class Space:
    """Set of integer instances that a search samples.

    Attributes:
        arrays: the arrays of an instance, by name.
        sizes: lengths of the axes; one batch has instances of one size. Place small sizes first. Each size
            is compiled separately.
        repair: function that maps a batch to the constraints of the claim, such as "the last token makes the
            sum zero", by changing entries. It is applied to random and mutated instances, and may leave the
            ranges. None changes nothing.
    """

    arrays: Mapping[str, Integers]
    sizes: tuple[Mapping[str, int], ...]
    repair: Callable[[Instance], Instance] | None = None

    def shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array for `sizes[size]`."""
        lengths = self.sizes[size]
        return {name: tuple(lengths[axis] for axis in x.names) for name, x in self.arrays.items()}

    def number(self, size: int) -> int:
        """Return the number of instances of `sizes[size]` before `repair`."""
        shapes = self.shapes(size)
        counts = ((x.high - x.low + 1) ** math.prod(shapes[name]) for name, x in self.arrays.items())
        return math.prod(counts)

    def axes(self, name: str) -> tuple[str, ...]:
        """Return the names of the axes of an array."""
        return self.arrays[name].names

    def describe(self) -> str:
        """Return the ranges and sizes in one line."""
        arrays = ", ".join(
            f"{name}{f' ({x.axes})' * bool(x.axes)} in {x.low}..{x.high}" for name, x in self.arrays.items()
        )
        sizes = "; ".join(", ".join(f"{k} = {v}" for k, v in size.items()) for size in self.sizes)
        return f"{arrays}; {sizes}" if any(self.sizes) else arrays

    def check(self) -> None:
        """Raise InputError if a range is empty, or a size does not give the length of every axis."""
        if not self.sizes:
            raise InputError("space: sizes is empty; give at least one size, such as ({'token': 2},)")
        for name, x in self.arrays.items():
            if x.low > x.high:
                raise InputError(f"space: {name}: {x.low}..{x.high} is empty; exchange low and high")
            for size in self.sizes:
                if missing := [axis for axis in x.names if axis not in size]:
                    raise InputError(f"space: {name}: no length for axis {missing[0]!r} in {dict(size)}")


def repaired(space: Space, batch: Instance) -> Instance:
    """Return a copy of a batch with `Space.repair` applied."""
    copy = {name: np.array(x) for name, x in batch.items()}
    return space.repair(copy) if space.repair else copy


def enumerate_all(space: Space, size: int) -> Instance:
    """Return all instances of a size, in lexicographic order of their entries, as a batch."""
    low, high = bounds(space, size)
    rest = np.arange(space.number(size))
    columns = []
    for width in (high - low + 1)[::-1]:
        rest, digit = np.divmod(rest, width)
        columns.append(digit)
    return unflatten(space, size, np.stack(columns[::-1], axis=1) + low)


def sample(space: Space, size: int, count: int, rng: np.random.Generator) -> Instance:
    """Return `count` instances whose entries are uniform and independent, as a batch."""
    low, high = bounds(space, size)
    return unflatten(space, size, rng.integers(low, high + 1, (count, len(low))))


def mutate(space: Space, size: int, parents: Instance, count: int, rng: np.random.Generator) -> Instance:
    """Return `count` changed copies of randomly chosen parents, as a batch.

    A change adds ±1 to an entry, replaces or negates an entry, exchanges two entries of an array, or copies
    one row of an array to another. Results are clipped to the ranges of the space.
    """
    low, high = bounds(space, size)
    flat = flatten(space, parents)
    children = flat[rng.integers(len(flat), size=count)]
    rows = _rows(space, size)
    changes = rng.choice([1, 2, 3], size=count, p=_CHANGES)
    for child, number in zip(children, changes, strict=True):
        for _ in range(number):
            _change(child, low, high, rows, rng)
    return unflatten(space, size, np.clip(children, low, high))


def _change(x: np.ndarray, low: np.ndarray, high: np.ndarray, rows: Any, rng: np.random.Generator) -> None:
    kind, i = rng.integers(5), rng.integers(len(x))
    start, number, width = rows[np.searchsorted([first for first, *_ in rows], i, side="right") - 1]
    if kind == 0:
        x[i] += rng.choice([-1, 1])
    elif kind == 1:
        x[i] = rng.integers(low[i], high[i] + 1)
    elif kind == 2:
        x[i] = -x[i]
    elif kind == 3:
        j = start + rng.integers(number * width)
        x[[i, j]] = x[[j, i]]
    else:
        a, b = start + width * rng.integers(number, size=2)
        x[a : a + width] = x[b : b + width]


def _rows(space: Space, size: int) -> list[tuple[int, int, int]]:
    """Return, for each array, its first position among all entries, its number of rows, and their length."""
    found, start = [], 0
    for shape in space.shapes(size).values():
        number = shape[0] if shape else 1
        total = int(np.prod(shape))
        found.append((start, number, total // max(number, 1)))
        start += total
    return found


def bounds(space: Space, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest value of each entry, in the order of `flatten`."""
    shapes = space.shapes(size)
    low = [np.full(int(np.prod(shapes[name])), x.low) for name, x in space.arrays.items()]
    high = [np.full(int(np.prod(shapes[name])), x.high) for name, x in space.arrays.items()]
    return np.concatenate(low), np.concatenate(high)


def flatten(space: Space, batch: Instance) -> np.ndarray:
    """Return the entries of all arrays of a batch, one row per instance."""
    return np.concatenate([batch[name].reshape(len(batch[name]), -1) for name in space.arrays], axis=1)


def unflatten(space: Space, size: int, flat: np.ndarray) -> Instance:
    """Return the batch with the given rows of entries; the inverse of `flatten`."""
    found, start = {}, 0
    for name, shape in space.shapes(size).items():
        end = start + int(np.prod(shape))
        found[name] = flat[:, start:end].reshape(len(flat), *shape)
        start = end
    return found


def pick(batch: Instance, index: int) -> Instance:
    """Return one instance of a batch."""
    return {name: x[index] for name, x in batch.items()}


def stack(instances: list[Instance]) -> Instance:
    """Return instances of the same size as a batch."""
    return {name: np.stack([one[name] for one in instances]) for name in instances[0]}


def pad(batch: Instance, count: int) -> Instance:
    """Repeat the first instance at the end of a batch until it has `count` instances."""
    return {
        name: np.concatenate([x, np.repeat(x[:1], max(count - len(x), 0), axis=0)])
        for name, x in batch.items()
    }


def to_lists(instance: Instance) -> dict[str, Any]:
    """Convert an instance to nested lists of Python integers."""
    return {name: np.asarray(x).tolist() for name, x in instance.items()}


def from_lists(lists: Mapping[str, Any]) -> Instance:
    """Convert nested lists to an instance."""
    return {name: np.asarray(x, np.int64) for name, x in lists.items()}
