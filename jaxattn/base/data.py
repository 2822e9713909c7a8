"""Data for a study: examples with targets, data splits, and base classes for data sources."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, PyTree

from jaxattn.core.errors import InputError, shown
from jaxattn.core.fractions import reaches
from jaxattn.core.pytrees import Brief
from jaxattn.core.spec import Spec


class Dataset(Brief, struct.PyTreeNode, repr=False):
    """n examples with targets, as a frozen pytree. The annotated fields of a subclass are its arrays.

        class Pairs(ja.Dataset):
            left: jax.Array
            right: jax.Array

    By default, every array has n rows, one per example.

    Attributes:
        targets: (n, ...) targets for the loss: classes, tokens, numbers or vectors.
        setting_of_classes: name of the setting that declares the number of classes, for error messages.
    """

    targets: Array
    setting_of_classes: ClassVar[str] = "num_classes"

    def __init_subclass__(cls, **options: Any) -> None:
        parent: Any = super()  # flax does not annotate this method
        parent.__init_subclass__(**{"repr": False} | options)

    @property
    def num_examples(self) -> int:
        """Number of examples n."""
        return int(self.targets.shape[0])

    @property
    def num_classes(self) -> int | None:
        """Number of classes K (targets -1 and +1 if K = 2), or None if the targets are not classes."""
        return None

    def take(self, index: Array) -> Self:
        """Return a minibatch of the given examples; may be traced by `jax.jit` and `jax.vmap`.

        Args:
            index: (B,) int; distinct indices of examples.

        Returns:
            A dataset of the same type with these B examples.
        """
        taken: Self = jax.tree.map(lambda x: x[index], self)
        return taken

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the name and value of each array."""
        for path, x in jax.tree_util.tree_flatten_with_path(self)[0]:
            yield jax.tree_util.keystr(path, simple=True, separator="."), x

    def check_shapes(self) -> None:
        """Raise InputError unless each array has one row per example. Traced arrays are checked, too."""
        for name, x in self.arrays():
            if np.ndim(x) == 0 or len(x) != self.num_examples:
                raise InputError(
                    f"{name}: {shown(x)} for {self.num_examples} targets; expected one row per example"
                )

    def check(self) -> None:
        """Raise InputError if any value is invalid. Call this on the host, outside traced code."""
        self.check_shapes()


D = TypeVar("D", bound=Dataset)


@struct.dataclass(repr=False)
class TokenStatistics(Brief):
    """Statistics of the V tokens in a corpus, with C = 1 column for two classes and C = K for K > 2.

    Attributes:
        count: (V,); number of occurrences.
        alpha: (V, C); average signed frequency.
        posterior_difference: (V, C); NaN for tokens that never occur.
    """

    count: Array
    alpha: Array
    posterior_difference: Array

    def important(self, size: float | Array, min_count: int | Array) -> Bool[Array, " V"]:
        """Return a mask of the important tokens, (V,) bool.

        A token is important if it occurs at least `min_count` times and its |posterior difference| is at
        least `size` for some class. Rare tokens are excluded because their posterior difference is mostly
        noise: it is ±1 for any token that occurs once.
        """
        difference = jnp.abs(self.posterior_difference)
        large = reaches(difference, size, dtype=difference.dtype).any(axis=1)
        marked: Array = large & (self.count >= min_count)
        return marked


@struct.dataclass(repr=False)
class Splits(Brief):
    """Data for one seed, or for several seeds along a leading axis. Each split is a `Dataset`.

    Attributes:
        train: training data.
        tokens: token statistics of the training data, or None if the data are not bags of tokens.
        test: test data, or None.
        validation: validation data, or None.
        task_key: (2,) uint32; key data for randomness that all samples for a seed share, such as a
            planted teacher; passed to `CommonData.batch`. None if there is no such randomness.
    """

    train: PyTree
    tokens: PyTree = None
    test: PyTree = None
    validation: PyTree = None
    task_key: Array | None = None

    def sampled(self, maximum: int | None) -> "Splits":
        """Return at most `maximum` evenly spaced examples per split, or all examples if `maximum` is None.

        Token statistics are not recomputed: they still describe all training data.
        """

        def some(corpus: Any) -> Any:
            if corpus is None or maximum is None or corpus.num_examples <= maximum:
                return corpus
            return corpus.take(jnp.asarray(np.arange(maximum) * corpus.num_examples // maximum, jnp.int32))

        train, test, validation = map(some, (self.train, self.test, self.validation))
        return dataclasses.replace(self, train=train, test=test, validation=validation)


class Loaded(NamedTuple):
    """Data loaded for a study.

    Attributes:
        splits: the data for all seeds, with a leading seed axis unless `shared` is True.
        shared: True if all seeds use the same data.
        tokens: names of the V tokens.
    """

    splits: Splits
    shared: bool
    tokens: Sequence[str]


# Progress callback (what, done, total). `total` is None if unknown. A call with done = total = 0 prints
# `what` as a note.
Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore a progress report.

    Example:
        >>> ja.base.silent("reading", 1, 2)
    """


class CommonData(Spec, frozen=True, kw_only=True):
    """Common base class of `DrawnData` and `SharedData`. Derive from one of these two instead.

    Attributes:
        pads_vocabulary: True if cells that differ in V may use the same compiled program. A subclass that
            defines a method does not inherit it.
        inert: names of settings that do not affect results, such as the folder that contains the files.
        dataset_type: type of the data, or None if it is unknown before sampling.
        draws_batches: True if new batches of any size can be sampled.
        held_out: True if there are validation data.
        vocab_size: vocabulary size V, or None if it is unknown before the data are read.
        num_classes: number of classes K.
    """

    overridable: ClassVar[frozenset[str]] = frozenset({"vocab_size", "num_classes"})
    about_methods: ClassVar[frozenset[str]] = frozenset({"pads_vocabulary"})
    shared: ClassVar[bool]
    pads_vocabulary: ClassVar[bool] = False
    inert: ClassVar[frozenset[str]] = frozenset()

    @property
    def dataset_type(self) -> type[Dataset] | None:
        """Type of the data, or None if it is unknown before sampling."""
        return None

    @property
    def draws_batches(self) -> bool:
        """True if new batches of any size can be sampled."""
        return False

    @property
    def held_out(self) -> bool:
        """True if there are validation data."""
        return False

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size V, or None if it is unknown before the data are read."""
        return None

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return 2

    def batch(
        self, key: Array, examples: int, used: Array | None = None, task_key: Array | None = None
    ) -> Dataset:
        """Sample new examples from the training distribution of a seed. This method is optional.

        Args:
            key: () PRNG key, different for each call.
            examples: number of examples.
            used: as in `DrawnData.draw`.
            task_key: () PRNG key, the same in all calls for a seed. Passed only if `draw` returns
                `Splits.task_key`.
        """
        raise NotImplementedError(f"{type(self).__name__}.batch")


class DrawnData(CommonData, frozen=True, kw_only=True):
    """Base class for data that are sampled separately for each seed.

    A function `(key, *, settings) -> Dataset` is a shorter alternative.
    """

    shared: ClassVar[bool] = False

    @property
    def draws_batches(self) -> bool:
        """True if new batches of any size can be sampled."""
        return type(self).batch is not CommonData.batch

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens; empty if the data have no tokens."""
        return ()

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Sample the data for one seed.

        Args:
            key: () PRNG key for the data of this seed. Derive from it one key per split, and `task_key` for
                randomness shared by all splits and fresh batches.
            used: () int32; sample only from the first `used` tokens. None for all V tokens. Passed only if
                `pads_vocabulary` is True.

        Returns:
            Training data, with token statistics if they are bags of tokens; test and validation data, if any;
            and `task_key`, if any randomness is shared.
        """
        raise NotImplementedError(f"{type(self).__name__}.draw")


class SharedData(CommonData, frozen=True, kw_only=True):
    """Base class for data shared by all seeds, such as texts.

    For labelled texts, derive from `jaxattn.texts.Source`.
    """

    shared: ClassVar[bool] = True

    def load(self, progress: Progress = silent) -> Loaded:
        """Read the data and the names of the V tokens on the host. Every call returns the same data."""
        raise NotImplementedError(f"{type(self).__name__}.load")


Data = DrawnData | SharedData
