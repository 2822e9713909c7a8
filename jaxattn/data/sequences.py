"""Ordered sequences of token ids, and sequences of real vectors with one query each."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Int
from numpy.typing import ArrayLike

from jaxattn.base import Dataset
from jaxattn.core.errors import InputError, shown
from jaxattn.core.pytrees import AnyArray
from jaxattn.data.corpus import Corpus, check_classes, from_draws


class Sequences(Dataset):
    """n ordered sequences of at most T tokens each.

    Attributes:
        ids: (n, T) int32; token ids in [0, V), arbitrary where `mask` is False.
        mask: (n, T) bool; True for tokens, False for padding.
        targets: classes (n,), as in `Corpus`; tokens (n,) or (n, T); or any other targets for a loss.
        query: (n,) int32; position of the query token, such as the last token; None if there is no query.
        vocab_size: V (static).
        classes: K if the targets are classes, else None (static).
    """

    ids: Array
    mask: Array
    query: Array | None = None
    vocab_size: int = struct.field(pytree_node=False, kw_only=True)
    classes: int | None = struct.field(pytree_node=False, default=None, kw_only=True)
    setting_of_classes: ClassVar[str] = "classes"

    @property
    def num_classes(self) -> int | None:
        """Number of target classes K, or None if the targets are not classes."""
        return self.classes

    @property
    def lengths(self) -> Array:
        """Number of tokens T(X) in each sequence, (n,) int32."""
        return self.mask.sum(axis=1, dtype=jnp.int32)

    @property
    def causal(self) -> Array:
        """Causal mask, (n, T, T) bool; True if the attended token is at the query's position or earlier."""
        order = jnp.arange(self.ids.shape[1])
        return self.mask[:, None, :] & (order[None, :] <= order[:, None])

    def bags(self) -> Corpus:
        """Return a corpus with the sequences as bags of tokens. Works inside jit and under vmap.

        Raises:
            InputError: the targets are not classes.
        """
        if self.classes is None:
            raise InputError("bags: the targets are not classes; set classes=K in Sequences")
        return from_draws(
            self.ids, self.targets, mask=self.mask, vocab_size=self.vocab_size, num_classes=self.classes
        )

    def check(self) -> None:
        """Raise InputError if a sequence, token id or query position is invalid. Call this on the host."""
        super().check()
        if self.classes is not None:
            check_classes(self.targets, self.classes)
        ids, mask = np.asarray(self.ids), np.asarray(self.mask)
        if not mask.any(axis=1).all():
            raise InputError(f"sequence {int(np.argmin(mask.any(axis=1)))} has no tokens; remove it")
        outside = mask & ((ids < 0) | (ids >= self.vocab_size))
        if outside.any():
            sequence, position = np.argwhere(outside)[0]
            raise InputError(
                f"token id {ids[sequence, position]} in sequence {sequence} must be between 0 and "
                f"{self.vocab_size - 1}; increase vocab_size, or replace the token with one in the vocabulary"
            )
        if self.query is not None:
            query = np.asarray(self.query)
            asks = (query >= 0) & (query < mask.shape[1])
            asks &= np.take_along_axis(mask, np.where(asks, query, 0)[:, None], axis=1)[:, 0]
            if not asks.all():
                where = int(np.argmin(asks))
                raise InputError(
                    f"query: position {query[where]} in sequence {where} has no token; "
                    "use the position of a token"
                )


def from_flat(
    tokens: Int[np.ndarray, " N"],
    lengths: Int[np.ndarray, " n"],
    targets: ArrayLike,
    *,
    vocab_size: int,
    classes: int | None = None,
) -> Sequences:
    """Build sequences from concatenated token ids, without validation.

    Args:
        tokens: concatenated token ids of all sequences.
        lengths: number of tokens in each sequence.
        targets: (n, ...); see `Sequences`.
        vocab_size: V.
        classes: K if the targets are classes.

    Returns:
        The sequences. The query is the last token of each sequence.
    """
    mask = np.arange(max(lengths, default=0)) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = tokens
    return Sequences(
        targets=jax.device_put(np.asarray(targets)),
        ids=jax.device_put(ids),
        mask=jax.device_put(mask),
        query=jax.device_put((mask.sum(axis=1) - 1).astype(np.int32)),
        vocab_size=vocab_size,
        classes=classes,
    )


class Vectors(Dataset):
    """n sequences of T real-valued tokens in R^d.

    Attributes:
        X: (n, T, d); tokens.
        targets: (n,) labels -1 or +1, classes 0 to K-1, numbers, or any other targets (n, ...) for a loss.
        z: (n, d); query of each sequence; None if there are no queries.
        mask: (n, T) bool; True for tokens, False for padding. None if there is no padding.
        classes: K if the targets are classes, else None (static).
    """

    X: Array
    z: Array | None = None
    mask: Array | None = None
    classes: int | None = struct.field(pytree_node=False, default=None, kw_only=True)
    setting_of_classes: ClassVar[str] = "classes"

    @property
    def num_classes(self) -> int | None:
        """Number of target classes K, or None if the targets are not classes."""
        return self.classes

    @property
    def dim(self) -> int:
        """Dimension d of the tokens."""
        return self.X.shape[-1]

    def dot(self, u: AnyArray) -> Array:
        """Compute x_it·u_i, (n, T), for one vector u, (d,), or for one vector per sequence, (n, d)."""
        # On CPUs, batched products and their derivatives are faster than matrix-vector products.
        u = jnp.broadcast_to(u, (self.X.shape[0], self.X.shape[2]))
        return jnp.einsum("ntd,nd->nt", self.X, u)

    def masked(self, scores: AnyArray) -> AnyArray:
        """Return the scores, (n, T), with -inf at padding positions."""
        return scores if self.mask is None else jnp.where(self.mask, scores, -jnp.inf)

    def check(self) -> None:
        """Raise InputError if the tokens, queries or mask are invalid. Call this on the host."""
        super().check()
        if self.classes is not None:
            check_classes(self.targets, self.classes)
        if np.ndim(self.X) != 3:
            raise InputError(f"X: expected tokens of shape (n, T, d), got {shown(self.X)}")
        if self.z is not None and np.shape(self.z) != (self.num_examples, self.dim):
            raise InputError(
                f"z: expected queries of shape ({self.num_examples}, {self.dim}), got {shown(self.z)}"
            )
        if self.mask is not None and not np.asarray(self.mask).any(axis=1).all():
            raise InputError(
                f"sequence {int(np.argmin(np.asarray(self.mask).any(axis=1)))} has no tokens; remove it"
            )
