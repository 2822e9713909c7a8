"""Functions of the user's own as what they stand for: a generator, a loss, a start, a probe, a figure."""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax import Array

from jaxattn.data.generators import Numbered
from jaxattn.data.splits import Loaded, Splits, draw_splits, token_statistics
from jaxattn.probes.seen import Seen
from jaxattn.spec import Count, HalfShare
from jaxattn.study.kinds import Function


class OwnLoss(NamedTuple):
    """A loss `(logits, labels, *, settings) -> (n,)`."""

    function: Function

    def __call__(self, logits: Array, labels: Array) -> Any:
        """Compute the loss of every sequence."""
        return self.function.target(logits, labels, **self.function.settings)


class OwnProbe(NamedTuple):
    """A probe `(params, corpus, *, settings) -> number, (m,) or a dictionary of them`."""

    function: Function
    name: str = ""

    @property
    def metric(self) -> str:
        """The name of its number: its own, or the function's."""
        return self.name or self.function.target.__name__

    def measure(self, seen: Seen) -> dict[str, Any]:
        """Measure one seed on its training corpus."""
        found = self.function.target(seen.params, seen.corpora.train, **self.function.settings)
        return found if isinstance(found, dict) else {self.metric: found}


class OwnStart(NamedTuple):
    """A start `(key, drawn, *, settings) -> array like drawn`, which is what the model draws."""

    function: Function

    def __call__(self, key: Array, drawn: Array, tokens: Sequence[str]) -> Any:
        """Make the start of one parameter."""
        return self.function.target(key, drawn, **self.function.settings)


class OwnGenerator(NamedTuple):
    """A generator `(key, *, settings) -> Corpus`; every seed has a corpus of its own."""

    function: Function
    test_sequences: Count = 0
    validation_sequences: Count = 0
    label_noise: HalfShare = 0.0

    @property
    def shared(self) -> bool:
        """Every seed has corpora of its own."""
        return False

    @property
    def pads_vocabulary(self) -> bool:
        """A vocabulary of another size is another program."""
        return False

    @property
    def held_out(self) -> bool:
        """Whether there is a validation corpus."""
        return self.validation_sequences > 0

    @property
    def tokens(self) -> Sequence[str]:
        """Names of the V tokens: their numbers."""
        corpus = jax.eval_shape(lambda key: self.draw(key).train, jax.random.key(0))
        return Numbered(corpus.vocab_size)

    def draw(self, key: Array, used: Array | None = None) -> Splits:
        """Draw the corpora of one seed."""
        settings = self.function.settings

        def generate(key: Array, sequences: int) -> Any:
            own = settings | {"sequences": sequences} if "sequences" in settings else settings
            return self.function.target(key, **own)

        return draw_splits(
            generate,
            key,
            sequences=settings.get("sequences", 0),
            test_sequences=self.test_sequences,
            validation_sequences=self.validation_sequences,
            label_noise=self.label_noise,
        )


class OwnCorpus(NamedTuple):
    """A corpus `(*, settings) -> Corpus` that all seeds share."""

    function: Function

    @property
    def shared(self) -> bool:
        """All seeds have the same corpora."""
        return True

    @property
    def pads_vocabulary(self) -> bool:
        """A vocabulary of another size is another program."""
        return False

    @property
    def held_out(self) -> bool:
        """There is no validation corpus."""
        return False

    def load(self, progress: Any = None) -> Loaded:
        """Make the corpus."""
        corpus = self.function.target(**self.function.settings)
        splits = Splits(corpus, jax.jit(token_statistics)(corpus))
        return Loaded(splits, True, [str(s) for s in range(corpus.vocab_size)])


class OwnFigure(NamedTuple):
    """A figure `(results, *, settings) -> Drawn or matplotlib figure`."""

    function: Function


def data_holder(target: Any) -> Any:
    """Take a function whose first argument is a key for a generator, one without for a shared corpus."""
    kinds = [p.kind for p in inspect.signature(target).parameters.values()]
    return OwnCorpus if all(kind is inspect.Parameter.KEYWORD_ONLY for kind in kinds) else OwnGenerator
