"""Where data come from: drawn for every seed, or shared by all."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from jax import Array

from jaxattn.base.dataset import Dataset
from jaxattn.base.splits import Loaded, Splits
from jaxattn.core.settings import Spec

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

    def batch(self, key: Array, examples: int, used: Array | None = None) -> Dataset:
        """Draw examples afresh, as those that a seed trains on; may be left out.

        Args:
            key: () PRNG key.
            examples: how many.
            used: as in `DrawnData.draw`.

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
            key: () PRNG key of the seed's data.
            used: () int32, how many of the V tokens to draw from; all if None. Given only to data that
                `pads_vocabulary`.

        Returns:
            Training data, with token statistics if they are bags, and test and validation data if any.
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
