"""The cases that are measured."""

import numpy as np

from jaxattn.bench import CASES
from jaxattn.bench.cases import reviews


def test_reviews_are_as_long_as_reviews_and_always_the_same():
    corpus = reviews(sequences=300, vocab_size=500)
    total = np.bincount(np.asarray(corpus.bags.owner), np.asarray(corpus.bags.count).sum(axis=1), 300)
    assert 130 < np.median(total) < 260
    again = reviews(sequences=300, vocab_size=500)
    np.testing.assert_array_equal(corpus.bags.index, again.bags.index)


def test_cases_have_names_of_their_own_and_sizes_that_grow():
    assert len({one.name for one in CASES}) == len(CASES)
    assert all(list(one.seeds) == sorted(one.seeds) for one in CASES)
