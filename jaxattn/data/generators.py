"""Synthetic corpora: settings classes that sample corpora for each seed."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from jax import Array

from jaxattn.base import Dataset, DrawnData
from jaxattn.core.errors import InputError
from jaxattn.core.settings import MOST, Count, HalfShare, PositiveInt, Share
from jaxattn.data.corpus import Corpus
from jaxattn.data.interactions import check_negation, check_xor, negation, xor
from jaxattn.data.splits import Splits, draw_batch, draw_splits, takes_task_key, task_key_of
from jaxattn.data.synthetic import (
    assumption1,
    check_sizes,
    check_topics,
    independent,
    multi_relevant,
    topics,
)

# Settings of every generator that the study handles.
_OF_THE_STUDY = ("test_sequences", "validation_sequences", "label_noise")


class Numbered(Sequence[str]):
    """The numbers 0 to V - 1 as names of tokens, converted to text on access."""

    def __init__(self, vocab_size: int) -> None:
        """Store V."""
        self._numbers = range(vocab_size)

    def __len__(self) -> int:
        """Return V."""
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        """Return one number, or a list for a slice."""
        found = self._numbers[place]
        return [str(s) for s in found] if isinstance(place, slice) else str(found)


class Generator(DrawnData, frozen=True, kw_only=True):
    """Synthetic corpus that is sampled for every seed. Subclasses define `generate`.

    `label_noise` replaces each training label with this probability by another class. The validation
    sequences are sampled like the training sequences, including label noise; the test labels have no noise.

    Attributes:
        pads_vocabulary: whether `generate` takes `used`, so that cells of different V share a program.
        function: the pure function that `generate` calls, if there is one.
        vocab_size: V, number of tokens.
        length: T, length of a sequence.
        sequences: n, number of training sequences.
        test_sequences: number of test sequences, whose labels are free of noise.
        validation_sequences: number of validation sequences, which have the same label noise as the training
            sequences.
        label_noise: probability that a training label is replaced by another class.
    """

    function: ClassVar[Callable[..., Corpus] | None] = None

    vocab_size: PositiveInt
    length: PositiveInt
    sequences: PositiveInt
    test_sequences: Count = 0
    validation_sequences: Count = 0
    label_noise: HalfShare = 0.0

    @property
    def gives(self) -> type[Dataset]:
        """Type of the data."""
        return Corpus

    @property
    def held_out(self) -> bool:
        """True if there are validation data."""
        return self.validation_sequences > 0

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens, which are their numbers."""
        return Numbered(self.vocab_size)

    def generate(self, key: Array, sequences: int, used: Array | None = None) -> Corpus:
        """Sample one corpus with clean labels. The function is pure, for jit and vmap.

        A subclass may have another argument `task_key`: a PRNG key that is the same for all samples of a
        seed.

        Args:
            key: PRNG key, different for training, test and validation data and for every fresh batch.
            sequences: number of sequences n.
            used: number of the V tokens to sample from, may be traced; all if None.

        Returns:
            The corpus.
        """
        if self.function is None:
            raise NotImplementedError(f"{type(self).__name__}.generate")
        settings = {name: x for name, x in msgspec.structs.asdict(self).items() if name not in _OF_THE_STUDY}
        return type(self).function(key, **settings | {"sequences": sequences, "used": used})  # type: ignore[misc]

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Sample the corpora of one seed; see `draw_splits`."""
        task_key = task_key_of(key) if takes_task_key(self.generate) else None
        return draw_splits(
            self._drawing(used, task_key),
            key,
            task_key=task_key,
            sequences=self.sequences,
            test_sequences=self.test_sequences,
            validation_sequences=self.validation_sequences,
            label_noise=self.label_noise,
        )

    def batch(
        self, key: Array, examples: int, used: Array | None = None, task_key: Array | None = None
    ) -> Dataset:
        """Sample new sequences; see `draw_batch`."""
        return draw_batch(self._drawing(used, task_key), key, examples, self.label_noise)

    def _drawing(self, used: Array | None, task_key: Array | None) -> Callable[[Array, int], Corpus]:
        # A custom generator may lack the arguments for padding and for a shared task.
        given: dict[str, Any] = {"used": used, "task_key": task_key}
        return partial(self.generate, **{name: x for name, x in given.items() if x is not None})

    def check(self, *context: object) -> None:
        """Raise InputError if no corpus of some split has these sizes."""
        for sequences in {self.sequences, self.test_sequences, self.validation_sequences} - {0}:
            if (tokens := sequences * self.length) > MOST:
                raise InputError(
                    f"length: {sequences:,} sequences of {self.length:,} are {tokens:,} tokens, more than "
                    f"{MOST:,}; use fewer or shorter sequences"
                )
            self.check_sizes(sequences)

    def check_sizes(self, sequences: int) -> None:
        """Raise InputError if no corpus with this number of sequences has these sizes."""


class _Classes(Generator, frozen=True, kw_only=True):
    """Generators with relevant tokens of K classes."""

    overridable: ClassVar[frozenset[str]] = Generator.overridable | {"relevant_per_sequence"}
    pads_vocabulary: ClassVar[bool] = True

    relevant: PositiveInt
    num_classes: Annotated[int, msgspec.Meta(ge=2)] = 2

    @property
    def relevant_per_sequence(self) -> int:
        """Number of relevant tokens of a sequence."""
        return 1

    def check_sizes(self, sequences: int) -> None:
        """Raise InputError with the size if no corpus has these sizes."""
        sizes = (self.vocab_size, self.relevant, self.length, sequences, self.num_classes)
        check_sizes(*sizes, relevant_per_sequence=self.relevant_per_sequence)


class Assumption1(_Classes, frozen=True, kw_only=True):
    """Sequences with exactly one completely positive or negative token; see `assumption1`."""

    function: ClassVar = staticmethod(assumption1)


class MultiRelevant(_Classes, frozen=True, kw_only=True):
    """Sequences with several relevant tokens; see `multi_relevant`."""

    function: ClassVar = staticmethod(multi_relevant)

    relevant_per_sequence: PositiveInt


class Independent(_Classes, frozen=True, kw_only=True):
    """Tokens that are independent given the label; see `independent`."""

    function: ClassVar = staticmethod(independent)

    max_posterior_difference: Share = 0.9
    relevant_mass: Share | None = None


class Topics(_Classes, frozen=True, kw_only=True):
    """Topic words of the sequence's class and common words; see `topics`."""

    function: ClassVar = staticmethod(topics)

    topic_words: PositiveInt
    min_purity: Share = 0.0
    max_purity: Share = 1.0

    def check_sizes(self, sequences: int) -> None:
        """Raise InputError with the size if no corpus has these sizes."""
        sizes = (self.vocab_size, self.relevant, self.topic_words, self.length, sequences, self.num_classes)
        check_topics(*sizes)


class Xor(Generator, frozen=True, kw_only=True):
    """The label is the XOR of two tokens, so α = 0 for every token; see `xor`."""

    pads_vocabulary: ClassVar[bool] = True
    function: ClassVar = staticmethod(xor)

    pairs: PositiveInt = 1

    def check_sizes(self, sequences: int) -> None:
        """Raise InputError with the size if no corpus has these sizes."""
        check_xor(self.vocab_size, self.length, sequences, self.pairs)


class Negation(Generator, frozen=True, kw_only=True):
    """One relevant token per sequence, whose class a negation token flips; see `negation`."""

    pads_vocabulary: ClassVar[bool] = True
    function: ClassVar = staticmethod(negation)

    relevant: PositiveInt
    negated: Share = 0.5

    def check_sizes(self, sequences: int) -> None:
        """Raise InputError with the size if no corpus has these sizes."""
        check_negation(self.vocab_size, self.relevant, self.length, sequences)


GENERATORS: dict[str, type[Generator]] = {
    "assumption1": Assumption1,
    "multi_relevant": MultiRelevant,
    "independent": Independent,
    "topics": Topics,
    "xor": Xor,
    "negation": Negation,
}
