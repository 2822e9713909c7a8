"""Corpora from token ids: lists of ids, concatenated ids, or the counts of ids, on the host."""

from collections.abc import Sequence

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxattn.core.arguments import checked
from jaxattn.core.errors import InputError, shown
from jaxattn.data.corpus import Corpus, class_labels, from_bags
from jaxattn.data.ragged import check_positions


@checked
def from_sequences(
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int],
    *,
    vocab_size: int,
    num_classes: int = 2,
) -> Corpus:
    """Build a corpus from lists of token ids, on the default device.

    Args:
        sequences: n lists of token ids in [0, vocab_size). The order within a list does not matter.
        labels: n labels, -1 or +1 for two classes, 0 to K-1 for K > 2.
        vocab_size: V.
        num_classes: K, number of classes.

    Raises:
        InputError: the corpus or a sequence is empty, a token id is not an integer, a token id or label is
            out of range, or the numbers of sequences and labels differ.

    Example:
        >>> corpus = ja.data.from_sequences([[0, 2, 2], [1]], labels=[1, -1], vocab_size=3)
        >>> corpus.counts().tolist()
        [[1, 0, 2], [0, 1, 0]]
    """
    lengths = np.array([len(tokens) for tokens in sequences], np.int64)
    # An empty list would become a float array.
    tokens = np.array([t for tokens in sequences for t in tokens] or np.zeros(0, int))
    return from_flat(tokens, lengths, labels, vocab_size=vocab_size, num_classes=num_classes)


@checked
def from_flat(
    tokens: ArrayLike, lengths: ArrayLike, labels: ArrayLike, *, vocab_size: int, num_classes: int = 2
) -> Corpus:
    """Build a corpus from concatenated token ids. This is faster than `from_sequences`.

    Args:
        tokens: (Σ T,) int; concatenated token ids of all sequences.
        lengths: (n,) int; number of tokens in each sequence.
        labels: (n,) int; see `from_sequences`.
        vocab_size: V.
        num_classes: K, number of classes.

    Raises:
        InputError: as in `from_sequences`.

    Example:
        >>> tokens, lengths, labels = np.array([0, 2, 2, 1]), np.array([3, 1]), np.array([1, -1])
        >>> corpus = ja.data.from_flat(tokens, lengths, labels, vocab_size=3)
        >>> corpus.counts().tolist()
        [[1, 0, 2], [0, 1, 0]]
    """
    tokens, lengths, labels = np.asarray(tokens), np.asarray(lengths), np.asarray(labels)
    for name, x in (("token ids", tokens), ("lengths", lengths), ("labels", labels)):
        if x.ndim != 1 or (x.dtype.kind not in "iu" and name != "labels"):
            raise InputError(f"{name}: {shown(x)}; expected a list of integers")
    if len(labels) != len(lengths):
        raise InputError(
            f"labels: {len(labels)} labels for {len(lengths)} sequences; expected one label per sequence"
        )
    if vocab_size < 1:
        raise InputError(f"vocab_size: must be at least 1, got {vocab_size}")
    check_positions("corpus", max(vocab_size, len(tokens)))
    if num_classes < 2:
        raise InputError(f"num_classes: must be at least 2, got {num_classes}")
    if len(lengths) == 0:
        raise InputError("sequences: the corpus is empty; add at least one sequence")
    if (lengths < 1).any():
        raise InputError(f"sequence {int(np.argmin(lengths))} has no tokens; remove it from the corpus")
    if lengths.sum() != len(tokens):
        raise InputError(
            f"lengths: the sum is {lengths.sum()}, but the number of tokens is {len(tokens)}; pass one "
            "length per sequence"
        )
    allowed = class_labels(np.arange(num_classes), num_classes)
    if not np.isin(labels, allowed).all():
        where = int(np.argmin(np.isin(labels, allowed)))
        is_bit = num_classes == 2 and bool(np.isin(labels, [0, 1]).all())
        remedy = "; for labels 0 and 1, pass 2 * labels - 1, so that 1 becomes +1 and 0 becomes -1" * is_bit
        raise InputError(
            f"label {labels[where]} of sequence {where} must be one of {allowed.tolist()}{remedy}"
        )
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        where = int(np.searchsorted(np.cumsum(lengths), np.argmax(outside), side="right"))
        raise InputError(
            f"token id {tokens[outside][0]} in sequence {where} must be between 0 and {vocab_size - 1}; "
            "increase vocab_size, or replace the token with one in the vocabulary; leave padding out"
        )
    counted = count_tokens(tokens, lengths, vocab_size)
    return from_counted(*counted, labels, vocab_size=vocab_size, num_classes=num_classes)


def count_tokens(
    tokens: np.ndarray, lengths: np.ndarray, vocab_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the tokens in each sequence on the host.

    Args:
        tokens: see `from_flat`.
        lengths: see `from_flat`.
        vocab_size: V.

    Returns:
        The distinct ids in each sequence in ascending order, concatenated; their counts; and the number of
        distinct ids in each sequence, (n,).
    """
    pair = np.min_scalar_type(len(lengths) * vocab_size)
    owner = np.repeat(np.arange(len(lengths), dtype=pair), lengths)
    pairs, counts = np.unique(owner * pair.type(vocab_size) + tokens.astype(pair), return_counts=True)
    sequence, distinct = np.divmod(pairs, pair.type(vocab_size))
    return distinct, counts, np.bincount(sequence, minlength=len(lengths))


def from_counted(
    distinct: np.ndarray,
    counts: np.ndarray,
    sizes: np.ndarray,
    labels: np.ndarray,
    *,
    vocab_size: int,
    num_classes: int,
    class_names: tuple[str, ...] | None = None,
) -> Corpus:
    """Build a corpus from the result of `count_tokens`, on the default device and without validation."""
    corpus = from_bags(
        np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        distinct,
        counts,
        labels,
        vocab_size=vocab_size,
        num_classes=num_classes,
        longest_bag=int(sizes.max()),
        max_occurrences=int(np.bincount(distinct).max()),
        class_names=class_names,
    )
    # `jnp.asarray` would compile a copy for every shape.
    return jax.device_put(corpus)
