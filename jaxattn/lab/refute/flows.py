"""Helpers for claims about flows: corpora that differ in their labels, and small programs for batches.

The programs are in floating point and only rank candidates. `exact` decides.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxattn.data.corpus import Corpus
from jaxattn.data.token_ids import from_sequences
from jaxattn.lab.refute.space import Instance, pad

# A set of active constraints counts as dependent below this determinant, relative to a power of the trace. A
# constraint counts as violated below minus this slack.
_SINGULAR, _FEASIBLE = 1e-12, 1e-9


def corpora(sequences: Sequence[Sequence[int]], labels: np.ndarray, vocab_size: int) -> Corpus:
    """Return corpora with the same sequences and different labels, with a leading axis B.

    Args:
        sequences: n lists of token ids.
        labels: (B, n) int; ±1.
        vocab_size: V.

    Example:
        >>> from jaxattn.lab.refute import flows
        >>> flows.corpora([[0, 1], [1, 2]], np.array([[1, 1], [1, -1]]), 3).targets.tolist()
        [[1, 1], [1, -1]]
    """
    first = from_sequences(sequences, [1] * len(sequences), vocab_size=vocab_size)
    number = len(labels)
    stacked = jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (number, *np.shape(x))), first)
    return stacked.replace(targets=np.asarray(labels, np.int32))


def shortest_batch(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the shortest x with A x ≥ b for each of B problems, (B, d); NaN if there is none.

    All sets of at most d active constraints are tried, as in `exact.shortest`.

    Args:
        A: (B, m, d).
        b: (B, m).

    Example:
        >>> from jaxattn.lab.refute import flows
        >>> flows.shortest_batch(np.array([[[1, 1], [1, -1]]]), np.ones((1, 2))).tolist()
        [[1.0, 0.0]]
    """
    A, b = np.asarray(A, float), np.asarray(b, float)
    number, m, d = A.shape
    best, length = np.full((number, d), np.nan), np.full(number, np.inf)
    zero = (b <= 0).all(axis=1)
    best[zero], length[zero] = 0, 0
    gram = np.einsum("bid,bjd->bij", A, A)
    for count in range(1, min(m, d) + 1):
        for active in map(list, combinations(range(m), count)):
            own = gram[:, active][:, :, active]
            size = np.trace(own, axis1=1, axis2=2) ** count
            regular = np.abs(np.linalg.det(own)) > _SINGULAR * size
            own = np.where(regular[:, None, None], own, np.eye(count))
            weights = np.linalg.solve(own, b[:, active, None])[:, :, 0]
            x = np.einsum("bi,bid->bd", weights, A[:, active])
            slack = np.einsum("bmd,bd->bm", A, x) - b
            feasible = regular & (slack >= -_FEASIBLE).all(axis=1)
            norm = np.where(feasible, np.linalg.norm(x, axis=1), np.inf)
            better = norm < length
            best[better], length[better] = x[better], norm[better]
    return best


def largest(rank: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest values; the last one is repeated if there are fewer values.

    A flow is compiled for each number of instances, so a score integrates the same number in every batch.

    Example:
        >>> from jaxattn.lab.refute import flows
        >>> flows.largest(np.array([0.1, 0.7, 0.3]), 2).tolist()
        [1, 2]
    """
    order = np.argsort(-rank, kind="stable")[:count]
    return np.append(order, np.repeat(order[-1], count - len(order)))


def in_parts(score: Callable[[Instance], np.ndarray], batch: Instance, size: int) -> np.ndarray:
    """Apply a score of batches to parts of exactly `size` instances, and concatenate the scores.

    Example:
        >>> from jaxattn.lab.refute import flows
        >>> flows.in_parts(lambda batch: batch["x"] ** 2, {"x": np.arange(3)}, size=2).tolist()
        [0, 1, 4]
    """
    count = len(next(iter(batch.values())))
    found = []
    for start in range(0, count, size):
        part = {name: x[start : start + size] for name, x in batch.items()}
        found.append(score(pad(part, size))[: min(size, count - start)])
    return np.concatenate(found)


def one_minus_cosine(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Return 1 - cos of the angle between vectors along the last axis, without cancellation; NaN for 0.

    Example:
        >>> from jaxattn.lab.refute import flows
        >>> round(float(flows.one_minus_cosine([1, 0], [1, 1])), 3)
        0.293
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        a = a / np.linalg.norm(a, axis=-1, keepdims=True)
        b = b / np.linalg.norm(b, axis=-1, keepdims=True)
    return ((a - b) ** 2).sum(axis=-1) / 2
