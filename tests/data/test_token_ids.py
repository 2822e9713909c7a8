"""Token ids, lengths and labels that do not form a corpus are rejected."""

import inspect

import numpy as np
import pytest

import jaxattn as ja
from jaxattn.data.token_ids import from_counted

# The function without the type checks that the tests add.
from_sequences = inspect.unwrap(ja.data.from_sequences)


@pytest.mark.parametrize(
    ("sequences", "labels", "sizes", "message"),
    [
        ([], [], {}, "the corpus is empty"),
        ([[0], []], [1, -1], {}, "sequence 1 has no token"),
        ([[0], [3]], [1, -1], {}, "token id 3 in sequence 1 must be between 0 and 2"),
        ([[0], [-1]], [1, -1], {}, "token id -1 in sequence 1"),
        ([[0], [1]], [1, 0], {}, r"label 0 of sequence 1 must be one of \[-1, 1\]"),
        ([[0], [1]], [0, 3], {"num_classes": 3}, r"label 3 of sequence 1 must be one of \[0, 1, 2\]"),
        ([[0]], [1, 1], {}, "2 labels for 1 sequences"),
        ([[0], [1]], [1], {}, "1 labels for 2 sequences"),
        ([[0, 1.7]], [1], {}, r"token ids: float64\[2\]; expected a list of integers"),
        ([[0], ["1"]], [1, 1], {}, "token ids: <U"),
        ([[0], [2**70]], [1, 1], {}, "token ids: object"),
        ([[0], [1]], [[1], [1]], {}, r"labels: int64\[2, 1\]"),
        ([[0], [1]], [1, "a"], {}, "label 1 of sequence 0"),
        ([[0]], [1], {"num_classes": 1}, "num_classes: must be at least 2, got 1"),
        ([[0]], [1], {"vocab_size": 0}, "vocab_size: must be at least 1, got 0"),
        ([[0]], [1], {"vocab_size": 10**30}, "32-bit index limit"),
    ],
)
def test_invalid_sequences_are_rejected(sequences, labels, sizes, message):
    with pytest.raises(ja.InputError, match=message):
        from_sequences(sequences, labels, **{"vocab_size": 3} | sizes)


@pytest.mark.parametrize(
    ("tokens", "lengths", "labels", "message"),
    [
        ([0, 1], [1, 1], [1], "1 labels for 2 sequences"),
        ([0], [1, 1], [1, 1], "the sum is 2, but the number of tokens is 1"),
        ([0, 1], [3, -1], [1, 1], "sequence 1 has no token"),
        ([0, 1], [1.0, 1.0], [1, 1], "lengths: float64"),
        ([[0, 1]], [1, 1], [1, 1], r"token ids: int64\[1, 2\]"),
    ],
)
def test_inconsistent_flat_arrays_are_rejected(tokens, lengths, labels, message):
    with pytest.raises(ja.InputError, match=message):
        ja.data.from_flat(tokens, lengths, labels, vocab_size=3)


def test_sequence_lengths_that_overflow_32_bits_are_rejected():
    one = np.array([1])
    with pytest.raises(ja.InputError, match="the longest sequence: 2,147,483,648"):
        from_counted(one, one * 2**31, one, one, vocab_size=2, num_classes=2)
