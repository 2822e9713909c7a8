"""Settings classes for data built from functions, either sampled for each seed or shared by all seeds."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
from jax import Array

from jaxattn.base import Dataset, DrawnData, Progress, SharedData, silent
from jaxattn.base.from_function import FromFunction, hints_of, settings_class
from jaxattn.core.errors import InputError, at, shown
from jaxattn.core.settings import Count, HalfFraction
from jaxattn.core.spec import StudyParts
from jaxattn.data.corpus import Corpus
from jaxattn.data.sequences import Sequences
from jaxattn.data.splits import Loaded, Splits, flip_labels, splits_of


class Numbered(Sequence[str]):
    """Token names "0" to "V-1", converted to strings on access."""

    def __init__(self, vocab_size: int) -> None:
        self._numbers = range(vocab_size)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, location: Any) -> Any:
        found = self._numbers[location]
        return [str(s) for s in found] if isinstance(location, slice) else str(found)


class DrawnFromFunction(FromFunction, DrawnData, frozen=True, kw_only=True):
    """Data sampled for each seed by a function `(key, *, settings) -> Dataset`.

    The function may also have the form `(key, task_key, *, settings) -> Dataset`. `key` differs between
    training, test and validation data and between fresh batches. `task_key` is the same for all samples
    for a seed. The setting `sequences` is the number of examples to sample. If the function has an
    argument `used`, which may be traced, it must sample only from the first `used` tokens, so that cells
    with different `vocab_size` use the same program.

    Attributes:
        test_sequences: number of test sequences, which have no label noise.
        validation_sequences: number of validation sequences, which have label noise.
        label_noise: probability that a training label is replaced by another class.
        has_task_key: True if the function has the argument `task_key`.
    """

    not_settings: ClassVar[frozenset[str]] = frozenset({"task_key", "used"})
    has_task_key: ClassVar[bool] = False

    test_sequences: Count = 0
    validation_sequences: Count = 0
    label_noise: HalfFraction = 0.0

    @property
    def held_out(self) -> bool:
        """True if there are validation data."""
        return self.validation_sequences > 0

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens: their ids as strings."""
        key = jax.random.key(0)
        task_key = key if self.has_task_key else None
        return _token_ids(jax.eval_shape(lambda key: self._sample(None, task_key, key, self._sequences), key))

    def check(self, *context: StudyParts) -> None:
        """Raise InputError if the check passed to `declare` rejects the settings for any split."""
        if not self.draws_batches:
            self._check(sequences=0)
            return
        self._check(sequences=self._sequences)
        for key in ("test_sequences", "validation_sequences"):
            if size := getattr(self, key):
                with at(key):
                    self._check(sequences=size)

    def batch(
        self, key: Array, examples: int, used: Array | None = None, task_key: Array | None = None
    ) -> Dataset:
        """Sample new examples with the same label noise as the training data."""
        batch_key, noise_key = jax.random.split(key)
        return self._noisy(noise_key, self._sample(used, task_key, batch_key, examples))

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Sample all splits for one seed. The content of each split does not depend on the other splits."""
        train_key, test_key = jax.random.split(key)
        validation_key, noise_key, other_noise_key = (jax.random.fold_in(key, k) for k in (2, 3, 4))
        task_key = jax.random.fold_in(key, 5) if self.has_task_key else None
        sample = partial(self._sample, used, task_key)
        train = self._noisy(noise_key, sample(train_key, self._sequences))
        test = sample(test_key, self.test_sequences) if self.test_sequences else None
        validation = None
        if self.held_out:
            validation = self._noisy(other_noise_key, sample(validation_key, self.validation_sequences))
        return splits_of(train, test, validation, task_key)

    @property
    def _sequences(self) -> int:
        return self._settings().get("sequences", 0)

    def _sample(self, used: Array | None, task_key: Array | None, key: Array, sequences: int) -> Dataset:
        given = {"used": used, "task_key": task_key, "sequences": sequences if self.draws_batches else None}
        found: object = self._call(key, **{name: x for name, x in given.items() if x is not None})
        return _check_dataset(found)

    def _noisy(self, key: Array, data: Dataset) -> Dataset:
        # If there is no label noise, the targets need not be classes.
        is_clean = isinstance(self.label_noise, float) and self.label_noise == 0
        if is_clean and data.num_classes is None:
            return data
        return flip_labels(key, data, self.label_noise)


class SharedFromFunction(FromFunction, SharedData, frozen=True, kw_only=True):
    """Data shared by all seeds, from a function `(*, settings) -> Dataset` or `-> (train, test)`."""

    def load(self, progress: Progress = silent) -> Loaded:
        """Call the function, and return its data with the token names."""
        found: object = self._call()
        several = found if type(found) is tuple else (found,)
        return Loaded(jax.jit(splits_of)(*map(_check_dataset, several)), True, list(_token_ids(several[0])))


def _check_dataset(data: object) -> Dataset:
    if not isinstance(data, Dataset):
        raise InputError(f"the function returned {shown(data)}; return a jaxattn.Dataset, such as a Corpus")
    return data


def _token_ids(data: Dataset) -> Sequence[str]:
    return Numbered(data.vocab_size) if isinstance(data, Corpus | Sequences) else ()


def data_class(function: Callable[..., Any], **attributes: Any) -> type[Any]:
    """Return the settings class for a data function.

    Data are sampled per seed if the function takes a key, and otherwise shared by all seeds.

    Args:
        function: the function. If its return annotation is a dataset class, that class is the type of the
            data.
        attributes: as in `settings_class`.

    Raises:
        InputError: as in `settings_class`; or an argument requires another argument that is missing.
    """
    dataset_type, parameters = hints_of(function).get("return"), inspect.signature(function).parameters
    if isinstance(dataset_type, type) and issubclass(dataset_type, Dataset):
        attributes["dataset_type"] = dataset_type
    location = attributes.get("kind") or function.__name__
    if "used" in parameters and "vocab_size" not in parameters:
        raise InputError(
            f"{location}: the function takes 'used', so it requires the setting 'vocab_size'; add it"
        )
    if any(p.kind is not p.KEYWORD_ONLY for p in parameters.values()):
        attributes |= {
            "pads_vocabulary": "used" in parameters,
            "has_task_key": "task_key" in parameters,
            "draws_batches": "sequences" in parameters,
        }
        return settings_class(function, DrawnFromFunction, **attributes)
    if "task_key" in parameters:
        raise InputError(
            f"{location}: a function that takes 'task_key' must also take 'key'; add 'key' as first argument"
        )
    return settings_class(function, SharedFromFunction, **attributes)
