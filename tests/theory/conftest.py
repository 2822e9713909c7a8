"""What the tests of directions share: small problems of every kind, loops, and an independent solver."""

from typing import Any, NamedTuple

import clarabel
import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jaxattn as ja

VOCAB = 12


class Instance(NamedTuple):
    """A max-margin problem. Every sequence selects its tokens of highest score."""

    corpus: Any
    E: np.ndarray
    scores: np.ndarray
    selection: Any


def bags(corpus):
    """Every sequence as the sorted list of its distinct tokens, by way of the sequences written out."""
    ids, mask = ja.models.reference.padded_sequences(corpus)
    return [np.unique(row[real]).tolist() for row, real in zip(ids, mask, strict=True)]


def selected(corpus, selection):
    """The selected tokens of every sequence, sorted."""
    index, mask = np.asarray(corpus.bags.index), np.asarray(selection.mask)
    owner = np.broadcast_to(np.asarray(corpus.bags.owner)[:, None], mask.shape)
    return [sorted(index[mask & (owner == x)].tolist()) for x in range(corpus.num_examples)]


@pytest.fixture(scope="session")
def loops():
    """`bags` and `selected`."""
    return bags, selected


@pytest.fixture(scope="session")
def shortest():
    """The shortest x with A x ≥ b and C x = 0 by clarabel, or None if there is none."""

    def solve(rows, required, equal=()):
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
        matrix = np.array([*equal, *(-row for row in rows)])
        right, size = np.append(np.zeros(len(equal)), -np.array(required)), matrix.shape[1]
        cones = [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(len(rows))]
        problem = sp.csc_matrix(sp.eye(size)), np.zeros(size), sp.csc_matrix(matrix), right, cones, settings
        solution = clarabel.DefaultSolver(*problem).solve()
        assert str(solution.status) in ("Solved", "AlmostSolved", "PrimalInfeasible")
        return None if str(solution.status) == "PrimalInfeasible" else np.array(solution.x)

    return solve


@pytest.fixture(scope="session")
def instances():
    """22 problems: 10 with V < d, 12 with V > d of which some are infeasible; half of each with ties."""
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0), 2)
    sizes = {"vocab_size": VOCAB, "relevant": 2, "length": 5, "sequences": 10}
    corpora = [ja.data.independent(key, **sizes) for key in keys]
    made = []
    for dim, arranged, free in ((16, 0, 5), (5, 3, 3)):
        for corpus, ties in zip(corpora, (False, True), strict=True):
            scores = rng.normal(size=VOCAB)
            scores = np.round(scores) if ties else scores
            chosen = ja.theory.selection(scores, ja.theory.Scores(np.eye(VOCAB), corpus))
            for which in range(arranged + free):
                E, p = rng.normal(size=(VOCAB, dim)), rng.normal(size=dim)
                if which < arranged:
                    # Some p has these scores, so the selection can be separated.
                    E += np.outer(scores - E @ p, p) / (p @ p)
                made.append(Instance(corpus, E, scores, chosen))
    return made
