"""A corpus like IMDB, of any size, with a similar number of distinct tokens per sequence."""

import numpy as np

import jaxattn as ja


def reviews(*, vocab_size: int, sequences: int) -> ja.data.Corpus:
    """Sample sequences of log-normal lengths with Zipf-distributed tokens."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.15, 0.63, sequences), 10, 2000).astype(np.int64)
    weights = 1 / (np.arange(vocab_size) + 3.0)
    tokens = rng.choice(vocab_size, lengths.sum(), p=weights / weights.sum())
    labels = rng.permutation(np.arange(sequences) % 2 * 2 - 1)
    return ja.data.from_flat(tokens, lengths, labels, vocab_size=vocab_size)
