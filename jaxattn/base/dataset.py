"""Examples with targets: what a loss compares outputs with."""

from collections.abc import Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from flax import struct
from jax import Array

from jaxattn.core.errors import InputError, shown
from jaxattn.core.pytrees import Brief, Leaf

S = TypeVar("S", bound="Dataset")


class Dataset(Brief, struct.PyTreeNode, repr=False):
    """n examples with targets. A frozen pytree: a subclass is one by the fields that it names.

        class Pairs(ja.Dataset):
            left: jax.Array
            right: jax.Array

    By default all its arrays have n rows, one for each example.

    Attributes:
        targets: (n, ...) what a loss compares outputs with: classes, tokens, numbers or vectors.
    """

    targets: Leaf

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a subclass a frozen pytree of its fields, written in a few lines."""
        parent: Any = super()  # flax, which has no types
        parent.__init_subclass__(**{"repr": False} | options)

    @property
    def num_examples(self) -> int:
        """The number of examples n."""
        return int(self.targets.shape[0])

    @property
    def num_classes(self) -> int | None:
        """The number of classes K that the targets name, -1 and +1 if K = 2; None if they are no classes."""
        return None

    def take(self: S, index: Array) -> S:
        """Take some examples, inside jit and under vmap: a minibatch.

        Args:
            index: (B,) int; numbers of distinct examples.

        Returns:
            B examples of the same kind.
        """
        taken: S = jax.tree.map(lambda x: x[index], self)
        return taken

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """List its arrays with their names."""
        for path, x in jax.tree_util.tree_flatten_with_path(self)[0]:
            yield jax.tree_util.keystr(path, simple=True, separator="."), x

    def check_shapes(self) -> None:
        """Check what shapes tell, of traced arrays too.

        Raises:
            InputError: arrays without a row for every example.
        """
        for name, x in self.arrays():
            if np.ndim(x) == 0 or len(x) != self.num_examples:
                raise InputError(
                    f"{name}: {shown(x)} for {self.num_examples} targets; give one row for each example"
                )

    def check(self) -> None:
        """Check on the host what programs cannot; raises InputError."""
        self.check_shapes()


D = TypeVar("D", bound=Dataset)
