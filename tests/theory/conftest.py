"""What the tests of selections and max-margin directions share: small problems of every kind, and loops."""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

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
