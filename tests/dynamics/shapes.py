"""Corpora and arrays of equal shapes, so that tests of flows share compiled programs."""

import jax
import numpy as np

import jaxattn as ja

# Number of tokens, of dimensions, of sequences, of tokens in the longest sequence, and of rows of a path.
VOCAB, DIM, SEQUENCES, LONGEST, POINTS = 7, 6, 6, 4, 30


def corpus_of(sequences, labels, fill=VOCAB - 1, num_classes=2, vocab_size=VOCAB, longest=LONGEST):
    """Build a corpus of six sequences; those that are missing have one token, and exert no force on p."""
    missing = SEQUENCES - len(sequences)
    sequences, labels = [*sequences, *[[fill]] * missing], [*labels, *[1] * missing]
    tokens, mask = np.zeros((SEQUENCES, longest), np.int32), np.zeros((SEQUENCES, longest), bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return ja.data.from_draws(
        jax.device_put(tokens),
        jax.device_put(np.array(labels, np.int32)),
        vocab_size=vocab_size,
        num_classes=num_classes,
        mask=jax.device_put(mask),
    )


def padded(x, *shape):
    """Append zeros to an array up to a shape: tokens that never occur, and coordinates that stay zero."""
    return np.pad(np.asarray(x, float), [(0, size - n) for size, n in zip(shape, np.shape(x), strict=True)])
