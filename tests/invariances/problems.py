"""Small problems, and the changes that leave their answers the same.

All numbers are multiples of 2^-20 below 16, and so are those of a changed problem. Sums and products of them
are exact, so a change moves no key, value or label by a rounding error, and exact ties stay exact.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import jaxattn as ja

VOCAB, DIM, SEQUENCES, LENGTH = 7, 4, 6, 3


@dataclass(frozen=True)
class Problem:
    """Keys E (V, d), a query p (d,), a head v (d,) or (d, K), and sequences of token ids (n, T) with classes.

    Attributes:
        values: (V,) or (V, K); those of the head.
    """

    E: np.ndarray
    p: np.ndarray
    v: np.ndarray
    values: np.ndarray
    ids: np.ndarray
    classes: np.ndarray

    @property
    def num_classes(self):
        """Number of classes K."""
        return 2 if self.v.ndim == 1 else self.v.shape[1]

    @property
    def labels(self):
        """Labels -1 and +1, or 0 to K-1."""
        return 2 * self.classes - 1 if self.num_classes == 2 else self.classes


def arrays(shape):
    """Draw half-integers, among which ties are likely, or numbers of a normal distribution."""
    halves = hnp.arrays(np.int64, shape, elements=st.integers(-4, 4)).map(lambda x: x / 2)
    seeds = st.integers(0, 2**32 - 1)
    return halves | seeds.map(lambda seed: rounded(np.random.default_rng(seed).normal(size=shape)))


def rounded(x):
    """Round to a multiple of 2^-20."""
    return np.round(x * 2**20) / 2**20


@st.composite
def problems(draw, num_classes=2):
    """Draw a problem of two or more classes."""
    E, p = draw(arrays((VOCAB, DIM))), draw(arrays((DIM,)))
    v = draw(arrays((DIM,) if num_classes == 2 else (DIM, num_classes)))
    ids = draw(hnp.arrays(np.int64, (SEQUENCES, LENGTH), elements=st.integers(0, VOCAB - 1)))
    classes = draw(hnp.arrays(np.int64, SEQUENCES, elements=st.integers(0, num_classes - 1)))
    return Problem(E, p, v, E @ v, ids, classes)


def permuted_tokens(problem, order):
    """Give token order[s] the name s."""
    return replace(
        problem, E=problem.E[order], values=problem.values[order], ids=np.argsort(order)[problem.ids]
    )


def permuted_sequences(problem, order):
    """Put sequence order[k] at place k, with its tokens in the reverse order."""
    return replace(problem, ids=problem.ids[order, ::-1], classes=problem.classes[order])


def permuted_classes(problem, order):
    """Give class order[k] the name k; two classes that change places turn the sign of values and labels."""
    classes = np.argsort(order)[problem.classes]
    if problem.num_classes == 2:
        sign = 1 if order[0] == 0 else -1
        return replace(problem, v=sign * problem.v, values=sign * problem.values, classes=classes)
    return replace(problem, v=problem.v[:, order], values=problem.values[:, order], classes=classes)


def rotated(problem, Q):
    """Rotate the space of keys, query and head."""
    return replace(problem, E=problem.E @ Q, p=problem.p @ Q, v=Q.T @ problem.v)


def twice(problem):
    """Repeat every sequence."""
    return replace(problem, ids=np.tile(problem.ids, (2, 1)), classes=np.tile(problem.classes, 2))


def with_unused_token(problem):
    """Insert a token that occurs nowhere, with a long key, as the first of the vocabulary."""
    key, value = np.full((1, DIM), 64.0), np.full((1, *problem.values.shape[1:]), 32.0)
    return replace(
        problem,
        E=np.concatenate([key, problem.E]),
        values=np.concatenate([value, problem.values]),
        ids=problem.ids + 1,
    )


def with_moved_keys(problem, shift):
    """Add the same vector to all keys, which adds the same number to all scores."""
    return replace(problem, E=problem.E + shift)


def with_moved_values(problem, shift):
    """Add a number to the values of each token, the same for all classes."""
    return replace(problem, values=problem.values + shift[:, None])


def rotations():
    """Draw orthogonal matrices of half-integers: half the Hadamard matrix, with axes permuted and turned."""
    hadamard = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2

    def make(order, signs):
        return hadamard[:, order] * np.array(signs)

    return st.builds(
        make, st.permutations(range(DIM)), st.lists(st.sampled_from([-1, 1]), min_size=DIM, max_size=DIM)
    )


def corpus(problem):
    """Build the corpus; all problems of a shape have arrays of the same shapes.

    No sequence is as long as it could be, so that tests of flows, some of which are, share programs.
    """
    return _corpus(problem.ids, problem.labels, len(problem.E), problem.num_classes)


@partial(jax.jit, static_argnums=(2, 3))
def _corpus(ids, labels, vocab_size, num_classes):
    return ja.data.from_draws(
        jnp.pad(ids, [(0, 0), (0, 1)]),
        labels,
        vocab_size=vocab_size,
        num_classes=num_classes,
        mask=jnp.pad(jnp.ones_like(ids, bool), [(0, 0), (0, 1)]),
    )


def stacked(problems):
    """Stack the corpora of problems of the same shape."""
    first = problems[0]
    ids, labels = (np.stack([getattr(problem, name) for problem in problems]) for name in ("ids", "labels"))
    return _stacked(ids, labels, len(first.E), first.num_classes)


@partial(jax.jit, static_argnums=(2, 3))
def _stacked(ids, labels, vocab_size, num_classes):
    return jax.vmap(lambda ids, labels: _corpus(ids, labels, vocab_size, num_classes))(ids, labels)


def scores(problem):
    """Return keys, corpus and values."""
    return ja.theory.Scores(problem.E, corpus(problem), problem.values)


@st.composite
def changed_problems(draw, num_classes=2):
    """Draw a problem, and its changes of the same shape, as {name: Change}."""
    problem = draw(problems(num_classes))
    tokens, sequences = (np.array(draw(st.permutations(range(k)))) for k in (VOCAB, SEQUENCES))
    classes, Q = np.array(draw(st.permutations(range(num_classes)))), draw(rotations())
    if num_classes == 2:
        classes = np.array([1, 0])
    moved = permuted_classes(permuted_sequences(permuted_tokens(problem, tokens), sequences), classes)
    return {
        "original": Change(problem),
        "tokens permuted": Change(permuted_tokens(problem, tokens), tokens=tokens),
        "sequences permuted": Change(permuted_sequences(problem, sequences), sequences=sequences),
        "classes permuted": Change(permuted_classes(problem, classes), classes=classes),
        "rotated": Change(rotated(problem, Q), Q=Q),
        "all": Change(rotated(moved, Q), tokens, sequences, classes, Q),
    }


@dataclass(frozen=True)
class Change:
    """A changed problem, and how its answers translate to those of the original problem.

    Attributes:
        problem: the changed problem.
        tokens: (V,); the original token of each token.
        sequences: (n,); the original number of each sequence.
        classes: (K,); the original class of each class, None if classes are the same.
        Q: (d, d); the rotation.
    """

    problem: Problem
    tokens: np.ndarray = field(default_factory=lambda: np.arange(VOCAB))
    sequences: np.ndarray = field(default_factory=lambda: np.arange(SEQUENCES))
    classes: np.ndarray | None = None
    Q: np.ndarray = field(default_factory=lambda: np.eye(DIM))

    def vectors(self, x):
        """Return vectors (..., d) in the original coordinates."""
        return np.asarray(x) @ self.Q.T

    def of_tokens(self, x):
        """Return numbers per token (V, ...) in the original order."""
        return np.asarray(x)[np.argsort(self.tokens)]

    def of_classes(self, x):
        """Return numbers per class (..., K) in the original order, or signed numbers of two classes."""
        if self.classes is None:
            return np.asarray(x)
        return -np.asarray(x) if len(self.classes) == 2 else np.asarray(x)[..., np.argsort(self.classes)]

    def selected(self, mask):
        """Return the selected tokens of every sequence, as sorted lists in the original order."""
        bags = corpus(self.problem).bags
        owner, index = np.asarray(bags.owner), np.asarray(bags.index)
        chosen = [self.tokens[index[owner == k][mask[owner == k]]] for k in range(len(self.problem.ids))]
        return [sorted(chosen[k].tolist()) for k in np.argsort(self.sequences)]


def check(holds, *strategies, examples):
    """Check a property on the same examples in every session, without making a failing one smaller."""
    derandomized = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    derandomized(given(*strategies)(holds))()


def examples(few, many, *marks):
    """Parametrise a test by the number of examples: few, with the given marks, or many, as `exhaustive`."""
    every = [pytest.param(few, marks=marks), pytest.param(many, marks=pytest.mark.exhaustive)]
    return pytest.mark.parametrize("examples", every)


def classes_and_examples(few, many):
    """Parametrise a test by the numbers of classes and examples; few examples of three classes are `more`."""
    every = [
        pytest.param(2, few),
        pytest.param(3, few, marks=pytest.mark.more),
        *(pytest.param(classes, many, marks=pytest.mark.exhaustive) for classes in (2, 3)),
    ]
    return pytest.mark.parametrize(("classes", "examples"), every)
