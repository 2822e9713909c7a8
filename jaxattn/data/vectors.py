"""Sequences of real tokens, with a query of their own if there is one."""

import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxattn.base import Dataset
from jaxattn.core.errors import InputError, shown
from jaxattn.core.params_by_name import Leaf
from jaxattn.data.corpus import check_classes


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
