"""A corpus like IMDB, of any size: the same shapes and about as many distinct tokens a sequence."""

import numpy as np

import jaxattn as ja


def reviews(*, vocab_size: int, sequences: int) -> ja.data.Corpus:
    """Draw sequences of log-normal lengths of tokens that are Zipf distributed."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.15, 0.63, sequences), 10, 2000).astype(np.int64)
    weights = 1 / (np.arange(vocab_size) + 3.0)
    tokens = rng.choice(vocab_size, lengths.sum(), p=weights / weights.sum())
    labels = rng.permutation(np.arange(sequences) % 2 * 2 - 1)
    return ja.data.from_flat(tokens, lengths, labels, vocab_size=vocab_size)
