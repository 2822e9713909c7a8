"""Highest tokens of sequences and averages near them, compared with NumPy and mpmath."""

import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.attention.tops import averages, below_top, first_tokens, score_entries, top_scores

pytestmark = pytest.mark.usefixtures("x64")

SEQUENCES = [[3, 1, 1, 4], [2], [0, 5, 2, 2, 2, 5], [4, 3]]


@pytest.fixture
def corpus():
    return ja.data.from_sequences(SEQUENCES, [1, -1, 1, -1], vocab_size=6)


def entries(corpus, x):
    """Yield (sequence, token, count, x of the entry) of entries with a count."""
    bags = corpus.bags
    for row, owner in enumerate(np.asarray(bags.owner)):
        for column, count in enumerate(np.asarray(bags.count)[row]):
            if count:
                yield int(owner), int(bags.index[row, column]), int(count), float(x[row, column])


def test_below_top_handles_ties_and_padding(corpus):
    scores = jnp.asarray([1.0, 7.0, -3.0, 7.0, 2.0, 1.0])
    below = below_top(corpus, scores)
    for sequence, token, _, x in entries(corpus, below):
        assert x == max(float(scores[s]) for s in SEQUENCES[sequence]) - float(scores[token])
    assert np.isposinf(np.asarray(below)[np.asarray(corpus.bags.count) == 0]).all()


def test_first_tokens_returns_the_smallest_matching_token_or_vocab_size(corpus):
    index = corpus.bags.index.astype(jnp.int32)
    scores = jnp.asarray([1.0, 7.0, -3.0, 7.0, 2.0, 1.0])
    np.testing.assert_array_equal(first_tokens(corpus, below_top(corpus, scores) == 0, index), [1, 2, 0, 3])
    none = first_tokens(corpus, (index == 1) & (corpus.bags.count > 0), index)
    np.testing.assert_array_equal(none, [1, 6, 6, 6])


@pytest.mark.parametrize("spread", [1.0, 40.0, 3000.0])
def test_tiny_averages_have_full_relative_precision(corpus, spread, rng):
    scores, values = spread * rng.normal(size=6), rng.normal(size=(6, 2))
    index = np.asarray(corpus.bags.index)
    bags, score = corpus.bags, score_entries(corpus, jnp.asarray(scores))
    relative = score - bags.spread(top_scores(bags, score))
    tops = np.array([max(set(s), key=lambda t: scores[t]) for s in SEQUENCES])
    below = [
        jnp.asarray(column[index] - column[tops][np.asarray(bags.owner)][:, None]) for column in values.T
    ]
    found = averages(bags, relative, below)
    with mpmath.workdps(60):
        for n, sequence in enumerate(SEQUENCES):
            weight = [mpmath.exp(mpmath.mpf(scores[s] - scores[tops[n]])) for s in sequence]
            for k in range(2):
                apart = [mpmath.mpf(values[s, k] - values[tops[n], k]) for s in sequence]
                mean = mpmath.fdot(weight, apart) / mpmath.fsum(weight)
                own = mpmath.exp(mpmath.mpf(float(found.gap[n]))) * mpmath.mpf(float(found.mean[k][n]))
                # Terms of both signs may cancel, so the error is relative to their sizes.
                size = mpmath.fdot(weight, map(abs, apart)) / mpmath.fsum(weight)
                assert abs(own - mean) <= 1e-13 * (1 + abs(spread)) * size
            assert bool(found.idle[n]) == (len(set(sequence)) == 1)


def test_deviations_within_a_sequence_sum_to_zero(corpus, rng):
    scores, values = jnp.asarray(50 * rng.normal(size=6)), jnp.asarray(rng.normal(size=6))
    bags = corpus.bags
    value = values[bags.index.astype(jnp.int32)]
    below = below_top(corpus, scores)
    top = bags.max(jnp.where(below == 0, value, -jnp.inf))
    found = averages(bags, -below, [value - bags.spread(top)])
    held = jnp.where(bags.count > 0, found.deviation[0], 0)
    total, gross = bags.sum(held, jnp.abs(held))
    assert (np.abs(total) <= 1e-14 * np.asarray(gross)).all()
