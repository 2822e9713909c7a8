"""Corpora: labelled bags of token counts, stored by sequence and by token so that all passes use gathers."""

import math
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxattn.base import Dataset
from jaxattn.core.errors import InputError
from jaxattn.core.pytrees import is_concrete
from jaxattn.data.ragged import Ragged, check_positions, positions, ragged

_A = TypeVar("_A", Array, np.ndarray)

# Outside of a trace, one program is compiled instead of one per operation; inside, nothing changes.
_one_program = partial(jax.jit, inline=True)


class Corpus(Dataset):
    """Labelled bags of token counts: n sequences over V tokens. A pytree with static shapes.

    Attributes:
        targets: (n,) int32; labels -1 or +1 for two classes, 0 to K-1 for K > 2.
        bags: count[X, s] stored by sequence, for sums over the tokens in a sequence.
        occurrences: the same counts stored by token, for sums over the sequences that contain a token.
        occurrence_to_bag: int32, with the shape of `occurrences.index`; index of each entry in the
            flattened entries of `bags`, 0 for padding.
        lengths: (n,) int32; number of tokens T(X) in each sequence.
        vocab_size: V (static).
        num_classes: K ≥ 2 (static).
        class_names: K names, or None if the classes have no names (static). The name of class -1 comes
            first.
        mean_entries: static; mean number of entries in minibatches of this size, which is smaller than
            the capacity of the bags. None unless the corpus is a minibatch.
    """

    bags: Ragged
    occurrences: Ragged
    occurrence_to_bag: Array
    lengths: Array
    vocab_size: int = struct.field(pytree_node=False)
    num_classes: int = struct.field(pytree_node=False, default=2)
    class_names: tuple[str, ...] | None = struct.field(pytree_node=False, default=None)
    mean_entries: int | None = struct.field(pytree_node=False, default=None)

    def brief(self) -> str:
        """Return a one-line summary: numbers of sequences, tokens and classes (and corpora if stacked)."""
        sizes = f"V = {self.vocab_size:,}, {self.num_classes} classes"
        if not isinstance(self.targets, np.ndarray | jax.Array):
            return sizes
        *batch, n = self.targets.shape
        several = f"{' × '.join(map(str, batch))} corpora, each of " if batch else ""
        if not batch and n and is_concrete(self.lengths):
            lengths = np.asarray(self.lengths, np.int64)
            low, high = f"{lengths.min():,}", f"{lengths.max():,}"
            span = low if low == high else f"{low} to {high}"
            sizes = f"{span} tokens in each, {lengths.sum():,} in all, {sizes}"
        return f"{several}{n:,} sequences, {sizes}"

    @property
    def num_examples(self) -> int:
        """Number of sequences n, even if the corpus has a leading seed axis."""
        return self.targets.shape[-1]

    @property
    def num_entries(self) -> int:
        """Number of bag entries, including some padding; for a minibatch, the mean over minibatches."""
        return self.bags.index.size if self.mean_entries is None else self.mean_entries

    @property
    def num_pairs(self) -> int:
        """Approximate number of pairs of entries in the same sequence, assuming sequences of equal size."""
        return math.ceil(self.num_entries**2 / self.num_examples)

    @property
    def class_index(self) -> Array:
        """Class indices 0 to K-1, (n,) int32. For two classes, -1 is class 0 and +1 is class 1."""
        return class_index(self.targets, self.num_classes)

    def counts(self) -> Array:
        """Return the number of occurrences of each token in each sequence, (n, V) int32.

        Works under jit and vmap. The result is dense: it takes 4 n V bytes.
        """
        return _counts(self)

    def take(self, index: Array) -> "Corpus":
        """Return a corpus with the given B sequences, such as a minibatch. The indices must be distinct.

        Works inside jit and under vmap. The bags have capacity for any B sequences. Inside jit, unused
        fields, such as the layout by token, which requires a sort, are not computed.
        """
        return _take(self, index)

    def check_shapes(self) -> None:
        """Do nothing, because the rows of the bags do not correspond to examples."""

    def check(self) -> None:
        """Check labels and tokens on the host, for one or many seeds.

        Raises:
            InputError: a label is invalid (not -1 or +1 for two classes, or not 0 to K-1 for K > 2), or a
                token id is not between 0 and V-1.
        """
        check_classes(self.targets, self.num_classes)
        # The layout by token omits tokens whose id is not below `vocab_size`, so the totals would differ.
        held = np.asarray(self.occurrences.count).sum() == np.asarray(self.lengths).sum()
        if not held or np.asarray(self.bags.index).max() >= self.vocab_size:
            raise InputError(
                f"a sequence contains a token id outside the range "
                f"0 to {self.vocab_size - 1}; increase vocab_size"
            )


@_one_program
def _counts(corpus: Corpus) -> Array:
    count = corpus.bags.count.astype(jnp.int32)
    token = corpus.bags.index.astype(jnp.int32)
    empty = jnp.zeros((corpus.num_examples, corpus.vocab_size), jnp.int32)
    return empty.at[corpus.bags.owner[:, None], token].add(count, mode="drop")


@_one_program
def _take(corpus: Corpus, index: Array) -> Corpus:
    bags, (size,) = corpus.bags, index.shape
    num_rows, width = bags.index.shape
    first = positions(bags.owner, index)
    number = positions(bags.owner, index, side="right") - first
    longest = math.prod(level.shape[1] for level in bags.tree)
    end = jnp.cumsum(number)
    position = jnp.arange(min(size * longest, num_rows))
    owner = positions(end, position, side="right")
    own = jnp.minimum(owner, size - 1)
    is_row = owner < size
    row = jnp.where(is_row, (first + number - end)[own] + position, 0)
    cut = from_bags(
        jnp.repeat(owner, width),
        bags.index[row].ravel(),
        jnp.where(is_row[:, None], bags.count[row], 0).ravel(),
        corpus.targets[index],
        vocab_size=corpus.vocab_size,
        num_classes=corpus.num_classes,
        longest_bag=longest * width,
        max_occurrences=size,
        class_names=corpus.class_names,
    )
    mean = math.ceil(corpus.num_entries * size / corpus.num_examples)
    return cut.replace(lengths=corpus.lengths[index], mean_entries=mean)


def check_classes(targets: Array | np.ndarray, num_classes: int) -> None:
    """Raise InputError unless all targets are class labels: -1 and +1 for K = 2, else 0 to K-1."""
    allowed = [-1, 1] if num_classes == 2 else list(range(num_classes))
    if wrong := sorted(set(np.unique(np.asarray(targets)).tolist()) - set(allowed)):
        listed = allowed if num_classes <= 20 else f"0 to {num_classes - 1}"
        raise InputError(f"label {wrong[0]} is invalid; the labels for {num_classes} classes are {listed}")


def class_labels(index: _A, num_classes: int) -> _A:
    """Convert class indices 0 to K-1 to labels: -1 and +1 for two classes, unchanged for more."""
    return 2 * index - 1 if num_classes == 2 else index


def class_index(labels: _A, num_classes: int) -> _A:
    """Convert labels to class indices 0 to K-1. This is the inverse of `class_labels`."""
    return (labels + 1) // 2 if num_classes == 2 else labels


def from_bags(
    sequence: Array | np.ndarray,
    token: Array | np.ndarray,
    count: Array | np.ndarray,
    labels: Array | np.ndarray,
    *,
    vocab_size: int,
    num_classes: int,
    longest_bag: int,
    max_occurrences: int,
    class_names: tuple[str, ...] | None = None,
) -> Corpus:
    """Build a corpus from (sequence, token, count) entries without validation.

    Args:
        sequence: (N,) int, sorted. This and the next three arguments may be NumPy or traced
            arrays.
        token: (N,) int, ascending and distinct within a sequence.
        count: (N,) int ≥ 0; entries with count 0 are dropped.
        labels: (n,) int; see `Corpus`.
        vocab_size: V.
        num_classes: K, number of classes.
        longest_bag: upper bound on the number of distinct tokens in a sequence.
        max_occurrences: upper bound on the number of sequences that contain the same token.
        class_names: see `Corpus`.

    Raises:
        InputError: there are too many entries for 32-bit indices.
    """
    check_positions("corpus", max(len(count), vocab_size))
    xp = count.__array_namespace__()
    sequences = len(labels)
    # NumPy sorts 16-bit keys with radix sort, which is ten times faster than its sort for wider keys.
    key = xp.where(count > 0, token, vocab_size).astype(np.min_scalar_type(vocab_size))
    by_token = xp.argsort(key, stable=True)
    sorted_count = count[by_token]
    segment = xp.where(sorted_count > 0, token[by_token], vocab_size)
    holder = sequence[by_token]
    bags, in_bags = ragged(
        sequence, token, count, segments=sequences, indices=vocab_size, longest=longest_bag
    )
    occurrences, in_occurrences = ragged(
        segment, holder, sorted_count, segments=vocab_size, indices=sequences, longest=max_occurrences
    )
    lengths: Any
    slot: Any
    if isinstance(count, np.ndarray):
        lengths = np.bincount(sequence, weights=count, minlength=sequences)
        check_positions("the longest sequence", int(lengths.max()))
        slot = np.zeros(len(count) + 1, np.int32)
        slot[in_bags.ravel()] = np.arange(in_bags.size)
    else:
        lengths = jax.ops.segment_sum(count.astype(jnp.int32), sequence, sequences)
        slot = (
            jnp.zeros(len(count) + 1, jnp.int32)
            .at[in_bags.ravel()]
            .set(jnp.arange(in_bags.size, dtype=jnp.int32))
        )
    occurrence_to_bag = xp.append(slot[:-1][by_token], 0).astype(np.int32)[in_occurrences]
    return Corpus(
        bags=bags,
        occurrences=occurrences,
        occurrence_to_bag=occurrence_to_bag,
        targets=xp.asarray(labels).astype(np.int32),
        lengths=lengths.astype(np.int32),
        vocab_size=vocab_size,
        num_classes=num_classes,
        class_names=class_names,
    )


def from_draws(
    tokens: Array, labels: Array, *, vocab_size: int, num_classes: int, mask: Array | None = None
) -> Corpus:
    """Build a corpus from padded sequences, without checking ids. Works inside jit and under vmap.

    Args:
        tokens: (n, T) int; token ids, which may repeat within a sequence.
        labels: (n,) int; see `Corpus`.
        mask: (n, T) bool; True for tokens, False for padding. None if there is no padding.
        vocab_size: V.
        num_classes: K, number of classes.

    Returns:
        The corpus, in which each bag is one row of at most T entries.

    Raises:
        InputError: the ids are not integers, or there is not one label per sequence.

    Example:
        >>> tokens, labels = jnp.array([[0, 2], [1, 1]]), jnp.array([1, -1])
        >>> corpus = ja.data.from_draws(tokens, labels, vocab_size=3, num_classes=2)
        >>> corpus.counts().tolist()
        [[1, 0, 1], [0, 2, 0]]
    """
    sequences = len(tokens)
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise InputError(f"tokens: expected integer ids, got dtype {tokens.dtype}")
    if labels.shape != (sequences,):
        raise InputError(
            f"labels: shape {labels.shape} for {sequences:,} sequences; pass one label per sequence"
        )
    return _from_draws(tokens, labels, mask, vocab_size, num_classes)


@partial(_one_program, static_argnums=(3, 4))
def _from_draws(
    tokens: Array, labels: Array, mask: Array | None, vocab_size: int, num_classes: int
) -> Corpus:
    sequences, length = tokens.shape
    # Give padding the id `vocab_size`, so that it is sorted to the end of each row.
    ordered = jnp.sort(tokens if mask is None else jnp.where(mask, tokens, vocab_size), axis=1)
    position = jnp.broadcast_to(jnp.arange(length), ordered.shape)
    first = jnp.concatenate([jnp.ones((sequences, 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    start = jnp.where(first, position, length)
    following = jnp.concatenate([start[:, 1:], jnp.full((sequences, 1), length, start.dtype)], axis=1)
    next_start = jax.lax.cummin(following, axis=1, reverse=True)
    is_token = first if mask is None else first & (ordered < vocab_size)
    count = jnp.where(is_token, next_start - position, 0).astype(np.min_scalar_type(length))
    return from_bags(
        jnp.repeat(jnp.arange(sequences), length),
        ordered.ravel(),
        count.ravel(),
        labels,
        vocab_size=vocab_size,
        num_classes=num_classes,
        longest_bag=length,
        max_occurrences=sequences,
    )


def shapes(*, vocab_size: int, num_classes: int = 2) -> Corpus:
    """Return an abstract corpus with the shapes and dtypes of a single sequence, for `Model.init`."""

    def draw(ids: Array) -> Corpus:
        return from_draws(ids, ids[:, 0], vocab_size=vocab_size, num_classes=num_classes)

    return jax.eval_shape(draw, jax.ShapeDtypeStruct((1, 1), jnp.int32))
