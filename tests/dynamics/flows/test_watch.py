"""Tokens that leap over the top of their sequence, against a loop over sequences."""

import jax
import numpy as np
import pytest

import jaxattn as ja
from jaxattn.dynamics.flows.watch import leap

pytestmark = pytest.mark.usefixtures("x64")


def by_loop(sequences, before, after):
    """min(below the top before, above the former top after), the largest of all tokens, in units of 2."""
    largest = -np.inf
    for tokens in sequences:
        top = max(tokens, key=lambda token: before[token])
        for token in tokens:
            largest = max(largest, min(before[top] - before[token], after[token] - after[top]))
    return largest / 2


@pytest.mark.parametrize("sizes", [(3, 5, 1, 6, 2), (3, 90, 1, 60, 2)])
def test_a_leap_is_that_of_a_loop(sizes):
    """Sequences of one row, and of several."""
    keys = jax.random.split(jax.random.key(0), 3)
    rng = np.random.default_rng(0)
    sequences = [rng.choice(100, size, replace=False).tolist() for size in sizes]
    corpus = ja.data.from_sequences(sequences, [1, -1, 1, -1, 1], vocab_size=100)
    before = 10 * jax.random.normal(keys[0], (100,))
    for after in (before, before[::-1], 10 * jax.random.normal(keys[1], (100,)), before + 5):
        expected = by_loop(sequences, np.asarray(before), np.asarray(after))
        np.testing.assert_allclose(leap(corpus, before, after), expected, rtol=1e-12)
