"""Covers: lists of tokens with a label each that decide every sequence, and the shortest of them.

Attention that rests on one token of every sequence is such a list, ordered by score: the first token of the
list that a sequence holds is on top of it, and has to speak for its label. Learning theory calls it a
decision list of single tokens.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import jaxattn as ja
from jaxattn.data import Corpus
from jaxattn.theory import distinct_tokens

# Far more than corpora of some hundred sequences take.
_MOST_PROGRAMS = 1_000


@dataclass(frozen=True)
class TokenCover:
    """Tokens with a label each, so that the first one of them that a sequence holds has its label.

    Attributes:
        tokens: (r,) int32; the highest score first.
        labels: (r,) int32; for which label each of them speaks.
        bound: no cover has fewer tokens; 1 where nothing is proven.
    """

    tokens: np.ndarray
    labels: np.ndarray
    bound: int

    @property
    def size(self) -> int:
        """The number r of tokens."""
        return len(self.tokens)


def minimum_cover(corpus: Corpus, *, time_limit: float = 60.0) -> TokenCover | None:
    """Find the shortest list of labelled tokens that decides every sequence: a minimum hitting set.

        min Σ x_{s,y}  s.t.  Σ x_{s,y} over the (s, y) that are pure in U  ≥ 1  for every set U of sequences,

    x binary. A token with a label is pure in U if U holds the token, and holds it under this label only. The
    token of a list that decides first in U is pure in U: the constraints are necessary. They suffice: tokens
    that are pure in what is left to decide, one after the other, are a list. So sets U on which this stops
    are added to the program until it does not stop any more.

    Args:
        corpus: n sequences over V tokens, K classes.
        time_limit: seconds that one program may take; beyond, the shortest list found so far is returned.

    Returns:
        The cover, with `bound` equal to its size if it is proven to be a shortest one; None if there is none.

    Raises:
        InputError: a time limit that is not positive.

    Source:
        Decision lists: Rivest 1987, Machine Learning 2. The program is solved by HiGHS.
    """
    if not time_limit > 0:
        raise ja.InputError(f"time_limit: {time_limit}; give seconds, more than 0")
    problem = _Problem.of(corpus)
    best, left = problem.decide(problem.all)
    if left.any():
        return None
    sets, bound = problem.pairs(), 1
    for _ in range(_MOST_PROGRAMS):
        if bound >= len(best):
            break
        chosen, proven = _hitting_set(np.unique([problem.pure(U).ravel() for U in sets], axis=0), time_limit)
        bound = max(bound, proven)
        if chosen is None:
            break
        chosen = chosen.reshape(problem.all.shape)
        found, left = problem.decide(chosen)
        if not left.any():
            best = min(best, found, key=len)
            break
        sets += problem.undecided(chosen, left)
    return problem.cover(best, min(bound, len(best)))


def greedy_cover(corpus: Corpus) -> TokenCover | None:
    """Build a cover that takes the token that decides most of the remaining sequences, one after the other.

    Args:
        corpus: n sequences over V tokens, K classes.

    Returns:
        The cover; None if there is none. Of tokens that decide equally many, the first one is taken.
    """
    problem = _Problem.of(corpus)
    found, left = problem.decide(problem.all)
    return None if left.any() else problem.cover(found, 1)


@dataclass(frozen=True)
class _Problem:
    """Which tokens distinct sequences hold, (n, V) bool, of which class, and how often each occurs."""

    holds: np.ndarray
    classes: np.ndarray
    times: np.ndarray
    num_classes: int

    @staticmethod
    def of(corpus: Corpus) -> "_Problem":
        _, sequence, token = distinct_tokens(corpus)
        holds = np.zeros((corpus.num_examples, corpus.vocab_size), bool)
        holds[sequence, token] = True
        labels = np.asarray(corpus.targets)
        rows = np.column_stack([holds, labels > 0 if corpus.num_classes == 2 else labels])
        distinct, times = np.unique(rows, axis=0, return_counts=True)
        return _Problem(distinct[:, :-1].astype(bool), distinct[:, -1], times, corpus.num_classes)

    @cached_property
    def all(self) -> np.ndarray:
        """Every token with every label, (K, V)."""
        return np.ones((self.num_classes, self.holds.shape[1]), bool)

    @cached_property
    def members(self) -> np.ndarray:
        """Which sequences are of each class, (K, n)."""
        return self.classes == np.arange(self.num_classes)[:, None]

    def decides(self, U: np.ndarray) -> np.ndarray:
        """Count the sequences of U (n,) that each token decides, (K, V): 0 where it is not pure."""
        counts = (self.members * (U * self.times)) @ self.holds
        return np.where(counts == counts.sum(axis=0), counts, 0)

    def pure(self, U: np.ndarray) -> np.ndarray:
        """Tell which tokens with which label are pure in U (n,), (K, V)."""
        return self.decides(U) > 0

    def decide(self, chosen: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Order chosen tokens (K, V) greedily: the list of (class, token), and the sequences left, (n,)."""
        left, found = np.ones(len(self.holds), bool), []
        while left.any():
            counts = np.where(chosen, self.decides(left), 0)
            if not counts.any():
                break
            k, s = np.unravel_index(counts.argmax(), counts.shape)
            found.append((int(k), int(s)))
            left &= ~self.holds[:, s]
        return found, left

    def pairs(self) -> list[np.ndarray]:
        """List every sequence by itself, and with the one of another class that it shares most with."""
        sizes, each = self.holds.sum(axis=1), np.eye(len(self.holds), dtype=bool)
        apart = sizes[:, None] + sizes - 2 * (self.holds.astype(int) @ self.holds.T)
        apart = np.where(self.classes == self.classes[:, None], sizes.sum() + 1, apart)
        return [*each, *(each | each[apart.argmin(axis=1)])]

    def undecided(self, chosen: np.ndarray, left: np.ndarray) -> list[np.ndarray]:
        """Shrink a set (n,) that holds no pure one of the chosen tokens (K, V), from either end."""
        places = np.flatnonzero(left)
        return [self._shrunk(chosen, left, order) for order in (places, places[::-1])]

    def _shrunk(self, chosen: np.ndarray, U: np.ndarray, order: np.ndarray) -> np.ndarray:
        U = U.copy()
        for X in order:
            U[X] = False
            U[X] = not U.any() or (chosen & self.pure(U)).any()
        return U

    def cover(self, found: list[tuple[int, int]], bound: int) -> TokenCover:
        classes, tokens = np.array(found, np.int32).reshape(-1, 2).T
        labels = 2 * classes - 1 if self.num_classes == 2 else classes
        return TokenCover(tokens, labels, bound)


def _hitting_set(rows: np.ndarray, time_limit: float) -> tuple[np.ndarray | None, int]:
    """Find a smallest set of columns that meets every row (m, N) bool: (N,) bool, and a proven least size."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import
    from scipy.sparse import csr_array

    found = milp(
        np.ones(rows.shape[1]),
        constraints=LinearConstraint(csr_array(rows.astype(float)), lb=1),
        integrality=1,
        bounds=Bounds(0, 1),
        options={"time_limit": time_limit},
    )
    bound = found.mip_dual_bound
    proven = math.ceil(bound - 1e-6) if bound is not None and math.isfinite(bound) else 1
    return (None if found.x is None else found.x > 0.5), proven
