"""Ordered sequences: of token ids, and of real vectors with a query for each sequence."""

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
        ids: (n, T) int32; token ids in [0, V), arbitrary where `mask` is False.
        mask: (n, T) bool; True for positions that hold a token.
        targets: (n,) classes as in a `Corpus`, (n,) or (n, T) tokens, or any other targets of a loss.
        query: (n,) int32; position of the query token, such as the last token. None if there is none.
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
        """Number of classes K of the targets; None if they are not classes."""
        return self.classes

    @property
    def lengths(self) -> Array:
        """Tokens per sequence T(X), (n,) int32."""
        return self.mask.sum(axis=1, dtype=jnp.int32)

    @property
    def causal(self) -> Array:
        """Causal mask, (n, T, T) bool: True for tokens at the same or an earlier position."""
        order = jnp.arange(self.ids.shape[1])
        return self.mask[:, None, :] & (order[None, :] <= order[:, None])

    def bags(self) -> Corpus:
        """Return the corpus of the same sequences without their order. It works inside jit and under vmap.

        Raises:
            InputError: the targets are not classes.
        """
        if self.classes is None:
            raise InputError("bags: the targets are not classes; set classes=K in Sequences")
        return from_draws(
            self.ids, self.targets, mask=self.mask, vocab_size=self.vocab_size, num_classes=self.classes
        )

    def check(self) -> None:
        """Raise InputError if rows, token ids or query positions are invalid. Call it on the host."""
        super().check()
        if self.classes is not None:
            check_classes(self.targets, self.classes)
        ids, mask = np.asarray(self.ids), np.asarray(self.mask)
        if not mask.any(axis=1).all():
            raise InputError(f"sequence {int(np.argmin(mask.any(axis=1)))}: it has no token; remove it")
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
                raise InputError(
                    f"query {query[where]} of sequence {where}: there is no token; use a token's position"
                )


def from_flat(
    tokens: Int[np.ndarray, " N"],
    lengths: Int[np.ndarray, " n"],
    targets: Any,
    *,
    vocab_size: int,
    classes: int | None = None,
) -> Sequences:
    """Build sequences from concatenated token ids, without validation.

    Args:
        tokens: concatenated token ids of all sequences.
        lengths: tokens per sequence.
        targets: (n, ...), see `Sequences`.
        vocab_size: V.
        classes: K, if the targets are classes.

    Returns:
        The sequences, each with its last token as the query.
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
        targets: (n,) -1 or +1, classes 0 .. K-1, numbers, or any other targets (n, ...) of a loss.
        z: (n, d) query of each sequence; None if there is none.
        mask: (n, T) bool; True for existing tokens; all if None.
        classes: K, if the targets are classes (static).
    """

    X: Leaf
    z: Leaf = None
    mask: Leaf = None
    classes: int | None = struct.field(pytree_node=False, default=None, kw_only=True)

    @property
    def num_classes(self) -> int | None:
        """Number of classes K of the targets; None if they are not classes."""
        return self.classes

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return self.X.shape[-1]

    def dot(self, u: Leaf) -> Leaf:
        """Compute x_nt·u_n, (n, T), with one vector u (d,) for all sequences or one for each, (n, d)."""
        # Batched products are faster on CPUs than a matrix times a vector, also for derivatives.
        u = jnp.broadcast_to(u, (self.X.shape[0], self.X.shape[2]))
        return jnp.einsum("ntd,nd->nt", self.X, u)

    def masked(self, scores: Leaf) -> Leaf:
        """Replace the scores (n, T) of missing tokens by -∞."""
        return scores if self.mask is None else jnp.where(self.mask, scores, -jnp.inf)

    def check(self) -> None:
        """Raise InputError if rows, tokens or the dimension of queries are invalid. Call it on the host."""
        super().check()
        if self.classes is not None:
            check_classes(self.targets, self.classes)
        if np.ndim(self.X) != 3:
            raise InputError(f"X: {shown(self.X)}; give tokens (n, T, d)")
        if self.z is not None and np.shape(self.z) != (self.num_examples, self.dim):
            raise InputError(f"z: {shown(self.z)} for tokens of dimension {self.dim}; give queries (n, d)")
        if self.mask is not None and not np.asarray(self.mask).any(axis=1).all():
            raise InputError(
                f"sequence {int(np.argmin(np.asarray(self.mask).any(axis=1)))}: it has no token; remove it"
            )
