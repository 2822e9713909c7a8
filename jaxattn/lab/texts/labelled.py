"""Labelled rows of a split: mapping of raw labels to classes, balancing, and held-out validation rows."""

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxattn.core.errors import InputError

Label = int | float | str
# One or several raw labels that form one class.
ClassLabels = Label | tuple[Label, ...]

_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.0*)?")
_BOOLEANS = {"true": 1, "false": 0}
IGNORED = -1


class LabelledTexts(NamedTuple):
    """Texts as word ids: the concatenated ids of all texts, (Σ T,) uint32, and text lengths, (n,) int64."""

    numbers: np.ndarray
    lengths: np.ndarray


class Labelled(NamedTuple):
    """Rows of a split whose label is one of the classes: texts, class indices (n,), and row locations."""

    texts: LabelledTexts
    classes: np.ndarray
    places: list[str]

    def keep(self, kept: np.ndarray) -> "Labelled":
        """Return only the rows for which `kept`, (n,) bool, is True."""
        numbers = self.texts.numbers[np.repeat(kept, self.texts.lengths)]
        places = list(itertools.compress(self.places, kept))
        return Labelled(LabelledTexts(numbers, self.texts.lengths[kept]), self.classes[kept], places)


def is_missing(value: Any) -> bool:
    """Return True if a label or another table value is null or NaN."""
    return value is None or (isinstance(value, float) and value != value)


def plain_text(label: Any) -> Any:
    """Normalise a raw label for comparison.

    Integers and booleans become ints: 1, 1.0, True, "1", "1.0" and "true" all become 1. Null, NaN and the
    empty string become None. The strings "nan", "NA", "null" and "None" are ordinary labels. Non-integer
    numbers become strings.
    """
    if isinstance(label, str):
        if _WHOLE.fullmatch(label):
            return int(label.partition(".")[0])
        return _BOOLEANS.get(label.lower(), label or None)
    if is_missing(label):
        return None
    if isinstance(label, float):
        return int(label) if label.is_integer() else str(label)
    return int(label) if isinstance(label, bool) else label


def members(label: ClassLabels) -> tuple[Label, ...]:
    """Return the raw labels that form one class."""
    return label if isinstance(label, tuple) else (label,)


def class_numbers(labels: Sequence[ClassLabels], ignored: Sequence[Label]) -> dict[Any, int]:
    """Return a dictionary from each normalised raw label to its class index, or to IGNORED.

    Raises:
        InputError: a label occurs twice.
    """
    numbers: dict[Any, int] = {}
    rows = [(label, k) for k, every in enumerate(labels) for label in members(every)]
    for label, number in [*rows, *((label, IGNORED) for label in ignored)]:
        if plain_text(label) in numbers:
            raise InputError(f"labels, ignore_labels: {label!r} occurs twice; list each label once")
        numbers[plain_text(label)] = number
    return numbers


def balanced(source: Any, split: str, labelled: Labelled) -> Labelled:
    """Subsample each class to the size of the smallest class.

    Raises:
        InputError: a class has no rows.
    """
    sizes = np.bincount(labelled.classes, minlength=len(source.labels))
    if not sizes.all():
        raise InputError(
            f"data.balance: no row in the {split} split has the label "
            f"{source.labels[int(sizes.argmin())]!r}; remove it from data.labels, or unset data.balance"
        )
    return labelled.keep(_place_in_class(labelled.classes) < sizes.min())


def held_out(source: Any, labelled: Labelled) -> tuple[Labelled, Labelled]:
    """Split the training rows into training and validation rows.

    Raises:
        InputError: the validation fraction is so small that no rows are held out.
    """
    # The small offset corrects rounding errors, so that a fraction of 0.29 selects 29 of 100 rows.
    numbers = np.floor(source.validation * np.bincount(labelled.classes) + 1e-6)
    is_held = _place_in_class(labelled.classes) < numbers[labelled.classes]
    if not is_held.any():
        raise InputError(
            f"data.validation: a fraction of {source.validation} selects none of the {len(is_held)} training "
            "rows; increase the fraction, or set it to 0"
        )
    return labelled.keep(~is_held), labelled.keep(is_held)


def _place_in_class(classes: np.ndarray) -> np.ndarray:
    # Shuffle with raw random bits, because only these are the same in every version of NumPy.
    shuffled = np.argsort(np.random.PCG64(0).random_raw(len(classes)), kind="stable")
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    sizes = np.bincount(classes)
    places = np.empty(len(classes), int)
    places[by_class] = np.arange(len(classes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places
