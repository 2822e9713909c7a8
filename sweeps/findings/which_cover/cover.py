"""Covers (lists of labelled tokens that decide every sequence) and algorithms for finding them.

If attention selects one token in every sequence, the tokens sorted by score form a cover. The first token in
the list that occurs in a sequence is the sequence's top token, and its label must match that of the sequence.
In learning theory, such a list is called a decision list over single tokens.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import jaxattn as ja
from jaxattn.data import Corpus
from jaxattn.theory import distinct_tokens

# Maximum number of integer programs to solve, far more than needed for corpora of several hundred sequences.
_MAX_PROGRAMS = 1_000


@dataclass(frozen=True)
class TokenCover:
    """Labelled tokens such that the first one that a sequence contains has the label of the sequence.

    Attributes:
        tokens: (r,) int32; the highest score first.
        labels: (r,) int32; the label of each token.
        bound: lower bound on the size of any cover; 1 if no better bound is proven.
    """

    tokens: np.ndarray
    labels: np.ndarray
    bound: int

    @property
    def size(self) -> int:
        """Number of tokens r."""
        return len(self.tokens)


def minimum_cover(corpus: Corpus, *, time_limit: float = 60.0) -> TokenCover | None:
    """Find the shortest list of labelled tokens that decides every sequence, as a minimum hitting set.

        min Σ x_{s,y}  s.t.  Σ x_{s,y} over the (s, y) that are pure in U  ≥ 1  for every set U of sequences,

    with binary x. A labelled token is pure in U if U contains the token, and contains it only under this
    label. The first token of a list that occurs in U is pure in U, so the constraints are necessary. They are
    also sufficient: repeatedly choosing a token that is pure in the undecided sequences gives a list. If a
    solution leaves sequences undecided, sets U without a pure chosen token are added to the program.

    Args:
        corpus: n sequences over V tokens, K classes.
        time_limit: maximum time per program in seconds, after which the shortest known list is returned.

    Returns:
        The cover, or None if no cover exists. `bound` equals the size of the cover if it is proven to be
        shortest.

    Raises:
        InputError: the time limit is not positive.

    Source:
        Decision lists: Rivest 1987, Machine Learning 2. The program is solved by HiGHS.
    """
    if not time_limit > 0:
        raise ja.InputError(f"time_limit: {time_limit}; give a positive number of seconds")
    problem = _Problem.of(corpus)
    best, left = problem.decide(problem.all)
    if left.any():
        return None
    sets, bound = problem.pairs(), 1
    for _ in range(_MAX_PROGRAMS):
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
    """Build a cover by repeatedly adding the labelled token that decides the most remaining sequences.

    Args:
        corpus: n sequences over V tokens, K classes.

    Returns:
        The cover, or None if no cover exists. If multiple tokens decide equally many sequences, the first is
        added.
    """
    problem = _Problem.of(corpus)
    found, left = problem.decide(problem.all)
    return None if left.any() else problem.cover(found, 1)


@dataclass(frozen=True)
class _Problem:
    """Distinct sequences of a corpus, with their (n, V) token mask, classes and multiplicities."""

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
        """All pairs of a label and a token, as a (K, V) mask."""
        return np.ones((self.num_classes, self.holds.shape[1]), bool)

    @cached_property
    def members(self) -> np.ndarray:
        """Membership of sequences in classes, as a (K, n) mask."""
        return self.classes == np.arange(self.num_classes)[:, None]

    def decides(self, U: np.ndarray) -> np.ndarray:
        """Count the sequences in U that each labelled token decides, with 0 for tokens that are not pure."""
        counts = (self.members * (U * self.times)) @ self.holds
        return np.where(counts == counts.sum(axis=0), counts, 0)

    def pure(self, U: np.ndarray) -> np.ndarray:
        """Return the (K, V) mask of labelled tokens that are pure in U."""
        return self.decides(U) > 0

    def decide(self, chosen: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Order the chosen tokens greedily.

        Returns the list of (class, token) pairs, and a mask of the sequences that remain undecided.
        """
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
        """Return sets of sequences: each one alone, and each with the most similar one of another class."""
        sizes, each = self.holds.sum(axis=1), np.eye(len(self.holds), dtype=bool)
        apart = sizes[:, None] + sizes - 2 * (self.holds.astype(int) @ self.holds.T)
        apart = np.where(self.classes == self.classes[:, None], sizes.sum() + 1, apart)
        return [*each, *(each | each[apart.argmin(axis=1)])]

    def undecided(self, chosen: np.ndarray, left: np.ndarray) -> list[np.ndarray]:
        """Return two minimal subsets of `left` that have no pure chosen token.

        The first is found by removing sequences in order, and the second in reverse order.
        """
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
    """Return a smallest set of columns that hits each row of a mask, and a lower bound on its size.

    The set is None if the solver finds none within the time limit.
    """
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
