"""Conversion of labelled texts to corpora: vocabulary of the training split, and token ids."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jaxattn.base import Progress, silent
from jaxattn.core.errors import InputError
from jaxattn.core.settings import class_name
from jaxattn.data import sequences
from jaxattn.data.corpus import Corpus, class_labels
from jaxattn.data.sequences import Sequences
from jaxattn.data.token_ids import count_tokens, from_counted
from jaxattn.lab.storage.files import cache_folder
from jaxattn.lab.texts import cache
from jaxattn.lab.texts.escapes import has_escaped_breaks, readings, tokenise_escaped
from jaxattn.lab.texts.labelled import (
    IGNORED,
    Labelled,
    LabelledTexts,
    balanced,
    class_numbers,
    held_out,
    plain_text,
)
from jaxattn.lab.texts.words import tokenise, unsegmented

# Format version, included in the cache key. Change it whenever the tokeniser or the stored arrays change.
_FORMAT = b"words, bags 3"
_STRIDE = 512
# Names of the arrays stored for a split: as bags of words, and as sequences.
_BAGS = ("tokens", "counts", "distinct", "classes")
_ORDERED = ("ids", "lengths", "classes")


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of V words; the index of a word is its token id.

    Attributes:
        tokens: the words, in decreasing order of count and then alphabetically, or in the given order if a
            vocabulary was given.
        counts: number of occurrences of each word in the training split.
    """

    tokens: tuple[str, ...]
    counts: tuple[int, ...]

    def __len__(self) -> int:
        """Return the vocabulary size V."""
        return len(self.tokens)

    @cached_property
    def index(self) -> dict[str, int]:
        """Return a mapping from word to token id."""
        return {token: i for i, token in enumerate(self.tokens)}


class TextCorpora(NamedTuple):
    """Text data set, converted to token ids.

    Attributes:
        train: training split.
        test: test split; None if the source has no test split.
        vocabulary: the words that the token ids refer to.
        validation: held-out part of the training split; None if nothing was held out.
    """

    train: Corpus | Sequences
    test: Corpus | Sequences | None
    vocabulary: Vocabulary
    validation: Corpus | Sequences | None = None


def build_vocabulary(texts: Iterable[str], *, min_count: int = 1, max_vocab: int | None = None) -> Vocabulary:
    """Build a vocabulary of the `max_vocab` most frequent words that occur at least `min_count` times.

    If `max_vocab` is None, the size is unlimited.

    Raises:
        InputError: no word occurs at least `min_count` times.

    Example:
        >>> ja.texts.build_vocabulary(["A good film", "a bad film"]).tokens
        ('a', 'film', 'bad', 'good')
    """
    words = _numbering()
    return _select(words, _number(map(tokenise, texts), words), min_count, max_vocab)


def encode(
    texts: Iterable[str], vocabulary: Vocabulary, *, max_length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Convert n texts to the ids of their vocabulary words, with at most the first `max_length` ids per text.

    Returns:
        Concatenated token ids of all texts, (Σ T,) int32, and the number of ids in each text, (n,) int64,
        which may be 0.

    Example:
        >>> vocabulary = ja.texts.build_vocabulary(["A good film", "a bad film"])
        >>> ja.texts.encode(["a good, good plot"], vocabulary)
        (array([0, 3, 3], dtype=int32), array([3]))
    """
    words = _numbering()
    return _known(_number(map(tokenise, texts), words), _token_ids(words, vocabulary), max_length)


def load_text(
    source: Any,
    *,
    tokens: Sequence[str] | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress = silent,
) -> TextCorpora:
    """Read a text data set, or load it from the cache if its files and settings are unchanged.

    Args:
        source: settings of the source; see `readers`.
        tokens: vocabulary; entry k is token k. Defaults to the vocabulary of the training split, with
            `min_count` and `max_vocab`.
        cache_dir: folder of the cache; see `storage.files.cache_folder`.
        progress: progress callback.

    Returns:
        The corpora on the default device, and the vocabulary.

    Raises:
        InputError: settings are invalid, files are missing or cannot be read, a label is unknown, a class has
            no training text, a text contains no word in the vocabulary (unless `source.empty` is "drop"), or
            a token occurs twice.
    """
    source.check()
    given = None if tokens is None else _distinct(tokens)
    asked = b"" if given is None else msgspec.json.encode(given)
    key = cache.source_digest(source.files(), _settings(source) + asked)
    path = cache_folder(cache_dir) / f"text-{key}.npz"
    splits = (*source.splits, "validation") if source.validation else source.splits
    names = ["tokens", "counts", *(f"{split}_{part}" for split in splits for part in _parts(source))]

    def note(text: str) -> None:
        progress(text, 0, 0)

    arrays = cache.read_cached(path, names, note)
    if arrays is None:
        arrays = _arrays(source, given, progress)
        cache.write_cached(path, arrays, note)
    words = msgspec.json.decode(arrays["tokens"].tobytes(), type=tuple[str, ...])
    vocabulary = Vocabulary(words, tuple(arrays["counts"].tolist()))
    corpora: dict[str, Corpus | Sequences] = {}
    for split in splits:
        progress("laying out", len(corpora), len(splits))
        *stored, classes = (arrays[f"{split}_{part}"].astype(np.int64) for part in _parts(source))
        corpora[split] = _corpus_of(source, stored, classes, len(vocabulary))
        _check_classes(source, split, classes, note)
    progress("laying out", len(corpora), len(splits))
    return TextCorpora(corpora["train"], corpora.get("test"), vocabulary, corpora.get("validation"))


def _parts(source: Any) -> tuple[str, ...]:
    return _ORDERED if source.order == "kept" else _BAGS


def _corpus_of(
    source: Any, stored: Sequence[np.ndarray], classes: np.ndarray, vocab_size: int
) -> Corpus | Sequences:
    number = len(source.labels)
    labels = class_labels(classes, number)
    if source.order == "kept":
        ids, lengths = stored
        targets = labels.astype(np.int32)
        return sequences.from_flat(ids, lengths, targets, vocab_size=vocab_size, classes=number)
    names = source.class_names or tuple(map(class_name, source.labels))
    distinct, counts, sizes = stored
    return from_counted(
        distinct, counts, sizes, labels, vocab_size=vocab_size, num_classes=number, class_names=names
    )


def _check_classes(source: Any, split: str, classes: np.ndarray, note: cache.Note) -> None:
    for number in np.setdiff1d(np.arange(len(source.labels)), classes):
        message = f"data.labels: no row in the {split} split has the label {source.labels[number]!r}"
        if split == "train":
            raise InputError(f"{message}; remove it from data.labels")
        note(message)


def _settings(source: Any) -> bytes:
    fields = {"kind": type(source).__name__} | msgspec.to_builtins(source)
    # Exclude unset settings from the key, so that new settings do not invalidate existing cache files.
    kept = {name: x for name, x in fields.items() if name not in source.inert and x is not None}
    return _FORMAT + msgspec.json.encode(kept, order="sorted")


def _distinct(tokens: Sequence[str]) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if seen.setdefault(token, number) != number:
            raise InputError(
                f"vocabulary: {token!r:.60} is token {seen[token]} and token {number}; list each token once"
            )
    return tuple(tokens)


def _arrays(source: Any, given: tuple[str, ...] | None, progress: Progress) -> dict[str, np.ndarray]:
    words = _numbering()
    labelled = {split: _read(source, split, words, progress) for split in source.splits}
    labelled = _with_breaks(labelled, words, progress)
    if source.balance:
        labelled = {split: balanced(source, split, rows) for split, rows in labelled.items()}
    if source.validation:
        labelled["train"], labelled["validation"] = held_out(source, labelled["train"])
    texts = labelled["train"].texts
    if given is None:
        vocabulary = _select(words, texts, source.min_count, source.max_vocab)
    else:
        vocabulary = _counted(words, texts, given)
    arrays = {
        "tokens": np.frombuffer(msgspec.json.encode(vocabulary.tokens), np.uint8),
        "counts": np.array(vocabulary.counts),
    }
    mapping = _token_ids(words, vocabulary)
    for split, (texts, classes, places) in labelled.items():
        ids, lengths = _known(texts, mapping, source.max_length)
        kept = lengths > 0
        if source.empty == "error" and not kept.all():
            raise InputError(
                f"data: {split} split, {places[int(np.argmin(kept))]}: this row contains no word of the "
                'vocabulary; set data.empty = "drop" to drop such rows, or lower data.min_count'
            )
        if not kept.any():
            raise InputError(
                f"data: no row in the {split} split contains a word of the vocabulary; "
                + ("lower data.min_count" if given is None else "check that the vocabulary is in lower case")
            )
        ordered = source.order == "kept"
        own = (ids, lengths[kept]) if ordered else count_tokens(ids, lengths[kept], len(vocabulary))
        for part, values in zip(_parts(source), (*own, classes[kept]), strict=True):
            arrays[f"{split}_{part}"] = values.astype(np.min_scalar_type(int(values.max())))
    return arrays


def _read(source: Any, split: str, words: defaultdict[str, int], progress: Progress) -> Labelled:
    classes: list[int] = []
    places: list[str] = []
    numbers = class_numbers(source.labels, source.ignore_labels)
    unescape = source.escapes != "kept"
    unlabelled = 0

    def texts() -> Iterator[list[str]]:
        nonlocal unlabelled
        total, rows = source.read(split)
        done = 0
        progress(f"reading {split}", done, total)
        for done, (location, text, label) in enumerate(rows, 1):
            if done % _STRIDE == 0:
                progress(f"reading {split}", done, total)
            number = _class_of(source, split, location, label, numbers)
            if number is None:
                unlabelled += 1
            elif number != IGNORED:
                classes.append(number)
                places.append(location)
                yield tokenise_escaped(text) if unescape and has_escaped_breaks(text) else tokenise(text)
        progress(f"reading {split}", done, done)

    numbered = _number(texts(), words)
    if not places:
        raise InputError(
            f"data.labels: no row in the {split} split has one of the labels {list(source.labels)}; "
            "check the labels"
        )
    if unlabelled:
        progress(f"data.empty: {unlabelled:,} rows of the {split} split have no label and are dropped", 0, 0)
    return Labelled(numbered, np.array(classes), places)


def _with_breaks(
    labelled: dict[str, Labelled], words: defaultdict[str, int], progress: Progress
) -> dict[str, Labelled]:
    """Replace marked words by their readings, and report escaped line breaks and texts without spaces."""
    counts = np.bincount(labelled["train"].texts.numbers, minlength=len(words))
    if message := unsegmented(words, counts):
        progress(message, 0, 0)
    mapping, is_break = readings(words, counts)
    changes = mapping != np.arange(len(mapping))
    if not changes.any():
        return labelled
    for split, rows in labelled.items():
        numbers, lengths = rows.texts
        changed = np.unique(np.repeat(np.arange(len(lengths)), lengths)[changes[numbers]]).size
        read, lengths = _known(rows.texts, mapping, None)
        labelled[split] = rows._replace(texts=LabelledTexts(read.astype(np.uint32), lengths))
        if changed and is_break:
            message = rf"data.escapes: in {changed:,} texts of the {split} split \n is read as a line break"
            progress(f'{message}; set data.escapes = "kept" to keep it as two characters', 0, 0)
    return labelled


def _class_of(source: Any, split: str, location: str, label: Any, numbers: Mapping[Any, int]) -> int | None:
    """Return the class index of a row, IGNORED, or None if the row has no label and may be dropped."""
    name = plain_text(label)
    # A list or table cannot be a label, and is not hashable.
    number = numbers.get(name) if name.__hash__ else None
    if number is None and (name is not None or source.empty == "error"):
        remedy = (
            'set data.empty = "drop" to drop such rows'
            if name is None
            else "add it to data.labels or data.ignore_labels"
        )
        raise InputError(
            f"data: {split} split, {location}: label {label!r:.60} is not one of {list(source.labels)}; "
            f"{remedy}"
        )
    return number


def _numbering() -> defaultdict[str, int]:
    words: defaultdict[str, int] = defaultdict()
    words.default_factory = words.__len__
    return words


def _number(texts: Iterable[list[str]], words: defaultdict[str, int]) -> LabelledTexts:
    numbers, ends = array("I"), array("Q")
    for text in texts:
        numbers.extend(map(words.__getitem__, text))
        ends.append(len(numbers))
    return LabelledTexts(np.array(numbers, np.uint32), np.diff(np.array(ends, np.int64), prepend=0))


def _select(
    words: Mapping[str, int], texts: LabelledTexts, min_count: int, max_vocab: int | None
) -> Vocabulary:
    counts = np.bincount(texts.numbers, minlength=len(words)).tolist()
    frequent = [(-count, word) for word, count in zip(words, counts, strict=True) if count >= min_count]
    if not frequent:
        raise InputError(
            f"data.min_count: no word occurs {min_count} or more times in the training split; "
            "set it to at most "
            f"{max(counts, default=0)}"
        )
    chosen = sorted(frequent)[:max_vocab]
    return Vocabulary(tuple(word for _, word in chosen), tuple(-count for count, _ in chosen))


def _counted(words: Mapping[str, int], texts: LabelledTexts, tokens: tuple[str, ...]) -> Vocabulary:
    ids, _ = _known(texts, _token_ids(words, Vocabulary(tokens, ())), None)
    return Vocabulary(tokens, tuple(np.bincount(ids, minlength=len(tokens)).tolist()))


def _token_ids(words: Iterable[str], vocabulary: Vocabulary) -> np.ndarray:
    return np.array([vocabulary.index.get(word, -1) for word in words], np.int32)


def _known(
    texts: LabelledTexts, mapping: np.ndarray, max_length: int | None
) -> tuple[np.ndarray, np.ndarray]:
    ids = mapping[texts.numbers]
    known = ids >= 0
    before = np.concatenate([[0], np.cumsum(known)])
    ends = np.cumsum(texts.lengths)
    start, end = before[ends - texts.lengths], before[ends]
    if max_length is None:
        return ids[known], end - start
    known &= before[:-1] - np.repeat(start, texts.lengths) < max_length
    return ids[known], np.minimum(end - start, max_length)
