"""Data: examples with targets, the splits that a seed runs on, and where they come from, drawn or shared."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool

from jaxattn.core.errors import InputError, shown
from jaxattn.core.pytrees import Brief, Leaf
from jaxattn.core.settings import Spec


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

    def take(self, index: Array) -> Self:
        """Take some examples, inside jit and under vmap: a minibatch.

        Args:
            index: (B,) int; numbers of distinct examples.

        Returns:
            B examples of the same kind.
        """
        taken: Self = jax.tree.map(lambda x: x[index], self)
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


@struct.dataclass(repr=False)
class TokenStatistics(Brief):
    """Statistics of the V tokens of a corpus; arrays (V, C) have one column for two classes, else K.

    Attributes:
        count: (V,) occurrences.
        alpha: (V, C) average signed frequency.
        posterior_difference: (V, C), NaN where a token never occurs.
    """

    count: Leaf
    alpha: Leaf
    posterior_difference: Leaf

    def important(self, size: float | Array, min_count: int | Array) -> Bool[Array, " V"]:
        """Mark the important tokens: |posterior difference| ≥ `size` for a class, `min_count` occurrences.

        The posterior difference of a rare token is noise: that of a token that occurs once is 1.

        Args:
            size: least |posterior difference|.
            min_count: least number of occurrences.

        Returns:
            (V,) bool.
        """
        large = (jnp.abs(self.posterior_difference) >= size).any(axis=1)
        marked: Array = large & (self.count >= min_count)
        return marked


@struct.dataclass(repr=False)
class Splits(Brief):
    """Data of one seed, or with a leading axis of seeds: a `Dataset` each.

    Attributes:
        train: the training data.
        tokens: token statistics of training data that are bags, None of all others.
        test: the test data, None if there are none.
        validation: the validation data, None if there are none.
        task_key: (2,) uint32; data of the PRNG key of what all draws of a seed share, such as a planted
            teacher; None if they share nothing. `CommonData.batch` is called with this key.
    """

    train: Leaf
    tokens: Leaf = None
    test: Leaf = None
    validation: Leaf = None
    task_key: Leaf = None

    def sampled(self, most: int | None) -> "Splits":
        """Keep so many sequences of each corpus, evenly spaced; all of a smaller one, and of any if None.

        The statistics of the tokens stay those of the whole training corpus.
        """

        def some(corpus: Any) -> Any:
            if corpus is None or most is None or corpus.num_examples <= most:
                return corpus
            return corpus.take(jnp.asarray(np.arange(most) * corpus.num_examples // most, jnp.int32))

        train, test, validation = map(some, (self.train, self.test, self.validation))
        return dataclasses.replace(self, train=train, test=test, validation=validation)


class Loaded(NamedTuple):
    """Data as a study holds them.

    Attributes:
        splits: the data: those that all seeds share, or with a leading axis of seeds.
        shared: whether all seeds share them.
        tokens: names of the V tokens.
    """

    splits: Splits
    shared: bool
    tokens: Sequence[str]


# Told what is read, how much of it, and of how much, None if nobody knows; 0 of 0 makes it a remark.
Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Tell nobody."""


class CommonData(Spec, frozen=True, kw_only=True):
    """What data that is drawn and data that is shared have in common: derive from one of these two.

    Attributes:
        pads_vocabulary: whether cells of different V may share a program.
        inert: names of settings that change no number, such as where files lie.
        gives: the kind of data, None if only drawing tells.
        draws_batches: whether batches of any size can be drawn afresh.
        held_out: whether there are validation data.
        vocab_size: V, None if only reading tells.
        num_classes: K.
    """

    may_be_settings: ClassVar[frozenset[str]] = frozenset({"vocab_size", "num_classes"})
    shared: ClassVar[bool]
    pads_vocabulary: ClassVar[bool] = False
    inert: ClassVar[frozenset[str]] = frozenset()

    @property
    def gives(self) -> type[Dataset] | None:
        """The kind of data, None if only drawing tells."""
        return None

    @property
    def draws_batches(self) -> bool:
        """Whether batches of any size can be drawn afresh."""
        return False

    @property
    def held_out(self) -> bool:
        """Whether there are validation data."""
        return False

    @property
    def vocab_size(self) -> int | None:
        """V, None if only reading tells."""
        return None

    @property
    def num_classes(self) -> int:
        """K."""
        return 2

    def batch(
        self, key: Array, examples: int, used: Array | None = None, task_key: Array | None = None
    ) -> Dataset:
        """Draw new examples of the distribution that a seed trains on; may be left out.

        Args:
            key: () PRNG key, different in every call.
            examples: how many.
            used: as in `DrawnData.draw`.
            task_key: () PRNG key, the same in every call of a seed. Given only if `draw` returns
                `Splits.task_key`.

        Returns:
            The examples.
        """
        raise NotImplementedError(f"{type(self).__name__}.batch")


class DrawnData(CommonData, frozen=True, kw_only=True):
    """Data that are drawn afresh for every seed; `jaxattn.Generator` has all but `generate`, for bags."""

    shared: ClassVar[bool] = False

    @property
    def draws_batches(self) -> bool:
        """Whether batches of any size can be drawn afresh."""
        return type(self).batch is not CommonData.batch

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens; none if there are no tokens."""
        return ()

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Draw the data of one seed.

        Args:
            key: () PRNG key of the seed's data. Each split is drawn with a key of its own, derived from this
                one. What all splits and fresh batches share is drawn with another one, `task_key`.
            used: () int32, how many of the V tokens to draw from; all if None. Given only to data that
                `pads_vocabulary`.

        Returns:
            Training data, with token statistics if they are bags, test and validation data if any, and the
            data of `task_key` if there is one.
        """
        raise NotImplementedError(f"{type(self).__name__}.draw")


class SharedData(CommonData, frozen=True, kw_only=True):
    """Data that all seeds share, such as texts; `jaxattn.data.Source` has all but the reading of rows."""

    shared: ClassVar[bool] = True

    def load(self, progress: Progress = silent) -> Loaded:
        """Read the data on the host; called again, the same ones.

        Args:
            progress: told how far the reading is.

        Returns:
            The data, and names of the V tokens.
        """
        raise NotImplementedError(f"{type(self).__name__}.load")


Data = DrawnData | SharedData
