"""From the data table of a sweep file to the corpora that seeds run on."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import msgspec
import numpy as np
from jax import Array

from jaxattn import data
from jaxattn.data import text
from jaxattn.data.corpus import Corpus
from jaxattn.data.interactions import check_negation, check_xor
from jaxattn.data.noise import flip_labels
from jaxattn.data.synthetic import check_sizes, check_topics
from jaxattn.data.text import Progress
from jaxattn.study import devices
from jaxattn.study.config import (
    Assumption1,
    Data,
    Independent,
    MultiRelevant,
    Negation,
    Synthetic,
    Topics,
    Xor,
)
from jaxattn.study.groups import Numbers, put
from jaxattn.study.probes import Corpora, token_statistics


class Loaded(NamedTuple):
    """Corpora of some lanes: shared by all of them, or with a leading lane axis; names of the tokens."""

    corpora: Corpora
    shared: bool
    names: Sequence[str]


def load(config: Data, keys: Array, progress: Progress, numbers: Numbers | None = None) -> Loaded:
    """Load or generate corpora.

    Args:
        config: the data table of a sweep file.
        keys: (L,) PRNG keys, one for each lane; a synthetic corpus is drawn afresh from each.
        progress: called with (description, done, total) while text is read.
        numbers: what lanes have of their own, (L,) each.

    Returns:
        The corpora.

    Raises:
        InputError: data that cannot be read, sizes that do not fit.
    """
    if isinstance(config, Synthetic):
        drawn = _draw_each(config, keys, numbers or {})
        return Loaded(drawn, False, [str(s) for s in range(config.vocab_size)])
    loaded = text.load(config, progress=progress)
    statistics = jax.jit(token_statistics)(loaded.train)
    corpora = Corpora(loaded.train, loaded.test, statistics, loaded.validation)
    return Loaded(corpora, True, loaded.vocabulary.tokens)


def is_text(config: Data) -> bool:
    """Tell whether the data is text, which all lanes share."""
    return not isinstance(config, Synthetic)


def check(config: Data) -> None:
    """Raise InputError if no synthetic corpus has these sizes; texts are not looked at."""
    if isinstance(config, Synthetic):
        for sequences in {config.sequences, config.test_sequences, config.validation_sequences} - {0}:
            _check(config, sequences)


def _check(config: Synthetic, sequences: int) -> None:
    sizes = {"vocab_size": config.vocab_size, "length": config.length, "sequences": sequences}
    match config:
        case Xor():
            check_xor(**sizes, pairs=config.pairs)
        case Negation():
            check_negation(**sizes, relevant=config.relevant)
        case Topics():
            sizes |= {"relevant": config.relevant, "num_classes": config.num_classes}
            check_topics(**sizes, topic_words=config.topic_words)
        case Assumption1() | MultiRelevant() | Independent():
            sizes |= {"relevant": config.relevant, "num_classes": config.num_classes}
            check_sizes(**sizes, relevant_per_sequence=getattr(config, "relevant_per_sequence", 1))


@partial(jax.jit, static_argnums=0)
def _draw_each(config: Synthetic, keys: Array, numbers: Numbers) -> Corpora:
    return devices.over_lanes(partial(_draw, config), (0, 0))(keys, numbers)


def _draw(config: Synthetic, key: Array, numbers: Numbers) -> Corpora:
    # Shapes are those of the largest vocabulary; a lane may use its first tokens only.
    used = numbers.get(("data", "vocab_size"))
    own = put(config, "data", {key: x for key, x in numbers.items() if key != ("data", "vocab_size")})
    train_key, test_key = jax.random.split(key)
    # Folded in, so that the keys of training and test data stay what they are without these.
    validation_key, noise_key, other_noise_key = (jax.random.fold_in(key, place) for place in (2, 3, 4))
    train = flip_labels(noise_key, generate(own, train_key, config.sequences, used), own.label_noise)
    test = validation = None
    if config.test_sequences:
        test = generate(own, test_key, config.test_sequences, used)
    if config.validation_sequences:
        clean = generate(own, validation_key, config.validation_sequences, used)
        validation = flip_labels(other_noise_key, clean, own.label_noise)
    return Corpora(train, test, token_statistics(train), validation)


def generate(config: Synthetic, key: Array, sequences: int, used: Array | None = None) -> Corpus:
    """Draw one synthetic corpus of some sequences with clean labels, using all tokens or the first ones."""
    sizes = msgspec.structs.asdict(config) | {"sequences": sequences, "used": used}
    for not_of_the_generator in ("test_sequences", "validation_sequences", "label_noise"):
        del sizes[not_of_the_generator]
    match config:
        case Assumption1():
            return data.assumption1(key, **sizes)
        case MultiRelevant():
            return data.multi_relevant(key, **sizes)
        case Independent():
            return data.independent(key, **sizes)
        case Topics():
            return data.topics(key, **sizes)
        case Xor():
            return data.xor(key, **sizes)
        case Negation():
            return data.negation(key, **sizes)


def seed_keys(seeds: Sequence[int]) -> tuple[Array, Array]:
    """Make the PRNG keys of every seed: (S,) for its data and (S,) for its parameters.

    The keys depend on the seed alone, neither on the grid nor on the other seeds: cells share their random
    numbers, so that differences between settings can be paired, and seeds can be added later.
    """
    return _keys(np.asarray(seeds, np.uint32))


@jax.jit
def _keys(seeds: Array) -> tuple[Array, Array]:
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.fold_in(jax.random.key(0), seed)))(seeds)
    return keys[:, 0], keys[:, 1]
