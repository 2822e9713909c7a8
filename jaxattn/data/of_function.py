"""Settings classes of data that are made from functions: sampled for every seed, or shared by all seeds."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
from jax import Array

from jaxattn.base import Data, Dataset, DrawnData, Progress, SharedData, silent
from jaxattn.base.functions import OfFunction, settings_class
from jaxattn.core.errors import InputError, shown
from jaxattn.core.settings import Count, HalfShare
from jaxattn.data.corpus import Corpus
from jaxattn.data.generators import Numbered
from jaxattn.data.sequences import Sequences
from jaxattn.data.splits import (
    Loaded,
    Splits,
    draw_batch,
    draw_splits,
    splits_of,
    takes_task_key,
    task_key_of,
)


class DrawnOfFunction(OfFunction, DrawnData, frozen=True, kw_only=True):
    """Data of each seed from a function `(key, *, settings) -> Dataset`, or `(key, task_key, *, settings)`.

    If the function has a setting `sequences`, this is the number of examples to sample. `key` differs between
    training, test and validation data and between fresh batches; `task_key` is the same for all samples of a
    seed.
    """

    not_settings: ClassVar[frozenset[str]] = frozenset({"task_key"})

    test_sequences: Count = 0
    validation_sequences: Count = 0
    label_noise: HalfShare = 0.0

    @property
    def held_out(self) -> bool:
        """True if there are validation data."""
        return self.validation_sequences > 0

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens, which are their ids."""
        return _numbered(jax.eval_shape(lambda key: self.draw(key).train, jax.random.key(0)))

    @property
    def draws_batches(self) -> bool:
        """True if new batches of any size can be sampled."""
        return "sequences" in self.arguments

    def batch(
        self, key: Array, examples: int, used: Array | None = None, task_key: Array | None = None
    ) -> Dataset:
        """Sample new examples; see `draw_batch`."""
        return draw_batch(partial(self._generate, task_key), key, examples, self.label_noise)

    def _generate(self, task_key: Array | None, key: Array, sequences: int) -> Any:
        given = {} if task_key is None else {"task_key": task_key}
        return self._call(key, **given, **{"sequences": sequences} if self.draws_batches else {})

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Sample the data of one seed."""
        task_key = task_key_of(key) if takes_task_key(type(self).function) else None
        return draw_splits(
            partial(self._generate, task_key),
            key,
            task_key=task_key,
            sequences=getattr(self, "sequences") if self.draws_batches else 0,  # noqa: B009  a setting
            test_sequences=self.test_sequences,
            validation_sequences=self.validation_sequences,
            label_noise=self.label_noise,
        )


class SharedOfFunction(OfFunction, SharedData, frozen=True, kw_only=True):
    """Data of all seeds from a function `(*, settings) -> Dataset`, or `-> (training data, test data)`."""

    def load(self, progress: Progress = silent) -> Loaded:
        """Call the function."""
        found: object = self._call()
        several = found if type(found) is tuple else (found,)
        for data in several:
            if not isinstance(data, Dataset):
                raise InputError(f"it returns {shown(data)}; return a jaxattn.Dataset, such as a Corpus")
        return Loaded(jax.jit(splits_of)(*several), True, list(_numbered(several[0])))


def _numbered(data: Dataset) -> Sequence[str]:
    return Numbered(data.vocab_size) if isinstance(data, Corpus | Sequences) else ()


def data_class(function: Callable[..., Any], **attributes: Any) -> type[Data]:
    """Return the class of a data function: sampled if it has a key, shared if it has only settings."""
    parameters = inspect.signature(function).parameters
    if all(p.kind is p.KEYWORD_ONLY for p in parameters.values()):
        if "task_key" in parameters:
            place = attributes.get("kind") or function.__name__
            raise InputError(f"{place}: it has a task_key and no key; write key as its first argument")
        return settings_class(function, SharedOfFunction, **attributes)
    return settings_class(function, DrawnOfFunction, **attributes)
