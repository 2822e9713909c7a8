"""What every kind of data has in common: n examples with targets, of which some can be taken."""

from collections.abc import Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from flax import struct
from jax import Array

from jaxattn.brief import Brief
from jaxattn.errors import InputError, shown
from jaxattn.trees import Leaf

D = TypeVar("D", bound="Dataset")


class Dataset(Brief, struct.PyTreeNode, repr=False):
    """n examples with targets. A frozen pytree: a subclass is one by the fields that it names.

        class Pairs(ja.Dataset):
            left: jax.Array
            right: jax.Array
            targets: jax.Array

    By default all its arrays have n rows, one for each example.

    Attributes:
        targets: (n, ...) what a loss compares outputs with: classes, tokens, numbers or vectors.
    """

    targets: Leaf

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a subclass a frozen pytree of its fields, written in a few lines."""
        super().__init_subclass__(**{"repr": False} | options)

    @property
    def num_examples(self) -> int:
        """The number of examples n."""
        return self.targets.shape[0]

    @property
    def num_classes(self) -> int | None:
        """The number of classes K that the targets name; None if they are no classes."""
        return None

    def take(self: D, index: Array) -> D:
        """Take some examples, inside jit and under vmap: a minibatch.

        Args:
            index: (B,) int; numbers of distinct examples.

        Returns:
            B examples of the same kind.
        """
        return jax.tree.map(lambda x: x[index], self)

    def check(self) -> None:
        """Check on the host what programs cannot.

        Raises:
            InputError: arrays without a row for every example.
        """
        for name, x in leaves(self):
            if np.ndim(x) == 0 or len(x) != self.num_examples:
                raise InputError(
                    f"{name}: {shown(x)} for {self.num_examples} targets; give one row for each example"
                )


def leaves(data: Dataset) -> Iterator[tuple[str, Array]]:
    """List the arrays of a dataset with their names."""
    for path, x in jax.tree_util.tree_flatten_with_path(data)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="."), x


def check_classes(targets: Array, num_classes: int, *, signs: bool) -> None:
    """Check that targets are classes.

    Args:
        targets: any shape.
        num_classes: K.
        signs: whether two classes are -1 and +1, rather than 0 and 1.

    Raises:
        InputError: a target that is none.
    """
    allowed = [-1, 1] if signs and num_classes == 2 else list(range(num_classes))
    if wrong := sorted(set(np.unique(np.asarray(targets)).tolist()) - set(allowed)):
        listed = allowed if num_classes <= 20 else f"0 .. {num_classes - 1}"
        raise InputError(f"a label is {wrong[0]}; labels of {num_classes} classes are {listed}")
