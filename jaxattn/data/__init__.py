"""Corpora: bags of token counts, vocabularies, generators, readers, importance."""

from typing import TYPE_CHECKING

from jaxattn.core.lazy import lazy
from jaxattn.data.corpus import Corpus, from_draws, from_flat, from_sequences
from jaxattn.data.generators import (
    GENERATORS,
    Assumption1,
    Generator,
    Independent,
    MultiRelevant,
    Negation,
    Topics,
    Xor,
)
from jaxattn.data.importance import (
    average_signed_frequency,
    class_counts,
    completely_relevant,
    irrelevant,
    posterior_difference,
    token_counts,
)
from jaxattn.data.interactions import negation, xor
from jaxattn.data.sequences import Sequences, Vectors
from jaxattn.data.splits import Loaded, Splits, TokenStatistics, flip_labels, token_statistics
from jaxattn.data.synthetic import assumption1, independent, multi_relevant, topics

if TYPE_CHECKING:
    from jaxattn.lab.texts import readers, text
    from jaxattn.lab.texts.readers import READERS, Folder, Lines, Tfds
    from jaxattn.lab.texts.source import Source
    from jaxattn.lab.texts.tables import Csv, Jsonl, Parquet

__all__ = [
    "GENERATORS",
    "READERS",
    "Assumption1",
    "Corpus",
    "Csv",
    "Folder",
    "Generator",
    "Independent",
    "Jsonl",
    "Lines",
    "Loaded",
    "MultiRelevant",
    "Negation",
    "Parquet",
    "Sequences",
    "Source",
    "Splits",
    "Tfds",
    "TokenStatistics",
    "Topics",
    "Vectors",
    "Xor",
    "assumption1",
    "average_signed_frequency",
    "class_counts",
    "completely_relevant",
    "flip_labels",
    "from_draws",
    "from_flat",
    "from_sequences",
    "independent",
    "irrelevant",
    "multi_relevant",
    "negation",
    "posterior_difference",
    "readers",
    "text",
    "token_counts",
    "token_statistics",
    "topics",
    "xor",
]

# Readers of texts belong to the lab.
_NAMES = {
    "READERS": "jaxattn.lab.texts.readers",
    "Csv": "jaxattn.lab.texts.tables",
    "Folder": "jaxattn.lab.texts.readers",
    "Jsonl": "jaxattn.lab.texts.tables",
    "Lines": "jaxattn.lab.texts.readers",
    "Parquet": "jaxattn.lab.texts.tables",
    "Source": "jaxattn.lab.texts.source",
    "Tfds": "jaxattn.lab.texts.readers",
}
_MODULES = {name: f"jaxattn.lab.texts.{name}" for name in ("readers", "text")}
__getattr__, _ = lazy(__name__, _NAMES, _MODULES)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
