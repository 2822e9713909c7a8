"""Sequences in order: of tokens by their ids, and of real vectors with a query of their own."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Int

from jaxattn.base import Dataset
from jaxattn.core.errors import InputError, shown
from jaxattn.core.pytrees import Leaf
from jaxattn.data.corpus import Corpus, check_classes, from_draws


class Sequences(Dataset):
    """n sequences of at most T tokens in order.

    Attributes:
        ids: (n, T) int32; token ids in [0, V), any where `mask` is False.
        mask: (n, T) bool; which positions hold a token.
        targets: (n,) classes as of a `Corpus`, (n,) or (n, T) tokens, or what else a loss takes.
        query: (n,) int32; the position that asks, such as that of the last token. None if none does.
        vocab_size: V (static).
        classes: K, if the targets are classes (static).
    """

    ids: Leaf
    mask: Leaf
    query: Leaf = None
    vocab_size: int = struct.field(pytree_node=False, kw_only=True)
    classes: int | None = struct.field(pytree_node=False, default=None, kw_only=True)

    @property
    def num_classes(self) -> int | None:
        """The number of classes K that the targets name; None if they are no classes."""
        return self.classes

    @property
    def lengths(self) -> Array:
        """Tokens of every sequence T(X), (n,) int32."""
        return self.mask.sum(axis=1, dtype=jnp.int32)

    @property
    def causal(self) -> Array:
        """Which positions a position sees, (n, T, T) bool: tokens at its own position and before it."""
        order = jnp.arange(self.ids.shape[1])
        return self.mask[:, None, :] & (order[None, :] <= order[:, None])

    def bags(self) -> Corpus:
        """Count the tokens of every sequence, inside jit and under vmap.

        Returns:
            The corpus of the same sequences without their order; of targets that are classes.

        Raises:
            InputError: the targets are no classes.
        """
        if self.classes is None:
            raise InputError("bags: the targets are no classes; give Sequences their number, classes=K")
        return from_draws(
            self.ids, self.targets, mask=self.mask, vocab_size=self.vocab_size, num_classes=self.classes
        )

    def check(self) -> None:
        """Check on the host: a row for every example, ids within the vocabulary, a query on a token."""
        super().check()
        if self.classes is not None:
            check_classes(self.targets, self.classes)
        ids, mask = np.asarray(self.ids), np.asarray(self.mask)
        if not mask.any(axis=1).all():
            raise InputError(f"sequence {int(np.argmin(mask.any(axis=1)))}: it holds no token; remove it")
        outside = mask & ((ids < 0) | (ids >= self.vocab_size))
        if outside.any():
            sequence, position = np.argwhere(outside)[0]
            raise InputError(
                f"token id {ids[sequence, position]} of sequence {sequence}: ids run from 0 to "
                f"{self.vocab_size - 1}; raise vocab_size or map the token to a known one"
            )
        if self.query is not None:
            query = np.asarray(self.query)
            asks = (query >= 0) & (query < mask.shape[1])
            asks &= np.take_along_axis(mask, np.where(asks, query, 0)[:, None], axis=1)[:, 0]
            if not asks.all():
                where = int(np.argmin(asks))
                raise InputError(f"query {query[where]} of sequence {where}: there is no token")


def from_flat(
    tokens: Int[np.ndarray, " N"],
    lengths: Int[np.ndarray, " n"],
    targets: Any,
    *,
    vocab_size: int,
    classes: int | None = None,
) -> Sequences:
    """Build sequences from all token ids end to end, without any check.

    Args:
        tokens: the token ids of all sequences, one sequence after the other.
        lengths: tokens per sequence.
        targets: (n, ...) see `Sequences`.
        vocab_size: V.
        classes: K, if the targets are classes.

    Returns:
        The sequences; their query is the last token.
    """
    mask = np.arange(max(lengths, default=0)) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = tokens
    return Sequences(
        targets=jnp.asarray(targets),
        ids=jnp.asarray(ids),
        mask=jnp.asarray(mask),
        query=jnp.asarray(mask.sum(axis=1) - 1, jnp.int32),
        vocab_size=vocab_size,
        classes=classes,
    )


class Vectors(Dataset):
    """n sequences of T tokens in R^d.

    Attributes:
        X: (n, T, d) tokens.
        targets: (n,) -1 or +1, classes 0 .. K-1, numbers, or (n, ...) what else a loss takes.
        z: (n, d) query of each sequence; None if there is none.
        mask: (n, T) bool; which tokens there are. None if all.
        classes: K, if the targets are classes (static).
    """

    X: Leaf
    z: Leaf = None
    mask: Leaf = None
    classes: int | None = struct.field(pytree_node=False, default=None, kw_only=True)

    @property
    def num_classes(self) -> int | None:
        """The number of classes K that the targets name; None if they are no classes."""
        return self.classes

    @property
    def dim(self) -> int:
        """The dimension d of the tokens."""
        return self.X.shape[-1]

    def dot(self, u: Leaf) -> Leaf:
        """Compute x_nt·u_n, (n, T), with one vector u (d,) for all sequences or one for each, (n, d).

        As batched products, which XLA takes less time for on CPUs than for a matrix times a vector, and for
        their derivatives.
        """
        u = jnp.broadcast_to(u, (self.X.shape[0], self.X.shape[2]))
        return jnp.einsum("ntd,nd->nt", self.X, u)

    def masked(self, scores: Leaf) -> Leaf:
        """Put -∞ in place of the scores (n, T) of tokens that are not there."""
        return scores if self.mask is None else jnp.where(self.mask, scores, -jnp.inf)

    def check(self) -> None:
        """Check on the host: a row for every example, a token in each, queries of the tokens' dimension."""
        super().check()
        if self.classes is not None:
            check_classes(self.targets, self.classes)
        if np.ndim(self.X) != 3:
            raise InputError(f"X: {shown(self.X)}; give tokens (n, T, d)")
        if self.z is not None and np.shape(self.z) != (self.num_examples, self.dim):
            raise InputError(f"z: {shown(self.z)} for tokens of dimension {self.dim}; give queries (n, d)")
        if self.mask is not None and not np.asarray(self.mask).any(axis=1).all():
            raise InputError(f"sequence {int(np.argmin(np.asarray(self.mask).any(axis=1)))}: it has no token")
