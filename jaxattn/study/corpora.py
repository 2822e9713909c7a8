"""From the data table of a sweep file to the corpora that seeds run on."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import msgspec
from jax import Array

from jaxattn import data
from jaxattn.data import text
from jaxattn.data.corpus import Corpus
from jaxattn.data.text import Progress
from jaxattn.study.config import Assumption1, Data, Independent, MultiRelevant, Synthetic
from jaxattn.study.probes import Corpora, token_statistics


class Loaded(NamedTuple):
    """Corpora of some seeds: shared by all of them, or with a leading seed axis; names of the tokens."""

    corpora: Corpora
    shared: bool
    names: Sequence[str]


def load(config: Data, keys: Array, progress: Progress) -> Loaded:
    """Load or generate corpora.

    Args:
        config: the data table of a sweep file.
        keys: (S,) PRNG keys, one for each seed; a synthetic corpus is drawn afresh from each.
        progress: called with (description, done, total) while text is read.

    Returns:
        The corpora.

    Raises:
        InputError: data that cannot be read, sizes that do not fit.
    """
    if isinstance(config, Assumption1 | MultiRelevant | Independent):
        return Loaded(_draw_each(config, keys), False, [str(s) for s in range(config.vocab_size)])
    loaded = text.load(config, progress=progress)
    corpora = Corpora(loaded.train, loaded.test, jax.jit(token_statistics)(loaded.train))
    return Loaded(corpora, True, loaded.vocabulary.tokens)


@partial(jax.jit, static_argnums=0)
def _draw_each(config: Synthetic, keys: Array) -> Corpora:
    return jax.vmap(partial(_draw, config))(keys)


def _draw(config: Synthetic, key: Array) -> Corpora:
    train_key, test_key = jax.random.split(key)
    train = generate(config, train_key, config.sequences)
    test = generate(config, test_key, config.test_sequences) if config.test_sequences else None
    return Corpora(train, test, token_statistics(train))


def generate(config: Synthetic, key: Array, sequences: int) -> Corpus:
    """Draw one synthetic corpus of the given number of sequences."""
    sizes = msgspec.structs.asdict(config) | {"sequences": sequences}
    del sizes["test_sequences"]
    match config:
        case Assumption1():
            return data.assumption1(key, **sizes)
        case MultiRelevant():
            return data.multi_relevant(key, **sizes)
        case Independent():
            return data.independent(key, **sizes)


def seed_keys(seeds: Sequence[int]) -> tuple[Array, Array]:
    """Make the PRNG keys of every seed: (S,) for its data and (S,) for its parameters.

    The keys depend on the seed alone, neither on the grid nor on the other seeds: cells share their random
    numbers, so that differences between settings can be paired, and seeds can be added later.
    """
    numbers = jnp.asarray(seeds, jnp.uint32)
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.fold_in(jax.random.key(0), seed)))(numbers)
    return keys[:, 0], keys[:, 1]
