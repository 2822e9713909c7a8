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
from jaxattn.data.synthetic import check_sizes
from jaxattn.data.text import Progress
from jaxattn.study import devices
from jaxattn.study.config import Assumption1, Data, Independent, MultiRelevant, Synthetic
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
    if isinstance(config, Assumption1 | MultiRelevant | Independent):
        drawn = _draw_each(config, keys, numbers or {})
        return Loaded(drawn, False, [str(s) for s in range(config.vocab_size)])
    loaded = text.load(config, progress=progress)
    corpora = Corpora(loaded.train, loaded.test, jax.jit(token_statistics)(loaded.train))
    return Loaded(corpora, True, loaded.vocabulary.tokens)


def is_text(config: Data) -> bool:
    """Tell whether the data is text, which all lanes share."""
    return not isinstance(config, Assumption1 | MultiRelevant | Independent)


def check(config: Data) -> None:
    """Raise InputError if no synthetic corpus has these sizes; texts are not looked at."""
    if isinstance(config, Assumption1 | MultiRelevant | Independent):
        for sequences in {config.sequences, config.test_sequences or config.sequences}:
            check_sizes(
                vocab_size=config.vocab_size,
                relevant=config.relevant,
                length=config.length,
                sequences=sequences,
                num_classes=config.num_classes,
                relevant_per_sequence=getattr(config, "relevant_per_sequence", 1),
            )


@partial(jax.jit, static_argnums=0)
def _draw_each(config: Synthetic, keys: Array, numbers: Numbers) -> Corpora:
    return devices.over_lanes(partial(_draw, config), (0, 0))(keys, numbers)


def _draw(config: Synthetic, key: Array, numbers: Numbers) -> Corpora:
    # Shapes are those of the largest vocabulary; a lane may use its first tokens only.
    used = numbers.get(("data", "vocab_size"))
    own = put(config, "data", {key: x for key, x in numbers.items() if key != ("data", "vocab_size")})
    train_key, test_key = jax.random.split(key)
    train = generate(own, train_key, config.sequences, used)
    test = generate(own, test_key, config.test_sequences, used) if config.test_sequences else None
    return Corpora(train, test, token_statistics(train))


def generate(config: Synthetic, key: Array, sequences: int, used: Array | None = None) -> Corpus:
    """Draw one synthetic corpus of some sequences, using all tokens or the first ones."""
    sizes = msgspec.structs.asdict(config) | {"sequences": sequences, "used": used}
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
