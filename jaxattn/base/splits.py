"""What one seed of a study runs on: training, test and validation data, and statistics of tokens in bags."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool

from jaxattn.core.pytrees import Brief, Leaf


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
    """

    train: Leaf
    tokens: Leaf = None
    test: Leaf = None
    validation: Leaf = None

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
